"""Conformal sets of labels for nodes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.conversion import as_labels, as_mask
from edgewise.decisions.conformal_scores import (
    CPU,
    Coverage,
    Score,
    calibration_labels,
    check_alpha,
    check_known_labels,
    coverage_by_group,
    degree_limits,
    edges_of_data,
    group_elements,
    group_names,
    group_thresholds,
    label_scores,
    thresholds_of_elements,
    uniform_numbers,
    warn_of_used_nodes,
)
from edgewise.files.tensors import read_tensors, write_tensors
from edgewise.posterior import Belief, as_posterior
from edgewise.representation import changed_options, shorten
from edgewise.suggestions import suggest_keywords
from edgewise.validation import ArrayLike, check_number, check_option, check_seed, check_whole_number

NodeTrait = Literal["predicted_class", "degree"]
FORMAT = "edgewise conformal nodes 1"


@suggest_keywords
@dataclass(frozen=True)
class ConformalNodes:
    """Sets of labels that hold the true label of a test node with probability at least 1 - alpha (Vovk et al. 2005).

    The probability is over the draw of the calibration nodes, which must be dealt uniformly at random from calibration
    and test nodes together, as ``ew.make_splits(y, calibration=0.25)`` does. The probabilities of the belief need not
    be right. They decide how large the sets are.

    Attributes
    ----------
    alpha
        The allowed probability of a set without the true label.
    score
        "thr" takes all labels above one probability and gives the smallest sets (Sadinle et al. 2019). "aps" takes the
        most probable labels up to a cumulative probability, randomized, so that sets adapt to how hard a node is
        (Romano et al. 2020). "raps" is "aps" with a penalty on large sets (Angelopoulos et al. 2021).
    diffusion
        λ from 0 to 1: the score of a label is (1 - λ) s_i + λ times the mean score of the neighbors (DAPS, Zargarbashi
        et al. 2023). The mean of a node without neighbors is 0.
    penalty
        Penalty of "raps" for each label beyond the ``k_reg`` most probable.
    k_reg
        Number of labels without a penalty.
    groups
        "predicted_class" or "degree" (quarters of the nodes): each group has a threshold of its own, so the guarantee
        holds in each group (Mondrian). Each group needs enough calibration nodes.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y, calibration=0.25)[0]
    >>> gcn = ew.GCN(max_epochs=30).fit(data, split, seed=0)
    >>> sets = ConformalNodes(alpha=0.1).fit(gcn, data, calibration=split.calibration)
    >>> sets.sets.shape, sets.coverage(data.y, split.test) > 0.85
    (torch.Size([2708, 7]), True)
    """

    alpha: float = 0.1
    score: Score = "thr"
    diffusion: float = 0.0
    penalty: float = 0.01
    k_reg: int = 1
    groups: NodeTrait | None = None

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_option("score", self.score, get_args(Score))
        check_number("diffusion", self.diffusion, least=0, most=1)
        check_number("penalty", self.penalty, least=0)
        check_whole_number("k_reg", self.k_reg, 0, 2**31 - 1)
        if self.groups is not None:
            check_option("groups", self.groups, get_args(NodeTrait))

    def fit(
        self, belief: Belief, data: Any, *, calibration: ArrayLike, used: ArrayLike | None = None, seed: int = 0
    ) -> "NodePredictionSets":
        """Compute the threshold from the labels of the calibration nodes, and the sets of all nodes.

        Parameters
        ----------
        belief
            Probabilities (N, C), a `Posterior`, or anything with ``posterior()``. It must not have used labels of
            calibration or test nodes.
        data
            A torch_geometric Data, or anything with ``y``. Diffusion and groups by degree need ``edge_index``.
        calibration
            Mask (N,) of calibration nodes. No other labels are used.
        used
            Mask (N,) of the nodes that trained the model, or chose its epoch or a temperature. By default the training
            and validation nodes that a fitted model or calibrator of edgewise remembers, and for other beliefs
            ``data.train_mask`` and ``data.val_mask``, if there are any.
        seed
            Random seed of "aps" and "raps".

        Warns
        -----
        ExchangeabilityWarning
            If calibration nodes are among the ``used`` ones.

        Raises
        ------
        ValueError
            If there are fewer than 1/alpha - 1 calibration nodes, in total or in a group.
        """
        check_seed(seed)
        node = _probabilities(belief)
        mask, y = calibration_labels(data, calibration, *node.shape)
        warn_of_used_nodes(mask, None, used, belief, data)
        edges = edges_of_data(data, len(node))
        degree = None if edges is None else torch.bincount(edges.flatten(), minlength=len(node))
        limits = None if degree is None else degree_limits(degree)
        scores = self._scores(node, edges, seed)
        groups = group_elements(self.groups, *_node_traits(node, degree, limits))
        names = group_names(self.groups, node.shape[1], limits)
        thresholds = group_thresholds(scores[mask, y[mask]], groups[mask], groups, names, self.alpha, "nodes")
        sets = scores <= thresholds_of_elements(thresholds, groups, names)[:, None]
        return NodePredictionSets(self, sets, thresholds, mask, node.argmax(1), degree, limits, seed)

    def _scores(
        self, node: Float[Tensor, "nodes classes"], edges: Int[Tensor, "2 edges"] | None, seed: int
    ) -> Float[Tensor, "nodes classes"]:
        scores = label_scores(node, self.score, uniform_numbers(seed, len(node)), self.penalty, self.k_reg)
        if not self.diffusion:
            return scores
        if edges is None:
            raise ValueError(
                "Expected data with edge_index, because diffusion uses the graph, but got none. Pass the graph of the "
                "nodes, or diffusion=0."
            )
        total = torch.zeros_like(scores)
        for ends in (edges, edges.flip(0)):
            total.index_add_(0, ends[0], scores[ends[1]])
        degree = torch.bincount(edges.flatten(), minlength=len(node)).clamp(min=1)
        return (1 - self.diffusion) * scores + self.diffusion * total / degree[:, None]


@dataclass(frozen=True, eq=False, repr=False)
class NodePredictionSets:
    """Conformal sets of labels of all nodes. Returned by `ConformalNodes.fit`.

    Attributes
    ----------
    options
        The `ConformalNodes` that was fitted.
    sets
        Booleans (N, C): whether the set of a node holds a label.
    thresholds
        The largest score in a set, in float64, one per group (one without groups). NaN for a group without nodes.
    calibration
        The calibration nodes.
    predicted
        The most probable label of each node.
    degree
        The number of neighbors of each node, or None without a graph.
    limits
        The largest degree of each group by degree but the last, or None without a graph.
    seed
        The random seed of "aps" and "raps".
    """

    options: ConformalNodes
    sets: Bool[Tensor, "nodes classes"]
    thresholds: Float[Tensor, " groups"]
    calibration: Bool[Tensor, " nodes"]
    predicted: Int[Tensor, " nodes"]
    degree: Int[Tensor, " nodes"] | None
    limits: Int[Tensor, " limits"] | None
    seed: int

    @property
    def sizes(self) -> Int[Tensor, " nodes"]:
        """The number of labels in each set."""
        return self.sets.sum(1)

    def coverage(self, y: ArrayLike, mask: ArrayLike) -> float:
        """Return the fraction of the nodes in the mask, such as the test nodes, whose set holds the true label."""
        return self._coverage(None, y, mask).get("all", Coverage(0, 0, np.nan, (0.0, 1.0))).fraction

    def coverage_by(self, by: NodeTrait, y: ArrayLike, mask: ArrayLike) -> dict[str, Coverage]:
        """Return the `Coverage` of groups of the nodes in the mask, by "predicted_class" or "degree".

        The guarantee holds in each group only if ``groups`` of the options is this trait.
        """
        check_option("by", by, get_args(NodeTrait))
        return self._coverage(by, y, mask)

    def _coverage(self, by: NodeTrait | None, y: ArrayLike, mask: ArrayLike) -> dict[str, Coverage]:
        num_nodes, num_classes = self.sets.shape
        chosen = as_mask(mask, num_nodes, CPU)
        labels = check_known_labels(as_labels(y, num_nodes, "nodes", CPU).long(), chosen, num_classes, "mask")
        covered = self.sets[chosen, labels[chosen]]
        nodes = chosen.nonzero().T
        groups = group_elements(by, nodes, self.predicted, num_classes, self.degree, self.limits)
        return coverage_by_group(covered, self.sizes[chosen], groups, group_names(by, num_classes, self.limits))

    def apply(self, belief: Belief, data: Any = None) -> "NodePredictionSets":
        """Return the sets of another belief with the same thresholds. Diffusion and degrees need its graph ``data``.

        The guarantee carries over only if the other nodes are exchangeable with the calibration nodes.
        """
        node, num_classes = _probabilities(belief), self.sets.shape[1]
        if node.shape[1] != num_classes:
            raise ValueError(
                f"Expected probabilities of {num_classes} classes, as in the fit, but got {node.shape[1]} columns. Fit "
                "conformal sets to this belief."
            )
        edges = None if data is None else edges_of_data(data, len(node))
        degree = None if edges is None else torch.bincount(edges.flatten(), minlength=len(node))
        groups = group_elements(self.options.groups, *_node_traits(node, degree, self.limits))
        names = group_names(self.options.groups, num_classes, self.limits)
        scores = self.options._scores(node, edges, self.seed)
        return replace(
            self,
            sets=scores <= thresholds_of_elements(self.thresholds, groups, names)[:, None],
            calibration=self.calibration if len(node) == len(self.sets) else torch.zeros(len(node), dtype=torch.bool),
            predicted=node.argmax(1),
            degree=degree,
        )

    def save(self, path: Path | str) -> None:
        """Write sets, thresholds and options to a safetensors file."""
        names = ("sets", "thresholds", "calibration", "predicted", "degree", "limits")
        tensors = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        metadata = {"format": FORMAT, "options": json.dumps(asdict(self.options)), "seed": str(self.seed)}
        write_tensors(path, tensors, metadata)

    @staticmethod
    def load(path: Path | str) -> "NodePredictionSets":
        """Read a file written by `save`."""
        tensors, metadata = read_tensors(path, "file of sets", "NodePredictionSets.save", {"format": [FORMAT]})
        try:
            options = ConformalNodes(**json.loads(metadata["options"]))
            optional: Mapping[str, Any] = {"degree": None, "limits": None}
            return NodePredictionSets(options=options, seed=int(metadata["seed"]), **{**optional, **tensors})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"Expected complete conformal sets in {path}, but reading failed: {error}.") from error

    def __repr__(self) -> str:
        return shorten(
            f"NodePredictionSets({changed_options(self.options)}, nodes={len(self.sets)}, "
            f"calibration={int(self.calibration.sum())}, mean size={float(self.sizes.double().mean()):.2f})"
        )


def _probabilities(belief: Belief) -> Float[Tensor, "nodes classes"]:
    """Return the node marginals in float64 on the CPU."""
    return as_posterior(belief).node.detach().cpu().double()


def _node_traits(
    node: Float[Tensor, "nodes classes"], degree: Int[Tensor, " nodes"] | None, limits: Int[Tensor, " limits"] | None
) -> tuple[Tensor, Tensor, int, Tensor | None, Tensor | None]:
    """Return the arguments of `group_elements` for all nodes."""
    return torch.arange(len(node))[None], node.argmax(1), node.shape[1], degree, limits
