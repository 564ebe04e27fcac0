"""Conformal sets of label pairs, with a guarantee for the test pairs of a matching."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.conversion import EdgesLike, Names, as_edges, as_mask
from edgewise.data.edges import EdgeLookup, greedy_matching, pair_keys, undirected_edges
from edgewise.decisions.conformal_scores import (
    CPU,
    Coverage,
    calibration_labels,
    check_alpha,
    coverage_by_group,
    degree_limits,
    edges_of_data,
    group_elements,
    group_names,
    group_thresholds,
    label_scores,
    labels_of_pairs,
    measure_coverage,
    private_generator,
    thresholds_of_elements,
    uniform_numbers,
    warn_of_used_nodes,
)
from edgewise.decisions.conformal_selection import PairSelection, benjamini_hochberg, conformal_p_values
from edgewise.decisions.events import check_events, pair_beliefs
from edgewise.decisions.predict import check_pairs
from edgewise.files.tensors import read_tensors, write_tensors
from edgewise.metrics.intervals import resampled_fraction_interval
from edgewise.posterior import Belief, PairwisePosterior, Posterior, as_posterior
from edgewise.posterior.belief import MODULES, describe_posterior, labels_of_sets, restore_posterior
from edgewise.representation import changed_options, shorten
from edgewise.suggestions import suggest_keywords
from edgewise.validation import ArrayLike, check_option, check_seed, check_whole_number

PairScore = Literal["thr", "aps"]
PairTrait = Literal["agree", "predicted_class", "degree", "same_label"]
CHUNK_ELEMENTS = 1 << 19  # entries of joints in memory at once, to stay in the cache
ROUNDING = 1e-12  # P(same) of a pair depends on the other pairs of its chunk by so much, and ties must stay ties
FORMAT = "edgewise conformal pairs 1"
TENSORS = ("thresholds", "same_thresholds", "matching", "calibration", "test", "labels", "degree")


@suggest_keywords
@dataclass(frozen=True)
class ConformalPairs:
    """Sets of label pairs that hold both true labels of a test pair with probability at least 1 - alpha.

    Edges share nodes, so they are not exchangeable. The guarantee is therefore for the edges of a random matching, in
    which no two edges share a node. The matching is drawn on the graph of calibration and test nodes together, without
    their labels and without their roles. Its edges between calibration nodes give the threshold. The guarantee holds
    for its edges between test nodes, if calibration nodes were dealt uniformly at random from both, as
    ``ew.make_splits(y, calibration=0.25)`` does. For all other pairs the sets are the same function of the posterior,
    and their coverage can only be measured.

    Attributes
    ----------
    alpha
        The allowed probability of a set without the true pair of labels.
    score
        "thr" takes all label pairs above one joint probability and gives the smallest sets. "aps" takes the most
        probable ones up to a cumulative probability, randomized.
    groups
        "agree" (whether the predicted labels of both ends agree), "predicted_class" (of both ends, or different) or
        "degree" (the smaller degree of both ends, in quarters of the matching): each group has a threshold of its own,
        so the guarantee holds in each group (Mondrian). Or "same_label" (whether the true labels are the same): pairs
        of equal and of different labels have a threshold each, so the guarantee holds for pairs of nodes of the same
        class, and for pairs of nodes of different classes. Each group needs enough calibration pairs.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y, calibration=0.5)[0]
    >>> gcn = ew.GCN(max_epochs=30).fit(data, split, seed=0)
    >>> sets = ConformalPairs(alpha=0.1).fit(gcn, data, calibration=split.calibration, test=split.test)
    >>> sets.pair_sets(sets.test_pairs[:, :5]).shape
    torch.Size([5, 7, 7])
    >>> sets.matching_coverage(data.y).fraction > 0.8
    True
    """

    alpha: float = 0.1
    score: PairScore = "thr"
    groups: PairTrait | None = None

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_option("score", self.score, get_args(PairScore))
        if self.groups is not None:
            check_option("groups", self.groups, get_args(PairTrait))

    def fit(
        self,
        belief: Belief,
        data: Any,
        *,
        calibration: ArrayLike,
        test: ArrayLike,
        used: ArrayLike | None = None,
        seed: int = 0,
    ) -> "PairPredictionSets":
        """Draw the matching, and compute the thresholds from its pairs of calibration nodes.

        Parameters
        ----------
        belief
            Probabilities (N, C), a `Posterior`, or anything with ``posterior()``. It must not have used labels of
            calibration or test nodes.
        data
            A torch_geometric Data, or anything with ``y`` and ``edge_index``.
        calibration
            Mask (N,) of calibration nodes. No other labels are used.
        test
            Mask (N,) of test nodes. Their labels are not used, and may be -1.
        used
            Mask (N,) of the nodes that trained the model, or chose its epoch or a temperature. By default the training
            and validation nodes that a fitted model or calibrator of edgewise remembers, and for other beliefs
            ``data.train_mask`` and ``data.val_mask``, if there are any.
        seed
            Random seed of the matching and of "aps".

        Warns
        -----
        ExchangeabilityWarning
            If calibration or test nodes are among the ``used`` ones.

        Raises
        ------
        ValueError
            If there are fewer than 1/alpha - 1 pairs of calibration nodes in the matching, in total or in a group, or
            if a node is in both masks.
        """
        check_seed(seed)
        posterior = as_posterior(belief).detach().to(CPU)
        num_nodes = posterior.num_nodes
        is_calibration, y = calibration_labels(data, calibration, num_nodes, posterior.num_classes)
        is_test = as_mask(test, num_nodes, CPU, "test")
        _check_disjoint(is_calibration, is_test)
        warn_of_used_nodes(is_calibration, is_test, used, belief, data)
        edges = edges_of_data(data, num_nodes)
        if edges is None:
            raise ValueError(
                "Expected data with edge_index, because the guarantee is for edges of a matching, but got none. Pass "
                "the graph of the nodes."
            )
        matching = draw_matching(edges, is_calibration | is_test, seed)
        degree = torch.bincount(edges.flatten(), minlength=num_nodes)
        unfitted = torch.zeros(0, dtype=torch.float64)
        sets = PairPredictionSets(
            self, posterior, unfitted, unfitted, matching, is_calibration, is_test, y, degree, int(seed)
        )
        return sets._with_thresholds()


def draw_matching(edges: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"], seed: int) -> Int[Tensor, "2 pairs"]:
    """Draw a maximal matching of the edges with both ends in the mask, in random order. Edges are sorted and unique.

    >>> star = torch.tensor([[0, 0, 0], [1, 2, 3]])
    >>> draw_matching(star, torch.ones(4, dtype=torch.bool), seed=0).shape
    torch.Size([2, 1])
    """
    inside = edges[:, mask[edges].all(0)]
    rank = torch.from_numpy(private_generator(seed, 0).permutation(inside.shape[1]))
    return inside[:, greedy_matching(inside, rank, len(mask))]


@dataclass(frozen=True, eq=False, repr=False)
class PairPredictionSets:
    """Conformal sets of label pairs of any pairs of nodes. Returned by `ConformalPairs.fit`.

    Pairs are given in any form that `evaluate` accepts for edges. The set of the pair (j, i) is that of (i, j),
    transposed. If a pair is not an edge of a `PairwisePosterior`, its joint is the product of the marginals, as in
    `predict_edges`. Nothing is known of the coverage of pairs that are not edges: thresholds come from edges.

    Attributes
    ----------
    options
        The `ConformalPairs` that was fitted.
    posterior
        The posterior whose joints are used.
    thresholds
        The largest score in a set, in float64, one per group (one without groups). NaN for a group without pairs. The
        score of "thr" is minus the joint probability.
    same_thresholds
        The largest score in a set of the event "same label", which is the probability of the other answer.
    matching
        The matching (2, pairs), drawn without labels and roles.
    calibration
        The calibration nodes.
    test
        The test nodes.
    labels
        The labels of the calibration nodes, and -1 for all other nodes.
    degree
        The number of neighbors of each node.
    seed
        The random seed of the matching and of "aps".
    """

    options: ConformalPairs
    posterior: Posterior
    thresholds: Float[Tensor, " groups"]
    same_thresholds: Float[Tensor, " groups"]
    matching: Int[Tensor, "2 pairs"]
    calibration: Bool[Tensor, " nodes"]
    test: Bool[Tensor, " nodes"]
    labels: Int[Tensor, " nodes"]
    degree: Int[Tensor, " nodes"]
    seed: int

    @property
    def calibration_pairs(self) -> Int[Tensor, "2 pairs"]:
        """The pairs of the matching with both ends in calibration, which give the thresholds."""
        return self.matching[:, self.calibration[self.matching].all(0)]

    @property
    def test_pairs(self) -> Int[Tensor, "2 pairs"]:
        """The pairs of the matching with both ends in test, for which the guarantee holds."""
        return self.matching[:, self.test[self.matching].all(0)]

    # Sets

    def pair_sets(self, pairs: EdgesLike) -> Bool[Tensor, "pairs classes classes"]:
        """Return which pairs of labels are in the set of each pair of nodes. `iter_pair_sets` needs less memory."""
        num_classes = self.posterior.num_classes
        parts = [*self.iter_pair_sets(pairs)]
        return torch.cat([torch.zeros(0, num_classes, num_classes, dtype=torch.bool), *parts])

    def iter_pair_sets(self, pairs: EdgesLike) -> Iterator[Bool[Tensor, "pairs classes classes"]]:
        """Yield the sets of a few thousand pairs at a time, in order."""
        ends, num_classes = self._check(pairs), self.posterior.num_classes
        for part in self._chunks(ends):
            sets = self._sets(ends[:, part]).view(-1, num_classes, num_classes)
            backward = (ends[0, part] > ends[1, part]).nonzero().squeeze(1)
            sets[backward] = sets[backward].transpose(1, 2)
            yield sets

    def contains(self, pairs: EdgesLike, labels: ArrayLike) -> Bool[Tensor, " pairs"]:
        """Return whether the set of each pair holds its labels (2, pairs). For labels y of all nodes pass y[pairs]."""
        ends, num_classes = self._check(pairs), self.posterior.num_classes
        chosen = labels_of_sets(labels, ends, self.posterior.num_nodes, num_classes, "pairs")
        low, high = torch.where(ends[0] > ends[1], chosen.flip(0), chosen)
        entry, found = low * num_classes + high, torch.empty(ends.shape[1], dtype=torch.bool)
        for part in self._chunks(ends):
            found[part] = self._sets(ends[:, part]).gather(1, entry[part, None]).squeeze(1)
        return found

    def sizes(self, pairs: EdgesLike) -> Int[Tensor, " pairs"]:
        """Return the number of label pairs in each set."""
        ends = self._check(pairs)
        sizes = torch.empty(ends.shape[1], dtype=torch.int32)
        for part in self._chunks(ends):
            torch.sum(self._sets(ends[:, part]), 1, dtype=torch.int32, out=sizes[part])
        return sizes

    def same_label_sets(self, pairs: EdgesLike) -> Bool[Tensor, "pairs 2"]:
        """Return whether "no" (column 0) and "yes" (column 1) are in the set of the event "same label".

        The event has a threshold of its own, and its set holds the true answer with probability at least 1 - alpha for
        the pairs of the guarantee. The more probable answer is always in the set: {no}, {yes}, or both.
        """
        ends = self._check(pairs)
        scores = self._same_scores(ends)
        limits = self._limits(self.same_thresholds, ends, torch.tensor([False, True]))
        return (scores <= limits + ROUNDING) | (scores == scores.amin(1, keepdim=True))

    # Coverage

    def matching_coverage(self, y: ArrayLike) -> Coverage:
        """Return the coverage of the test pairs of the matching, which is at least 1 - alpha in expectation."""
        return measure_coverage(*self._covered(self.test_pairs, y))

    def coverage_by(self, by: PairTrait, y: ArrayLike) -> dict[str, Coverage]:
        """Return the coverage of groups of the test pairs of the matching.

        ``by`` is "agree", "predicted_class", "degree" or "same_label", as in `ConformalPairs`. The guarantee holds in
        each group only if ``groups`` of the options is this trait.
        """
        check_option("by", by, get_args(PairTrait))
        labels = labels_of_pairs(y, self.test_pairs, self.posterior.num_nodes, self.posterior.num_classes)
        groups = self._groups(by, self.test_pairs, labels)
        return coverage_by_group(*self._covered(self.test_pairs, y), groups, self._group_names(by))

    def other_coverage(self, y: ArrayLike, edge_index: EdgesLike, *, n_resamples: int = 400, seed: int = 0) -> Coverage:
        """Measure the coverage of the edges between test nodes that are not in the matching.

        They have no guarantee: they share nodes, and a node counts as often as it has edges. The interval comes from
        resampled nodes, as in `evaluate`.
        """
        check_whole_number("n_resamples", n_resamples, 1, 2**31 - 1)
        check_seed(seed)
        num_nodes = self.posterior.num_nodes
        edges = undirected_edges(as_edges(edge_index, num_nodes, CPU).long(), num_nodes)
        is_matched = torch.isin(pair_keys(edges, num_nodes), pair_keys(self.matching, num_nodes))
        others = edges[:, self.test[edges].all(0) & ~is_matched]
        covered, sizes = self._covered(others, y)
        interval = resampled_fraction_interval(covered, others, self.test, n_resamples, 0.95, seed)
        return replace(measure_coverage(covered, sizes), interval=interval)

    def _covered(
        self, pairs: Int[Tensor, "2 pairs"], y: ArrayLike
    ) -> tuple[Bool[Tensor, " pairs"], Int[Tensor, " pairs"]]:
        num_nodes, num_classes = self.posterior.num_nodes, self.posterior.num_classes
        labels = labels_of_pairs(y, pairs, num_nodes, num_classes)
        return self.contains(pairs, labels), self.sizes(pairs)

    # Selection

    def select(self, event: str, fdr: float) -> PairSelection:
        """Select test pairs of the matching for which an event occurs, such as "same" or "both_correct".

        The expected fraction of selected pairs for which it does not occur is at most ``fdr``. Each pair has a
        conformal p-value from the calibration pairs, and the Benjamini-Hochberg procedure selects (Jin and Candès
        2023).

        Parameters
        ----------
        event
            An event of `predict_edges` by name.
        fdr
            The requested false discovery rate, such as 0.1.
        """
        classes = [*map(str, range(self.posterior.num_classes))]
        (checked,) = check_events((event,), self.posterior.num_classes, classes)
        # All pairs at once, so that even rounding does not depend on the roles of their nodes.
        probability = pair_beliefs(self.posterior, self.matching, (checked,)).event_probability[0]
        known, among = (probability[mask[self.matching].all(0)].numpy() for mask in (self.calibration, self.test))
        pairs = self.calibration_pairs
        happened = checked.outcomes(self.labels[pairs], self.predicted[pairs])
        p_values = conformal_p_values(known, happened, among)
        selected = benjamini_hochberg(p_values, fdr)
        num_classes = self.posterior.num_classes
        return PairSelection(checked, fdr, self.test_pairs, among, p_values, selected, self.predicted, num_classes)

    # Other beliefs and files

    def apply(self, belief: Belief) -> "PairPredictionSets":
        """Return the sets of another belief on the same nodes with the same thresholds, which has no guarantee."""
        posterior = as_posterior(belief).detach().to(CPU)
        expected, shape = tuple(self.posterior.node.shape), tuple(posterior.node.shape)
        if shape != expected:
            raise ValueError(
                f"Expected a belief of shape {expected}, as in the fit, but got {shape}. Fit conformal sets to it."
            )
        return replace(self, posterior=posterior)

    def save(self, path: Path | str) -> None:
        """Write thresholds, matching, options and posterior to a safetensors file."""
        tensors = {name: getattr(self, name) for name in TENSORS}
        tensors |= {f"posterior/{name}": tensor for name, tensor in self.posterior.tensors().items()}
        metadata = {"format": FORMAT, "options": json.dumps(asdict(self.options)), "seed": str(self.seed)}
        write_tensors(path, tensors, metadata | describe_posterior(self.posterior))

    @staticmethod
    def load(path: Path | str) -> "PairPredictionSets":
        """Read a file written by `save`."""
        expected = {"format": [FORMAT], "kind": list(MODULES)}
        tensors, metadata = read_tensors(path, "file of sets", "PairPredictionSets.save", expected)
        try:
            of_posterior = {name: t for name, t in tensors.items() if name.startswith("posterior/")}
            own = {name: t for name, t in tensors.items() if name not in of_posterior}
            posterior = restore_posterior({n.removeprefix("posterior/"): t for n, t in of_posterior.items()}, metadata)
            options = ConformalPairs(**json.loads(metadata["options"]))
            return PairPredictionSets(options=options, posterior=posterior, seed=int(metadata["seed"]), **own)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"Expected complete conformal sets in {path}, but reading failed: {error}.") from error

    def __repr__(self) -> str:
        return shorten(
            f"PairPredictionSets({changed_options(self.options)}, calibration pairs={self.calibration_pairs.shape[1]}, "
            f"test pairs={self.test_pairs.shape[1]})"
        )

    # Scores

    @cached_property
    def predicted(self) -> Int[Tensor, " nodes"]:
        """The most probable label of each node."""
        return self.posterior.node.argmax(1)

    @cached_property
    def _limits_of_degree(self) -> Int[Tensor, " limits"]:
        return degree_limits(self.degree[self.matching].amin(0))

    @cached_property
    def _lookup(self) -> EdgeLookup | None:
        if not isinstance(self.posterior, PairwisePosterior):
            return None
        return EdgeLookup(self.posterior.edge_index, self.posterior.num_nodes)

    @cached_property
    def _is_same(self) -> Bool[Tensor, " entries"]:
        """Whether both labels of an entry of a flattened joint are the same."""
        return torch.eye(self.posterior.num_classes, dtype=torch.bool).flatten()

    @cached_property
    def _uniform(self) -> Float[Tensor, " nodes"]:
        return uniform_numbers(self.seed, self.posterior.num_nodes)

    def _with_thresholds(self) -> "PairPredictionSets":
        """Return the sets with thresholds from the calibration pairs."""
        pairs, by, names = self.calibration_pairs, self.options.groups, self._group_names(self.options.groups)
        labels = self.labels[pairs]
        groups = self._groups(by, pairs, labels)
        # Groups by true labels occur in each set. Whether other groups occur depends on predictions and degrees.
        others = self._is_same.unique().long() if by == "same_label" else self._groups(by, self.test_pairs)
        occurring = torch.cat([groups, others])
        if not len(occurring):
            occurring = torch.zeros(1, dtype=torch.long)  # too few pairs, which raises
        entry = labels[0] * self.posterior.num_classes + labels[1]
        scores = [self._scores(pairs[:, part]).gather(1, entry[part, None]) for part in self._chunks(pairs)]
        of_pairs = torch.cat([torch.zeros(0, 1), *scores]).squeeze(1).double()
        of_same = self._same_scores(pairs).gather(1, (labels[0] == labels[1]).long()[:, None]).squeeze(1)
        thresholds, same_thresholds = (
            group_thresholds(chosen, groups, occurring, names, self.options.alpha, "pairs")
            for chosen in (of_pairs, of_same)
        )
        return replace(self, thresholds=thresholds, same_thresholds=same_thresholds)

    def _check(self, pairs: EdgesLike) -> Int[Tensor, "2 pairs"]:
        return check_pairs(pairs, Names(self.posterior.num_nodes))

    def _chunks(self, pairs: Int[Tensor, "2 pairs"]) -> Iterator[slice]:
        step = max(1, CHUNK_ELEMENTS // self.posterior.num_classes**2)
        return (slice(lo, min(lo + step, pairs.shape[1])) for lo in range(0, pairs.shape[1], step))

    def _sets(self, pairs: Int[Tensor, "2 pairs"]) -> Bool[Tensor, "pairs entries"]:
        """Return the flattened sets of a chunk of pairs, for the order (lower node, higher node) of each."""
        scores = self._scores(pairs)
        return scores <= self._limits(self.thresholds, pairs, self._is_same).to(scores.dtype)

    def _scores(self, pairs: Int[Tensor, "2 pairs"]) -> Float[Tensor, "pairs entries"]:
        ends = torch.stack([torch.minimum(*pairs), torch.maximum(*pairs)])
        joint = self._joint(ends)
        if self.options.score == "thr":
            return joint.neg_()  # a new tensor; 1 - joint would round small probabilities
        # Pairs of a matching share no nodes, so these numbers are independent and uniform too.
        return label_scores(joint.double(), self.options.score, self._uniform[ends].sum(0) % 1.0)

    def _joint(self, ends: Int[Tensor, "2 pairs"]) -> Float[Tensor, "pairs entries"]:
        if self._lookup is None:
            return self.posterior.marginal(ends).flatten(1)
        is_edge = self._lookup.find(ends).edge >= 0
        joint = torch.empty(ends.shape[1], self.posterior.num_classes**2, dtype=self.posterior.node.dtype)
        joint[is_edge] = self.posterior.marginal(ends[:, is_edge]).flatten(1)
        start, end = self.posterior.node[ends[:, ~is_edge]]
        joint[~is_edge] = (start[:, :, None] * end[:, None, :]).flatten(1)
        return joint

    def _same_scores(self, pairs: Int[Tensor, "2 pairs"]) -> Float[Tensor, "pairs 2"]:
        """Return the probability of the other answer, for the answers no and yes."""
        events = check_events(("same",), self.posterior.num_classes, ())
        same = pair_beliefs(self.posterior, pairs, events).event_probability[0]
        return torch.stack([same, 1.0 - same], dim=1)

    def _limits(
        self, thresholds: Float[Tensor, " groups"], pairs: Int[Tensor, "2 pairs"], is_same: Bool[Tensor, " entries"]
    ) -> Float[Tensor, "#pairs #entries"]:
        """Return the threshold of each pair or, for groups by true labels, of each entry."""
        by = self.options.groups
        if by == "same_label":
            return thresholds[is_same.long()][None]
        return thresholds_of_elements(thresholds, self._groups(by, pairs), self._group_names(by))[:, None]

    def _groups(
        self, by: PairTrait | None, pairs: Int[Tensor, "2 pairs"], labels: Int[Tensor, "2 pairs"] | None = None
    ) -> Int[Tensor, " pairs"]:
        """Return the group of each pair. Only groups by true labels need the labels."""
        if by == "same_label" and labels is not None:
            return (labels[0] == labels[1]).long()
        num_classes = self.posterior.num_classes
        return group_elements(by, pairs, self.predicted, num_classes, self.degree, self._limits_of_degree)

    def _group_names(self, by: PairTrait | None) -> list[str]:
        return group_names(by, self.posterior.num_classes, self._limits_of_degree)


def _check_disjoint(calibration: Bool[Tensor, " nodes"], test: Bool[Tensor, " nodes"]) -> None:
    if bool((both := calibration & test).any()):
        raise ValueError(
            f"Expected disjoint calibration and test nodes, but node {int(both.nonzero()[0])} is in both. Pass "
            "test & ~calibration."
        )
