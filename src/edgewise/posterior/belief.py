"""Base class of posteriors.

The tensors of a posterior are checked once, on construction. Leading dimensions before the nodes are a batch of
posteriors on the same graph.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.conversion import EdgesLike, as_columns, as_edges, as_node_sets
from edgewise.files.tensors import read_tensors, write_tensors
from edgewise.posterior.diagnostics import ClampingCost, Convergence, Sample
from edgewise.validation import ArrayLike, as_tensor, check_integers, check_seed, check_whole_number

MAX_SAMPLES = 10**9
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

    @abstractmethod
    def _sample(self, number: int, rng: np.random.Generator) -> Sample:
        """Draw labelings on the CPU."""

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

    def joint(self, edge_index: EdgesLike, *, clamp: bool = False) -> Float[Tensor, "*batch edges classes classes"]:
        """Return P(y_i = l, y_j = m) of each pair (i, j). For i = j it is diagonal, with the marginal of node i.

        A `PairwisePosterior` on a graph with loops has joints of its edges. With ``clamp=True`` it computes those of
        other pairs too, see there. All other posteriors have joints of any pair.
        """
        pairs = as_edges(edge_index, self.num_nodes, self.node.device).long()
        compute = self._clamped_joints if clamp else self._compute_joints
        is_loop = pairs[0] == pairs[1]
        if not bool(is_loop.any()):
            return compute(pairs)
        joints = self.node.new_zeros(*self.batch_shape, pairs.shape[1], self.num_classes, self.num_classes)
        joints[..., ~is_loop, :, :] = compute(pairs[:, ~is_loop])
        joints[..., is_loop, :, :] = self.node[..., pairs[0, is_loop], :].diag_embed()
        return joints

    def clamping_cost(self, edge_index: EdgesLike) -> ClampingCost:
        """Estimate the cost of ``joint(edge_index, clamp=True)`` by timing a few sweeps; nothing if no pair needs it.

        Examples
        --------
        >>> from edgewise.posterior import IndependentPosterior
        >>> print(IndependentPosterior(torch.full((4, 2), 0.5)).clamping_cost(torch.tensor([[0], [3]])))
        No pair needs clamping.
        """
        return self._clamping_cost(as_edges(edge_index, self.num_nodes, self.node.device).long())

    def _clamping_cost(self, pairs: Int[Tensor, "2 pairs"]) -> ClampingCost:
        return ClampingCost(0, 0, 0.0)

    def _clamped_joints(self, pairs: Int[Tensor, "2 pairs"]) -> Float[Tensor, "*batch pairs classes classes"]:
        return self._compute_joints(pairs)

    def sample(self, n: int, seed: int = 0) -> Sample:
        """Draw ``n`` labelings of all nodes.

        The draws are exact for independent nodes, mixtures, and fields on a forest or on a graph of small width, where
        `exact_marginals` works. For other fields they are states of Gibbs chains, with diagnostics. If the joints are
        not those of a field, as after calibration, they are drawn on a spanning forest of the graph, which keeps all
        node marginals. ``sampling`` states the method. The same seed gives the same labels, on any number of threads.

        Returns
        -------
        Sample
            The labels (n, N) as integers, and a `Sampling`.

        Examples
        --------
        >>> import edgewise as ew
        >>> triangle = ew.PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1, 0], [1, 2, 2]]), 9 * torch.eye(2))
        >>> posterior, convergence = ew.sum_product(triangle)
        >>> labels, sampling = posterior.sample(4, seed=2)
        >>> labels.tolist(), sampling.method
        ([[1, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0]], 'elimination')
        """
        check_whole_number("n", n, 1, MAX_SAMPLES)
        check_seed(seed)
        check_not_batch(self)
        with torch.no_grad():
            labels, sampling = self._sample(int(n), np.random.default_rng(seed))
        return Sample(labels.to(self.node.device), sampling)

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

    def log_prob(self, nodes: ArrayLike, labels: ArrayLike) -> Float[Tensor, "*batch sets"]:
        """Return log P(y_i = label of i for all i in S) of each set S, in float64, and -inf for impossible labels.

        It equals the logarithm of an entry of `marginal`, without the other C^k - 1 entries, so that sets may be
        larger. There is no limit for independent nodes, mixtures, `exact_marginals`, and a `PairwisePosterior` on a
        forest. If the graph of a `PairwisePosterior` has loops, the graph inside a set must have a small treewidth;
        small sets of sparse graphs usually have one. `describe_sets` says what is ignored.

        Parameters
        ----------
        nodes
            Node sets (k, M), as in `marginal`.
        labels
            Their labels (k, M).

        Examples
        --------
        >>> from edgewise.posterior import IndependentPosterior
        >>> coins = IndependentPosterior(torch.full((9, 2), 0.5))
        >>> coins.log_prob(torch.arange(9)[:, None], torch.zeros(9, 1, dtype=torch.long))  # -9 log 2
        tensor([-6.2383], dtype=torch.float64)
        """
        sets = as_node_sets(nodes, self.num_nodes, self.node.device)
        return self._log_probs_in_chunks(sets, labels_of_sets(labels, sets, self.num_nodes, self.num_classes, "nodes"))

    def _log_probs_in_chunks(
        self, nodes: Int[Tensor, "set sets"], labels: Int[Tensor, "set sets"]
    ) -> Float[Tensor, "*batch sets"]:
        step = max(1, CHUNK_ELEMENTS // (len(nodes) * self._num_numbers * max(1, math.prod(self.batch_shape))))
        parts = zip(nodes.split(step, dim=1), labels.split(step, dim=1), strict=True)
        return torch.cat([self._log_probs(*part) for part in parts], dim=-1)

    @property
    def _num_numbers(self) -> int:
        """Number of temporary numbers per node of a set that `_log_probs` allocates."""
        return self.num_classes

    def _log_probs(self, nodes: Int[Tensor, "set sets"], labels: Int[Tensor, "set sets"]) -> Float[Tensor, "*b sets"]:
        """Return the log-probabilities of the labels of a chunk of sets, by default from their joints."""
        joints = self._compute_joints(nodes).double().flatten(-len(nodes))
        entry = torch.zeros_like(labels[0])
        for row in labels:
            entry = entry * self.num_classes + row
        return joints.gather(-1, entry.expand(joints.shape[:-1]).unsqueeze(-1)).squeeze(-1).log()

    def describe_sets(self, nodes: ArrayLike) -> str:
        """Return how `log_prob` computes the probabilities of node sets (k, M), and what it ignores.

        Examples
        --------
        >>> from edgewise.posterior import IndependentPosterior
        >>> IndependentPosterior(torch.full((4, 2), 0.5)).describe_sets(torch.tensor([[0], [1]]))
        'product of marginals'
        """
        return self._describe_sets(as_node_sets(nodes, self.num_nodes, self.node.device))

    def _describe_sets(self, nodes: Int[Tensor, "set sets"]) -> str:
        return "exact"

    def save(self, path: Path | str, *, calibrator: str | None = None) -> None:
        """Write the posterior to a safetensors file, with the name of the calibrator that made it, if any."""
        metadata = {"format": FORMAT, **describe_posterior(self)}
        if calibrator is not None:
            metadata["calibrator"] = calibrator
        write_tensors(path, self.tensors(), metadata)

    @staticmethod
    def load(path: Path | str) -> "Posterior":
        """Read a file that `save` wrote."""
        expected = {"format": [FORMAT], "kind": list(MODULES)}
        tensors, metadata = read_tensors(path, "posterior", "Posterior.save", expected)
        try:
            return restore_posterior(tensors, metadata)
        except TypeError as error:  # missing or unexpected tensors
            names = ", ".join(sorted(tensors))
            raise ValueError(f"Expected the tensors of a {metadata['kind']} in {path}, but got {names}.") from error

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


def describe_posterior(posterior: Posterior) -> dict[str, str]:
    """Return what a file holds of a posterior beside its tensors."""
    metadata = {"kind": type(posterior).__name__}
    if posterior.convergence is not None:
        metadata["convergence"] = posterior.convergence.to_json()
    if posterior.log_partition is not None:
        metadata["log_partition"] = json.dumps(posterior.log_partition.tolist())
    return metadata


def restore_posterior(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Posterior:
    """Build a posterior from its tensors and the result of `describe_posterior`."""
    convergence = Convergence.from_json(metadata["convergence"]) if "convergence" in metadata else None
    kind: Callable[..., Posterior] = getattr(import_module(MODULES[metadata["kind"]]), metadata["kind"])
    posterior = kind(**tensors, convergence=convergence)
    if "log_partition" in metadata:
        posterior.log_partition = torch.tensor(json.loads(metadata["log_partition"]), dtype=torch.float64)
    return posterior


def labels_of_sets(
    labels: ArrayLike, sets: Int[Tensor, "set sets"], num_nodes: int, num_classes: int, name: str
) -> Int[Tensor, "set sets"]:
    """Check the labels of the nodes of each set. ``name`` is the argument that holds the sets."""
    columns = as_tensor(as_columns(labels, num_nodes, "labels", size=None), "labels")
    chosen = check_integers(columns, "labels").long().to(sets.device)
    if chosen.shape != sets.shape or bool(((chosen < 0) | (chosen >= num_classes)).any()):
        values = f" with values from {int(chosen.min())} to {int(chosen.max())}" if chosen.numel() else ""
        raise ValueError(
            f"Expected labels from 0 to {num_classes - 1} in the shape of {name}, {tuple(sets.shape)}, but got shape "
            f"{tuple(chosen.shape)}{values}. For labels y of all nodes pass y[{name}]."
        )
    return chosen


def check_not_batch(posterior: Posterior) -> None:
    """Raise ValueError for a batch of posteriors."""
    if posterior.batch_shape:
        raise ValueError(
            f"Expected one posterior, but got a batch of shape {posterior.batch_shape}. Select one: posterior[b]."
        )


def check_node_shape(node: Tensor, name: str) -> None:
    """Raise ValueError unless a tensor has dimensions of nodes and classes."""
    if node.ndim < 2 or node.shape[-1] == 0:
        raise ValueError(f"Expected {name} of shape (nodes, classes), but got shape {tuple(node.shape)}.")
