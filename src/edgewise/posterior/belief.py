"""What all kinds of beliefs have in common.

What a belief holds is checked once, when it is made. Dimensions before the nodes are a batch: several beliefs about one
graph.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.files.tensors import read_tensors, write_tensors
from edgewise.validation import ArrayLike, as_tensor, check_edges, check_node_sets


@dataclass(frozen=True)
class Convergence:
    """Whether an iteration came to rest.

    It is true where ``converged`` is, so ``if not convergence: print(convergence.advice)`` works.

    Attributes
    ----------
    converged
        Whether the residual fell to the tolerance.
    sweeps
        How many sweeps it took; 0 for exact inference.
    residual
        The largest change in the last sweep: of a log-message, relative to its size where that is more than 1, or of a
        probability (mean field).
    advice
        What to do about an iteration that did not converge; empty where there is nothing to say.

    Examples
    --------
    >>> import torch, edgewise as ew
    >>> triangle = ew.PairwiseMRF(torch.eye(3)[:, :2], torch.tensor([[0, 1, 0], [1, 2, 2]]), torch.eye(2))
    >>> posterior, convergence = ew.sum_product(triangle, max_sweeps=2, tolerance=0.0)
    >>> convergence.converged, convergence.advice
    (False, 'Did not converge in 2 sweeps: the residual is ..., the tolerance 0. It may still fall: raise max_sweeps.')
    >>> posterior.convergence is convergence
    True
    """

    converged: bool
    sweeps: int
    residual: float
    advice: str = ""

    def __bool__(self) -> bool:
        return self.converged

    def to_json(self) -> str:
        """Return the value as text, for the metadata of a file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Convergence":
        """Read what `to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise ValueError(f"Expected a convergence as to_json writes it, but got {text[:80]!r}.") from error


MAX_SET = 6  # nodes in a set whose joint can be asked for
MAX_ENTRIES = 1 << 20  # entries in the joint of one set
CHUNK_ELEMENTS = 1 << 21
FORMAT = "edgewise posterior 1"


class Posterior(ABC):
    """A belief about the labels of all nodes: what each is, and what pairs and small sets of them are together.

    There are three kinds: `IndependentPosterior`, `MixturePosterior` and `PairwisePosterior`.

    Attributes
    ----------
    convergence
        Whether the solver that inferred the belief converged; None where nothing was solved. It is saved with the
        belief.

    Examples
    --------
    >>> from edgewise.posterior import IndependentPosterior
    >>> coins = IndependentPosterior(torch.full((4, 2), 0.5))
    >>> coins.num_nodes, coins.joint(torch.tensor([[0, 1], [1, 2]])).shape
    (4, torch.Size([2, 2, 2]))
    """

    def __init__(self, convergence: Convergence | None):
        if convergence is not None and not isinstance(convergence, Convergence):
            raise ValueError(f"Expected convergence as a solver returns it, but got {type(convergence).__name__}.")
        self.convergence = convergence

    @property
    @abstractmethod
    def node(self) -> Float[Tensor, "*batch nodes classes"]:
        """The marginal of each node."""

    @abstractmethod
    def tensors(self) -> Mapping[str, Tensor]:
        """Return what the belief is made of, under the names of the constructor's arguments."""

    @abstractmethod
    def _joints(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*batch sets entries"]:
        """Return the flat joints of a chunk of sets, each of distinct nodes."""

    @property
    def _copies(self) -> int:
        """How many copies of a chunk's joints are made on the way to them."""
        return 1

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return self.node.shape[-2]

    @property
    def num_classes(self) -> int:
        """How many labels a node may have."""
        return self.node.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The dimensions before the nodes: () for one belief, (B,) for several about one graph."""
        return tuple(self.node.shape[:-2])

    def joint(self, edge_index: ArrayLike) -> Float[Tensor, "*batch edges classes classes"]:
        """Return P(y_i = l, y_j = m) of each pair (i, j); a node with itself has its marginal on the diagonal."""
        pairs = check_edges(as_tensor(edge_index, "edge_index").to(self.node.device), self.num_nodes).long()
        loop = pairs[0] == pairs[1]
        if not bool(loop.any()):
            return self._in_chunks(pairs)
        joints = self.node.new_zeros(*self.batch_shape, pairs.shape[1], self.num_classes, self.num_classes)
        joints[..., ~loop, :, :] = self._in_chunks(pairs[:, ~loop])
        joints[..., loop, :, :] = self.node[..., pairs[0, loop], :].diag_embed()
        return joints

    def marginal(self, nodes: ArrayLike) -> Float[Tensor, "*shape"]:
        """Return the joint of each set of nodes: for ``nodes`` (k, M) it is (M, C, …, C) with k dimensions of classes.

        k may be 1 to 6, as long as the C^k entries of a joint are at most 2^20.

        Examples
        --------
        >>> from edgewise.posterior import IndependentPosterior
        >>> coins = IndependentPosterior(torch.full((4, 2), 0.5))
        >>> coins.marginal(torch.tensor([[0], [1], [3]])).shape
        torch.Size([1, 2, 2, 2])
        """
        return self._in_chunks(check_node_sets(as_tensor(nodes, "nodes").to(self.node.device), self.num_nodes, "nodes"))

    def _in_chunks(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*shape"]:
        (size, num_sets), entries = nodes.shape, self.num_classes ** nodes.shape[0]
        if size > MAX_SET or entries > MAX_ENTRIES:
            raise ValueError(
                f"Expected sets of at most {MAX_SET} nodes, whose joint has at most {MAX_ENTRIES} entries, but got "
                f"{size} nodes of {self.num_classes} classes: {entries} entries. Ask for smaller sets."
            )
        step = max(1, CHUNK_ELEMENTS // (entries * self._copies * max(1, math.prod(self.batch_shape))))
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.tensors().values()):
            joints = torch.cat([self._joints(part) for part in nodes.split(step, dim=1)], dim=-2)
        else:
            joints = self.node.new_empty(*self.batch_shape, num_sets, entries)
            for lo in range(0, num_sets, step):
                joints[..., lo : lo + step, :] = self._joints(nodes[:, lo : lo + step])
        return joints.view(*joints.shape[:-1], *[self.num_classes] * size)

    def save(self, path: Path | str) -> None:
        """Write the belief to a safetensors file."""
        metadata = {"format": FORMAT, "kind": type(self).__name__}
        if self.convergence is not None:
            metadata["convergence"] = self.convergence.to_json()
        write_tensors(path, self.tensors(), metadata)

    @staticmethod
    def load(path: Path | str) -> "Posterior":
        """Read what `save` wrote."""
        from edgewise.posterior import IndependentPosterior, MixturePosterior, PairwisePosterior

        kinds: dict[str, Callable[..., Posterior]] = {
            kind.__name__: kind for kind in (IndependentPosterior, MixturePosterior, PairwisePosterior)
        }
        expected = {"format": [FORMAT], "kind": list(kinds)}
        tensors, words = read_tensors(path, "posterior", "Posterior.save", expected)
        convergence = Convergence.from_json(words["convergence"]) if "convergence" in words else None
        try:
            return kinds[words["kind"]](**tensors, convergence=convergence)
        except TypeError as error:  # tensors are missing, or are too many
            kind, names = words["kind"], ", ".join(sorted(tensors))
            raise ValueError(f"Expected the tensors of a {kind} in {path}, but got {names}.") from error

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Posterior":
        """Return the same belief on another device, or in another dtype."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        return self._remade(**{name: moved(tensor) for name, tensor in self.tensors().items()})

    def detach(self) -> "Posterior":
        """Return the same belief without a gradient."""
        return self._remade(**{name: tensor.detach() for name, tensor in self.tensors().items()})

    def __getitem__(self, index: int) -> "Posterior":
        """Choose one belief of a batch."""
        if not self.batch_shape:
            raise TypeError("Expected a batch of beliefs to choose from, but this is a single one. Use it as it is.")
        return self._chosen(index)

    def _chosen(self, index: int) -> "Posterior":
        return self._remade(**{name: tensor[index] for name, tensor in self.tensors().items()})

    def _remade(self, **tensors: Tensor) -> "Posterior":
        make: Callable[..., Posterior] = type(self)
        return make(**tensors, convergence=self.convergence)

    def __repr__(self) -> str:
        batch = f"batch={self.batch_shape}, " if self.batch_shape else ""
        return f"{type(self).__name__}({batch}nodes={self.num_nodes}, classes={self.num_classes}{self._more()})"

    def _more(self) -> str:
        """Say what else is worth knowing of this kind."""
        return ""


def check_node_shape(node: Tensor, name: str) -> None:
    """Refuse what has no dimensions of nodes and classes."""
    if node.ndim < 2 or node.shape[-1] == 0:
        raise ValueError(f"Expected {name} of shape (nodes, classes), but got shape {tuple(node.shape)}.")
