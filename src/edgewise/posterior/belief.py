"""Base class of posteriors, and convergence of the solver that computed them.

The tensors of a posterior are checked once, on construction. Leading dimensions before the nodes are a batch of
posteriors on the same graph.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.conversion import EdgesLike, as_edges, as_node_sets
from edgewise.files.tensors import read_tensors, write_tensors
from edgewise.representation import shorten
from edgewise.validation import ArrayLike


@dataclass(frozen=True, repr=False)
class Convergence:
    """Convergence of an iterative solver.

    Its truth value is ``converged``, so ``if not convergence: print(convergence.advice)`` works.

    Attributes
    ----------
    converged
        Whether the residual fell to the tolerance.
    sweeps
        Number of sweeps, 0 for exact inference.
    residual
        Largest change in the last sweep: of a log-message, relative to its size if that is above 1, or of a probability
        (mean field).
    advice
        How to make the solver converge, or what to do if its marginals may be wrong. Otherwise empty.
    method
        The solver: "forest", "enumeration" or "elimination", which are exact, "sum-product", "max-product", "mean
        field" or "tree-reweighted".
    disagreement
        Largest difference between the marginals of a node from several initial messages and from tree-reweighted
        sum-product, if ``check=True`` was passed, otherwise None. The error can be smaller or larger.
    reason
        Why `infer` chose the method.

    Examples
    --------
    >>> import torch, edgewise as ew
    >>> triangle = ew.PairwiseMRF(torch.eye(3)[:, :2], torch.tensor([[0, 1, 0], [1, 2, 2]]), torch.eye(2))
    >>> posterior, convergence = ew.sum_product(triangle, max_sweeps=2, tolerance=0.0)
    >>> convergence.converged, convergence.advice
    (False, 'Did not converge in 2 sweeps: the residual is ..., the tolerance is 0. ... raise max_sweeps.')
    >>> posterior.convergence is convergence
    True
    """

    converged: bool
    sweeps: int
    residual: float
    advice: str = ""
    method: str = ""
    disagreement: float | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        return self.converged

    def __repr__(self) -> str:
        text = f"converged={self.converged}, sweeps={self.sweeps}, residual={self.residual:.6g}"
        if self.disagreement is not None:
            text += f", disagreement={self.disagreement:.3g}"
        for name, value in (("method", self.method), ("advice", self.advice), ("reason", self.reason)):
            text += f", {name}={value!r}" if value else ""
        return shorten(f"Convergence({text})")

    def _repr_html_(self) -> str:
        from edgewise.pages.notebook import convergence_html

        return convergence_html(self)

    def to_json(self) -> str:
        """Return a JSON string, for the metadata of a file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Convergence":
        """Parse the JSON string that `to_json` returns."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise ValueError(f"Expected a convergence in the format of to_json, but got {text[:80]!r}.") from error


MAX_SET = 6  # nodes per set in `Posterior.marginal`
MAX_ENTRIES = 1 << 20  # entries of the joint of one set
CHUNK_ELEMENTS = 1 << 21
FORMAT = "edgewise posterior 1"
# Where the class of a saved posterior is defined. It is imported when a file is read.
MODULES = {
    "IndependentPosterior": "edgewise.posterior",
    "MixturePosterior": "edgewise.posterior",
    "PairwisePosterior": "edgewise.posterior",
    "ExactPosterior": "edgewise.inference",
}


class Posterior(ABC):
    """Distribution over the labels of all nodes, with marginals of nodes and joints of pairs and small node sets.

    There are three kinds: `IndependentPosterior`, `MixturePosterior` and `PairwisePosterior`.

    Attributes
    ----------
    convergence
        Convergence of the solver that computed the posterior, or None without a solver. It is saved with the posterior.
    log_partition
        log Z of the MRF in float64, with the shape of the batch: exact from `exact_marginals`, an upper bound from
        `tree_reweighted`, otherwise None. It is saved with the posterior.

    Examples
    --------
    >>> from edgewise.posterior import IndependentPosterior
    >>> coins = IndependentPosterior(torch.full((4, 2), 0.5))
    >>> coins.num_nodes, coins.joint(torch.tensor([[0, 1], [1, 2]])).shape
    (4, torch.Size([2, 2, 2]))
    """

    log_partition: Tensor | None = None

    def __init__(self, convergence: Convergence | None):
        if convergence is not None and not isinstance(convergence, Convergence):
            raise ValueError(f"Expected a Convergence from a solver, but got {type(convergence).__name__}.")
        self.convergence = convergence

    @property
    @abstractmethod
    def node(self) -> Float[Tensor, "*batch nodes classes"]:
        """The marginal of each node."""

    @abstractmethod
    def tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors of the posterior, by the names of the constructor's arguments."""

    @abstractmethod
    def _joints(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*batch sets entries"]:
        """Return the flattened joints of a chunk of sets of distinct nodes."""

    @property
    def _num_copies(self) -> int:
        """Number of temporary copies of a chunk's joints that `_joints` allocates."""
        return 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.node.shape[-2]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.node.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Dimensions before the nodes: () for one posterior, (B,) for a batch on the same graph."""
        return tuple(self.node.shape[:-2])

    def joint(self, edge_index: EdgesLike) -> Float[Tensor, "*batch edges classes classes"]:
        """Return P(y_i = l, y_j = m) of each pair (i, j). For i = j it is diagonal, with the marginal of node i."""
        pairs = as_edges(edge_index, self.num_nodes, self.node.device).long()
        is_loop = pairs[0] == pairs[1]
        if not bool(is_loop.any()):
            return self._compute_joints(pairs)
        joints = self.node.new_zeros(*self.batch_shape, pairs.shape[1], self.num_classes, self.num_classes)
        joints[..., ~is_loop, :, :] = self._compute_joints(pairs[:, ~is_loop])
        joints[..., is_loop, :, :] = self.node[..., pairs[0, is_loop], :].diag_embed()
        return joints

    def marginal(self, nodes: ArrayLike) -> Float[Tensor, "*shape"]:
        """Return the joint of each set of nodes, (M, C, …, C) with k class dimensions for ``nodes`` (k, M).

        k is from 1 to 6, and the joint of a set has at most 2^20 entries, C^k <= 2^20.

        Examples
        --------
        >>> from edgewise.posterior import IndependentPosterior
        >>> coins = IndependentPosterior(torch.full((4, 2), 0.5))
        >>> coins.marginal(torch.tensor([[0], [1], [3]])).shape
        torch.Size([1, 2, 2, 2])
        """
        return self._compute_joints(as_node_sets(nodes, self.num_nodes, self.node.device))

    def _compute_joints(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*shape"]:
        (size, num_sets), entries = nodes.shape, self.num_classes ** nodes.shape[0]
        if size > MAX_SET or entries > MAX_ENTRIES:
            raise ValueError(
                f"Expected sets of at most {MAX_SET} nodes whose joint has at most {MAX_ENTRIES} entries, but got "
                f"{size} nodes of {self.num_classes} classes: {entries} entries. Pass smaller sets."
            )
        step = max(1, CHUNK_ELEMENTS // (entries * self._num_copies * max(1, math.prod(self.batch_shape))))
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.tensors().values()):
            joints = torch.cat([self._joints(part) for part in nodes.split(step, dim=1)], dim=-2)
        else:
            joints = self.node.new_empty(*self.batch_shape, num_sets, entries)
            for lo in range(0, num_sets, step):
                joints[..., lo : lo + step, :] = self._joints(nodes[:, lo : lo + step])
        return joints.view(*joints.shape[:-1], *[self.num_classes] * size)

    def save(self, path: Path | str, *, calibrator: str | None = None) -> None:
        """Write the posterior to a safetensors file, with the name of the calibrator that made it, if any."""
        metadata = {"format": FORMAT, "kind": type(self).__name__}
        if calibrator is not None:
            metadata["calibrator"] = calibrator
        if self.convergence is not None:
            metadata["convergence"] = self.convergence.to_json()
        if self.log_partition is not None:
            metadata["log_partition"] = json.dumps(self.log_partition.tolist())
        write_tensors(path, self.tensors(), metadata)

    @staticmethod
    def load(path: Path | str) -> "Posterior":
        """Read a file that `save` wrote."""
        expected = {"format": [FORMAT], "kind": list(MODULES)}
        tensors, metadata = read_tensors(path, "posterior", "Posterior.save", expected)
        convergence = Convergence.from_json(metadata["convergence"]) if "convergence" in metadata else None
        kind: Callable[..., Posterior] = getattr(import_module(MODULES[metadata["kind"]]), metadata["kind"])
        try:
            posterior = kind(**tensors, convergence=convergence)
        except TypeError as error:  # missing or unexpected tensors
            names = ", ".join(sorted(tensors))
            raise ValueError(f"Expected the tensors of a {metadata['kind']} in {path}, but got {names}.") from error
        if "log_partition" in metadata:
            posterior.log_partition = torch.tensor(json.loads(metadata["log_partition"]), dtype=torch.float64)
        return posterior

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Posterior":
        """Return the posterior on another device or in another dtype."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        return self._rebuild(**{name: move(tensor) for name, tensor in self.tensors().items()})

    def detach(self) -> "Posterior":
        """Return the posterior without gradients."""
        return self._rebuild(**{name: tensor.detach() for name, tensor in self.tensors().items()})

    def __getitem__(self, index: int) -> "Posterior":
        """Return one posterior of a batch."""
        if not self.batch_shape:
            raise TypeError("Expected a batch of posteriors, but this is a single one. Use it without an index.")
        selected = self._select(index)
        selected.log_partition = None if self.log_partition is None else self.log_partition[index]
        return selected

    def _select(self, index: int) -> "Posterior":
        return self._rebuild(**{name: tensor[index] for name, tensor in self.tensors().items()})

    def _rebuild(self, **tensors: Tensor) -> "Posterior":
        kind: Callable[..., Posterior] = type(self)
        posterior = kind(**tensors, convergence=self.convergence)
        posterior.log_partition = None if self.log_partition is None else self.log_partition.detach()
        return posterior

    def __repr__(self) -> str:
        batch = f"batch={self.batch_shape}, " if self.batch_shape else ""
        return f"{type(self).__name__}({batch}nodes={self.num_nodes}, classes={self.num_classes}{self._extra_repr()})"

    def _extra_repr(self) -> str:
        """Return further fields of the representation."""
        return ""


def check_node_shape(node: Tensor, name: str) -> None:
    """Raise ValueError unless a tensor has dimensions of nodes and classes."""
    if node.ndim < 2 or node.shape[-1] == 0:
        raise ValueError(f"Expected {name} of shape (nodes, classes), but got shape {tuple(node.shape)}.")
