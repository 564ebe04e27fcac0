"""Validated training inputs: a graph, its features, and the labels of training and validation nodes."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from edgewise.conversion import as_edges, as_labels, as_mask, edges_of
from edgewise.data.edges import adjacency_with_self_loops, normalize_adjacency, undirected_edges
from edgewise.kernels.dispatch import Threads
from edgewise.kernels.sparse import SparseMatrix
from edgewise.validation import (
    ArrayLike,
    as_tensor,
    check_option,
    check_whole_number,
)

CPU = torch.device("cpu")
MIN_DENSE_FRACTION = 0.3  # of non-zeros, above which a dense product is faster

Features = Any  # a scipy csr_array, which has no type stubs, or a dense tensor


def check_features(x: ArrayLike) -> tuple[Features, torch.dtype]:
    """Return the features and their dtype, as a scipy CSR array if few are non-zero and as a dense tensor otherwise."""
    from scipy.sparse import coo_array, csr_array

    if isinstance(x, Tensor) and x.layout != torch.strided:
        entries = x.detach().cpu().to_sparse_coo().coalesce()
        _check_feature_shape(tuple(entries.shape))
        values = _as_float(entries.values())
        matrix = csr_array(coo_array((values.numpy(), entries.indices().numpy()), shape=tuple(entries.shape)))
        matrix.eliminate_zeros()
        values = torch.from_numpy(matrix.data)
        _check_finite(values, torch.from_numpy(np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))))
        return matrix, values.dtype
    dense = as_tensor(x, "x").cpu()
    _check_feature_shape(tuple(dense.shape))
    dense = _as_float(dense).contiguous()
    _check_finite(dense, torch.arange(len(dense)))
    array = dense.numpy()
    non_zero = array != 0
    counts = non_zero.sum(1)
    if counts.sum() > MIN_DENSE_FRACTION * array.size:
        return dense, dense.dtype
    positions = np.flatnonzero(non_zero)
    indptr = np.concatenate([np.zeros(1, dtype=np.int64), counts.cumsum()])
    return csr_array((array.ravel()[positions], positions % array.shape[1], indptr), shape=array.shape), dense.dtype


def _check_feature_shape(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or 0 in shape:
        raise ValueError(
            f"Expected x of shape (nodes, features) with at least one of each, but got shape {shape}. "
            "If nodes have no features, pass one-hot node ids: torch.eye(num_nodes)."
        )


def _as_float(values: Tensor) -> Tensor:
    if values.is_complex():
        raise ValueError(f"Expected real features, but got dtype {values.dtype}. Pass x.real or x.abs().")
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _check_finite(values: Float[Tensor, "rows ..."], nodes: Int[Tensor, " rows"]) -> None:
    if bool(values.sum().isfinite()):  # a fast check, since the sum is finite only if all values are
        return
    bad = ~values.isfinite()
    bad = bad.any(1) if bad.ndim == 2 else bad
    if bool(bad.any()):
        rows = nodes[bad].unique()
        raise ValueError(
            f"Expected finite features, but x contains NaN or infinity in {len(rows)} rows, first for node "
            f"{int(rows[0])}. Replace the values, for example with x.nan_to_num(0.0, 0.0, 0.0), or drop these features."
        )


DIRECTED = ("refuse", "undirected")
MAX_CLASSES = 1 << 20

Directed = Literal["refuse", "undirected"]
Nodes = NDArray[np.int64]


class LabeledNodes(Protocol):
    """Masks of training and validation nodes: an `ew.Split`, or anything with these attributes."""

    @property
    def train(self) -> Bool[Tensor, " nodes"]:
        """Training nodes."""

    @property
    def val(self) -> Bool[Tensor, " nodes"]:
        """Validation nodes, for early stopping."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Graph:
    """A validated graph with features: the input of a forward pass."""

    x: Features
    edge_index: Int[Tensor, "2 edges"]  # each undirected edge once, no self-loops
    dtype: torch.dtype
    device: torch.device
    threads: Threads  # of compiled kernels

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return int(self.x.shape[0])

    @property
    def num_features(self) -> int:
        """The number of features per node."""
        return int(self.x.shape[1])

    @property
    def all_nodes(self) -> Nodes:
        """The indices of all nodes."""
        return np.arange(self.num_nodes)

    @cached_property
    def adjacency(self) -> Any:
        """A + I as a scipy CSR array."""
        return adjacency_with_self_loops(self.edge_index, self.num_nodes)

    @cached_property
    def normalized_adjacency(self) -> Any:
        """Â = D^-½ (A + I) D^-½ as a scipy CSR array."""
        return normalize_adjacency(self.adjacency)

    @cached_property
    def propagation_matrix(self) -> SparseMatrix:
        """Â in the format of the sparse kernels."""
        return self.sparse(self.normalized_adjacency)

    @cached_property
    def sparse_features(self) -> SparseMatrix:
        """Sparse features of all nodes in the format of the sparse kernels."""
        return self.sparse(self.x)

    @cached_property
    def dense_features(self) -> Float[Tensor, "nodes features"]:
        """Features as a dense tensor."""
        if isinstance(self.x, Tensor):
            return self.x
        return torch.from_numpy(self.x.toarray()).to(self.device, self.dtype)

    @cached_property
    def both_directions(self) -> Int[Tensor, "2 directed"]:
        """Each edge in both directions."""
        return torch.cat([self.edge_index, self.edge_index.flip(0)], dim=1)

    def closed_neighborhood(self, nodes: Nodes) -> Nodes:
        """Return the nodes and their neighbors, sorted."""
        return np.unique(self.adjacency[nodes].indices).astype(np.int64)

    def sparse(self, matrix: Any, grad_rows: int | None = None) -> SparseMatrix:
        """Convert a scipy matrix to the format of the sparse kernels, with the dtype and device of this graph."""
        return SparseMatrix.from_scipy(matrix, self.dtype, self.device, grad_rows=grad_rows, threads=self.threads)


@dataclass(frozen=True, eq=False, kw_only=True)
class Task(Graph):
    """A graph with the labels of its training and validation nodes."""

    labels: Int[Tensor, " nodes"]  # -1 for nodes that are neither training nor validation nodes
    train: Int[Tensor, " train"]
    val: Int[Tensor, " val"]
    num_classes: int
    training_loops: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)  # that fits can continue

    def clamp(self, rows: Float[Tensor, "nodes classes"]) -> Float[Tensor, "nodes classes"]:
        """Set the rows of training nodes to their one-hot labels, in place, and return all rows."""
        rows[self.train] = one_hot(self.labels[self.train], self.num_classes).to(rows.dtype)
        return rows


def prepare_task(
    data: Any, split: LabeledNodes, *, directed: Directed, num_classes: int | None, device: torch.device | str
) -> Task:
    """Validate a graph, its labels and a split."""
    _check_attributes(data, ("x", "edge_index", "y"))
    check_option("directed", directed, DIRECTED)
    checked_device = _check_device(device)
    x, dtype = check_features(data.x)
    labels = as_labels(data.y, x.shape[0], "rows of x", CPU).long()
    train, val = (check_nodes(name, split, labels) for name in ("train", "val"))
    if bool((train & val).any()):
        node = int((train & val).nonzero()[0])
        raise ValueError(
            f"Expected disjoint training and validation nodes, but node {node} is in both. Remove it from one mask: "
            "train & ~val."
        )
    return Task(
        num_classes=_check_num_classes(labels, num_classes),
        x=_features_to(x, dtype, checked_device),
        edge_index=_prepare_edges(data, directed, len(labels)).to(checked_device),
        labels=torch.where(train | val, labels, -1).to(checked_device),
        train=train.nonzero().squeeze(1).to(checked_device),
        val=val.nonzero().squeeze(1).to(checked_device),
        dtype=dtype,
        device=checked_device,
        threads=Threads(torch.get_num_threads()),
    )


def prepare_graph(data: Any, *, directed: Directed, dtype: torch.dtype, device: torch.device) -> Graph:
    """Validate a graph without labels, to which a trained model is applied."""
    _check_attributes(data, ("x", "edge_index"))
    check_option("directed", directed, DIRECTED)
    x, _ = check_features(data.x)
    edges = _prepare_edges(data, directed, x.shape[0]).to(device)
    threads = Threads(torch.get_num_threads())
    return Graph(x=_features_to(x, dtype, device), edge_index=edges, dtype=dtype, device=device, threads=threads)


def _check_attributes(data: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if (edges_of(data) if name == "edge_index" else getattr(data, name, None)) is None:
            raise ValueError(
                f"Expected data with {', '.join(names[:-1])} and {names[-1]}, but {type(data).__name__} has no {name}. "
                "Pass a torch_geometric Data or any object with these attributes."
            )
    if getattr(data, "edge_weight", None) is not None:
        raise ValueError(
            "Expected an unweighted graph, because the models do not use edge weights, but data has edge_weight. To "
            "train without weights, set data.edge_weight = None."
        )


def _prepare_edges(data: Any, directed: Directed, num_nodes: int) -> Int[Tensor, "2 edges"]:
    edges = as_edges(edges_of(data), num_nodes, CPU).long()
    if directed == "refuse":
        _check_both_directions(edges[:, edges[0] != edges[1]], num_nodes)
    return undirected_edges(edges, num_nodes)


def _features_to(x: Features, dtype: torch.dtype, device: torch.device) -> Features:
    return x.to(device, dtype) if isinstance(x, Tensor) else x


def _check_device(device: torch.device | str) -> torch.device:
    try:
        checked = torch.device(device)
        torch.zeros(1, device=checked).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:80]
        raise ValueError(f"Expected an available device, but got {device!r} ({reason}). Try 'cpu'.") from error
    return checked


def check_nodes(name: str, split: LabeledNodes, labels: Int[Tensor, " nodes"]) -> Bool[Tensor, " nodes"]:
    """Return a mask of a split, or raise ValueError if it is empty or includes a node without a label."""
    mask = getattr(split, name, None)
    if mask is None:
        raise ValueError(
            f"Expected a split with the masks train and val, but a {type(split).__name__} has no {name}. Pass one of "
            "ew.make_splits(y) or ew.Split.from_data(data)."
        )
    nodes = as_mask(mask, len(labels), CPU, name)
    if not bool(nodes.any()):
        raise ValueError(
            f"Expected at least one {name} node, but the mask is empty. Training nodes are needed to fit a model, and "
            "validation nodes for early stopping."
        )
    unknown = nodes & (labels < 0)
    if bool(unknown.any()):
        node = int(unknown.nonzero()[0])
        raise ValueError(
            f"Expected a label for each {name} node, but the label of node {node} is -1 (unknown). Remove such nodes "
            f"from the mask: {name} & (y >= 0)."
        )
    return nodes


def _check_num_classes(labels: Int[Tensor, " nodes"], num_classes: int | None) -> int:
    present = int(labels.max()) + 1
    if present > MAX_CLASSES:
        raise ValueError(
            f"Expected labels below {MAX_CLASSES}, but got {present - 1}. Renumber the classes: "
            "y.unique(return_inverse=True)[1]."
        )
    if num_classes is None:
        return present
    check_whole_number("num_classes", num_classes, 1, MAX_CLASSES)
    if num_classes < present:
        raise ValueError(
            f"Expected num_classes of at least {present}, because a label is {present - 1}, but got {num_classes}."
        )
    return int(num_classes)


def _check_both_directions(edges: Int[Tensor, "2 edges"], num_nodes: int) -> None:
    forward, backward = edges[0] * num_nodes + edges[1], (edges[1] * num_nodes + edges[0]).unique()
    position = torch.searchsorted(backward, forward).clamp(max=max(0, len(backward) - 1))
    unpaired = backward[position] != forward
    if bool(unpaired.any()):
        i, j = edges[:, int(unpaired.nonzero()[0])].tolist()
        raise ValueError(
            f"Expected an undirected graph, with both directions of each edge listed, but {int(unpaired.sum())} edges "
            f"are listed in one direction only, first {i} → {j}. Pass directed='undirected' to add the other direction "
            "or call torch_geometric.utils.to_undirected."
        )
