"""What a model is trained on: a graph, its features, and the labels it may see; checked once."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from edgewise.data.edges import adjacency_with_self_loops, normalize_adjacency, undirected_edges
from edgewise.kernels.dispatch import Threads
from edgewise.kernels.sparse import SparseMatrix
from edgewise.validation import (
    ArrayLike,
    as_tensor,
    check_edges,
    check_labels,
    check_mask,
    check_option,
    check_whole_number,
)

MIN_DENSE_SHARE = 0.3  # of non-zeros, from which on a dense product is quicker

Features = Any  # scipy's csr_array, which ships no types, or a dense tensor


def check_features(x: ArrayLike) -> tuple[Features, torch.dtype]:
    """Return features as they are multiplied quickest: by rows of non-zeros if there are few."""
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
    filled = array != 0
    counts = filled.sum(1)
    if counts.sum() > MIN_DENSE_SHARE * array.size:
        return dense, dense.dtype
    where = np.flatnonzero(filled)
    first = np.concatenate([np.zeros(1, dtype=np.int64), counts.cumsum()])
    return csr_array((array.ravel()[where], where % array.shape[1], first), shape=array.shape), dense.dtype


def _check_feature_shape(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or 0 in shape:
        raise ValueError(
            f"Expected x of shape (nodes, features) with at least one of each, but got shape {shape}. "
            "Nodes without features may take one-hot numbers: torch.eye(num_nodes)."
        )


def _as_float(values: Tensor) -> Tensor:
    if values.is_complex():
        raise ValueError(f"Expected real features, but got dtype {values.dtype}. Pass x.real, or x.abs().")
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _check_finite(values: Float[Tensor, "rows ..."], nodes: Int[Tensor, " rows"]) -> None:
    if bool(values.sum().isfinite()):  # it is not if some part of it is not, and a sum is quick
        return
    bad = ~values.isfinite()
    bad = bad.any(1) if bad.ndim == 2 else bad
    if bool(bad.any()):
        node = int(nodes[bad.nonzero()[0]])
        raise ValueError(
            f"Expected finite features, but x holds NaN or infinity in {int(bad.sum())} rows, first for node {node}. "
            "Fill them, say by x.nan_to_num(0.0), or leave these features out."
        )


DIRECTED = ("refuse", "undirected")
MAX_CLASSES = 1 << 20

Directed = Literal["refuse", "undirected"]
Nodes = NDArray[np.int64]


class LabeledNodes(Protocol):
    """Who trains and who validates: an edgewise `Split`, or anything with these masks."""

    @property
    def train(self) -> Bool[Tensor, " nodes"]:
        """The nodes whose labels are learned from."""

    @property
    def val(self) -> Bool[Tensor, " nodes"]:
        """The nodes whose labels tell when to stop."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Graph:
    """A graph with features, as a forward pass needs it."""

    x: Features
    edge_index: Int[Tensor, "2 edges"]  # each undirected edge once, no self-loops
    dtype: torch.dtype
    device: torch.device
    threads: Threads  # for long loops

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return int(self.x.shape[0])

    @property
    def num_features(self) -> int:
        """How many features a node has."""
        return int(self.x.shape[1])

    @property
    def all_nodes(self) -> Nodes:
        """Every node."""
        return np.arange(self.num_nodes)

    @cached_property
    def adjacency(self) -> Any:
        """A + I as a scipy matrix: each node is its own neighbor."""
        return adjacency_with_self_loops(self.edge_index, self.num_nodes)

    @cached_property
    def normalized_adjacency(self) -> Any:
        """Â = D^-½ (A + I) D^-½."""
        return normalize_adjacency(self.adjacency)

    @cached_property
    def propagation_matrix(self) -> SparseMatrix:
        """Â, arranged for products."""
        return self.sparse(self.normalized_adjacency)

    @cached_property
    def sparse_features(self) -> SparseMatrix:
        """Sparse features of all nodes, arranged for products."""
        return self.sparse(self.x)

    def closed_neighborhood(self, nodes: Nodes) -> Nodes:
        """Return nodes and their neighbors, in order."""
        return np.unique(self.adjacency[nodes].indices).astype(np.int64)

    def sparse(self, matrix: Any, grad_rows: int | None = None) -> SparseMatrix:
        """Arrange a scipy matrix for products with this graph's tensors."""
        return SparseMatrix.from_scipy(matrix, self.dtype, self.device, grad_rows=grad_rows, threads=self.threads)


@dataclass(frozen=True, eq=False, kw_only=True)
class Task(Graph):
    """A graph, and labels of the nodes that train and validate."""

    labels: Int[Tensor, " nodes"]  # -1 wherever the model must not look
    train: Int[Tensor, " train"]
    val: Int[Tensor, " val"]
    num_classes: int

    def clamp(self, rows: Float[Tensor, "nodes classes"]) -> Float[Tensor, "nodes classes"]:
        """Set the rows of training nodes, in place, to the one label that they are known to have."""
        rows[self.train] = one_hot(self.labels[self.train], self.num_classes).to(rows.dtype)
        return rows


def prepare_task(
    data: Any, split: LabeledNodes, *, directed: Directed, num_classes: int | None, device: torch.device | str
) -> Task:
    """Check a graph and its labels, and make a task of them."""
    _check_parts(data, ("x", "edge_index", "y"))
    check_option("directed", directed, DIRECTED)
    where = _device(device)
    x, dtype = check_features(data.x)
    labels = check_labels(as_tensor(data.y, "y").cpu(), x.shape[0], "rows of x").long()
    train, val = (check_nodes(name, split, labels) for name in ("train", "val"))
    if bool((train & val).any()):
        node = int((train & val).nonzero()[0])
        raise ValueError(
            f"Expected training and validation nodes to differ, but node {node} is in both. Leave it out of one: "
            "train & ~val."
        )
    classes = _num_classes(labels, num_classes)
    return Task(
        x=_on_device(x, dtype, where),
        edge_index=_edges(data, directed, len(labels)).to(where),
        labels=torch.where(train | val, labels, -1).to(where),
        train=train.nonzero().squeeze(1).to(where),
        val=val.nonzero().squeeze(1).to(where),
        num_classes=classes,
        dtype=dtype,
        device=where,
        threads=Threads(torch.get_num_threads()),
    )


def prepare_graph(data: Any, *, directed: Directed, dtype: torch.dtype, device: torch.device) -> Graph:
    """Check a graph to which a trained model is applied; it needs no labels."""
    _check_parts(data, ("x", "edge_index"))
    check_option("directed", directed, DIRECTED)
    x, _ = check_features(data.x)
    edges = _edges(data, directed, x.shape[0]).to(device)
    threads = Threads(torch.get_num_threads())
    return Graph(x=_on_device(x, dtype, device), edge_index=edges, dtype=dtype, device=device, threads=threads)


def _check_parts(data: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(data, name, None) is None:
            raise ValueError(
                f"Expected data with {', '.join(names[:-1])} and {names[-1]}, but {type(data).__name__} has no {name}. "
                f"Pass a torch_geometric Data, or anything that has these {'two' if len(names) == 2 else 'three'}."
            )
    if getattr(data, "edge_weight", None) is not None:
        raise ValueError(
            "Expected a graph without weights, for these models take all edges alike, but data has edge_weight. To "
            "train without them set data.edge_weight = None."
        )


def _edges(data: Any, directed: Directed, num_nodes: int) -> Int[Tensor, "2 edges"]:
    edges = check_edges(as_tensor(data.edge_index, "edge_index").cpu(), num_nodes).long()
    if directed == "refuse":
        _check_both_directions(edges[:, edges[0] != edges[1]], num_nodes)
    return undirected_edges(edges, num_nodes)


def _on_device(x: Features, dtype: torch.dtype, device: torch.device) -> Features:
    return x.to(device, dtype) if isinstance(x, Tensor) else x


def _device(device: torch.device | str) -> torch.device:
    try:
        where = torch.device(device)
        torch.zeros(1, device=where).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:80]
        raise ValueError(f"Expected a device that torch can use, but got {device!r} ({reason}). Try 'cpu'.") from error
    return where


def check_nodes(name: str, split: LabeledNodes, labels: Int[Tensor, " nodes"]) -> Bool[Tensor, " nodes"]:
    """Check that a mask of a split chooses some nodes, and that their labels are known."""
    mask = getattr(split, name, None)
    if mask is None:
        raise ValueError(
            f"Expected a split with the masks train and val, but a {type(split).__name__} has no {name}. Pass one of "
            "ew.make_splits(y), or ew.Split(data.train_mask, data.val_mask, data.test_mask)."
        )
    nodes = check_mask(as_tensor(mask, name).cpu(), len(labels), name)
    if not bool(nodes.any()):
        raise ValueError(
            f"Expected at least one {name} node, but the mask is empty. Models learn from training nodes; validation "
            "nodes tell when to stop, and how to calibrate. Keep some for each."
        )
    unknown = nodes & (labels < 0)
    if bool(unknown.any()):
        node = int(unknown.nonzero()[0])
        raise ValueError(
            f"Expected a label for each {name} node, but that of node {node} is unknown (-1). Leave such nodes out: "
            f"{name} & (y >= 0)."
        )
    return nodes


def _num_classes(labels: Int[Tensor, " nodes"], num_classes: int | None) -> int:
    present = int(labels.max()) + 1
    if present > MAX_CLASSES:
        raise ValueError(
            f"Expected labels below {MAX_CLASSES}, but got {present - 1}. Number the classes: "
            "y.unique(return_inverse=True)[1]."
        )
    if num_classes is None:
        return present
    check_whole_number("num_classes", num_classes, 1, MAX_CLASSES)
    if num_classes < present:
        raise ValueError(
            f"Expected at least {present} classes, for there is a label {present - 1}, but got {num_classes}."
        )
    return int(num_classes)


def _check_both_directions(edges: Int[Tensor, "2 edges"], num_nodes: int) -> None:
    there, back = edges[0] * num_nodes + edges[1], (edges[1] * num_nodes + edges[0]).unique()
    place = torch.searchsorted(back, there).clamp(max=max(0, len(back) - 1))
    alone = back[place] != there
    if bool(alone.any()):
        i, j = edges[:, int(alone.nonzero()[0])].tolist()
        raise ValueError(
            f"Expected an undirected graph, with both directions of each edge listed, but {int(alone.sum())} edges are "
            f"listed in one direction only, first {i} → {j}. Pass directed='undirected' to take each for both, or "
            "use torch_geometric.utils.to_undirected."
        )
