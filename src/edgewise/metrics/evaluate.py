"""Evaluation of predictions on a graph."""

import math
from collections.abc import Mapping, Sequence
from typing import get_args

from jaxtyping import Int
from torch import Tensor

from edgewise.conversion import (
    EdgesLike,
    GraphLike,
    NameLike,
    as_name_array,
    as_node_sets,
    check_row_order,
    column_names,
)
from edgewise.data.edges import EdgeChoice
from edgewise.metrics.chance import compare_with_chance, posterior_of
from edgewise.metrics.collect import (
    Progress,
    ViewElements,
    collect_sums,
    elements_by_view,
    prepare,
    same_label_elements,
)
from edgewise.metrics.details import DetailOptions, allocate_keys, score_details
from edgewise.metrics.evaluation import Evaluation, EvaluationSettings, Intervals, Scored
from edgewise.metrics.group_sums import group_intervals, group_sums, mass_edge_tables
from edgewise.metrics.intervals import node_resampling_intervals
from edgewise.metrics.node_groups import check_grouping_names, node_groups
from edgewise.metrics.scores import Norm
from edgewise.metrics.scoring_input import Binning, Closed, Kind, ScoringInput, check_scoring_input
from edgewise.posterior import Belief, Posterior
from edgewise.small_samples import warn_small_sample
from edgewise.suggestions import suggest_keywords
from edgewise.validation import (
    ArrayLike,
    check_flag,
    check_number,
    check_option,
    check_seed,
    check_whole_number,
)


@suggest_keywords
def evaluate(
    probs: Belief,
    y: ArrayLike | GraphLike,
    edge_index: EdgesLike | None = None,
    *,
    mask: ArrayLike | None = None,
    edge_probs: ArrayLike | None = None,
    predictions: ArrayLike | None = None,
    class_names: NameLike | None = None,
    normalize: bool = False,
    n_bins: int = 15,
    binning: Kind = "width",
    norm: Norm = "l1",
    closed: Closed = "right",
    edge_choice: EdgeChoice = "both",
    same_label: bool = True,
    node_sets: ArrayLike | None = None,
    groups: Mapping[str, ArrayLike] | None = None,
    by: str | Sequence[str] | None = (),
    train: ArrayLike | None = None,
    decompose: bool = False,
    smooth: bool = False,
    classwise: bool = False,
    n_resamples: int = 0,
    chance: int = 0,
    confidence_level: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Score node probabilities, and the joint of the two ends of each edge, in four views.

    Parameters
    ----------
    probs
        Probabilities (N, C) with rows that sum to 1, not logits. The joint of an edge is then the product of the
        probabilities of its ends. Or a `Posterior`, which has its own joints, or an object with ``posterior()``, such
        as a fitted model. Like all arrays here, a tensor, a NumPy array, lists, or a pandas table or column.
    y
        True labels (N,), as column indices of ``probs``. Labels outside the mask may be -1 for unknown. Or a graph with
        labels and edges: a torch_geometric Data with ``y`` and ``edge_index`` or ``adj_t``, a DGL graph with node data
        ``y`` or ``label``, or a networkx graph with a node attribute of that name.
    edge_index
        Edges (2, E). An edge listed in both directions counts once, parallel edges count separately, and self-loops are
        ignored. Also a list of tuples, a table with two columns, a sparse N x N adjacency of scipy or torch, or a
        graph. Row k of ``probs`` belongs to the k-th of ``list(graph.nodes)`` of a networkx graph. If its nodes are the
        numbers 0, …, N - 1 in another order, an error says how to choose. By default the edges of the graph
        passed as ``y``. With labels only, nodes are scored, and all edge views are empty.
    mask
        Mask (N,) of the scored nodes, booleans or numbers 0 and 1. By default all nodes are scored.
    edge_probs
        Joints (E, C, C), where row e belongs to ``edge_index[:, e]``, so edges need an order and a direction: an
        adjacency, a set and an undirected networkx graph are refused. By default the product of the probabilities of
        the ends. If an edge is listed in both directions, the joint of the more frequent direction is scored, or that
        of (low, high) if both are equally frequent.
    predictions
        Predicted labels (N,), in any form that ``y`` may have, such as the most likely labeling of `map_labels`. By
        default the most probable label of each node. They determine what is correct: a node if its prediction is its
        true label, an edge or a node set if this holds for all its nodes. The confidence is then the probability of the
        predictions, p(ŷ_i) of a node and q(ŷ_i, ŷ_j) of an edge, while by default the confidence of a joint is its
        largest entry, whatever the predictions are. Accuracy and calibration error depend on predictions; NLL, Brier
        score and ``same_label`` do not. Predictions outside the mask may be -1 for unknown. With ``edge_choice`` "any"
        or "all", they may be -1 only where the true label is unknown.
    class_names
        Class of each column of ``probs``, text or integers (C,), such as ``clf.classes_`` of a scikit-learn classifier.
        Labels and predictions are looked up among them. Missing labels (None, NaN, "") are unknown. By default the
        columns of a pandas ``probs``. Labels that are numbers are column indices if the names are text.
    normalize
        Divide probabilities by the sum of their row. Use it for values rounded to a few decimals, whose rows sum to 1
        within 2%. Logits and percentages still raise ValueError.
    n_bins
        Number of confidence bins.
    binning
        Bins of equal "width", or of equal "mass". Bins of equal mass are separate for each view.
    norm
        Norm of the calibration error: the weighted mean of the gaps |accuracy - confidence| of the bins ("l1"), the
        root of their weighted mean square ("l2"), or their maximum ("max"). The field ``ece`` of the result holds the
        calibration error in this norm, and is the expected calibration error only for "l1".
    closed
        Side on which bins are closed, "right" or "left".
    edge_choice
        Score edges with "both" ends in the mask, with "any" end in the mask, or "all" edges. Edges with an unknown
        label are not scored.
    same_label
        Also score the event "both ends have the same label". This reads all classes of every edge, unlike the sixteen
        scores of the views. Pass False to leave it out.
    node_sets
        Also score M sets of k nodes, such as wedges or triangles, given as an index (k, M) or a list of tuples. A set
        counts as often as it is listed, if all its nodes are in the mask. ``edge_choice`` "any" or "all" applies as for
        edges. A `PairwisePosterior` with loops has joints of sets that its edges connect. k is arbitrary for
        independent nodes, and at most 6 for other posteriors.
    groups
        Also score groups of nodes, and the edges between them: arrays (N,) by the name of the grouping, integers of at
        least 0 or text. -1 and missing text mean no group. An edge belongs to the unordered pair of its ends' groups.
        Groups that are the true labels of the scored nodes are marked as ``conditions_on_outcome``.
    by
        Also score groups by "predicted_class", "degree" (0, 1, 2 to 3, 4 to 7, …, of all edges), "confidence" (in
        tenths) or "train_distance" (edges to the nearest training node: 0, 1, 2, more, or no path). An edge belongs to
        the smaller of its ends' groups, except for classes, where it belongs to their pair. "true_class" and
        "homophily", the fraction of a node's neighbors with known labels that share its label, depend on the true
        labels, so even a calibrated model has errors in these groups, as in agree and disagree.
    train
        Mask (N,) of the training nodes, for "train_distance".
    decompose
        Also split the Brier score and the log score of the event "the prediction is correct" into miscalibration,
        discrimination and uncertainty, and those of "same label": ``ev.edgewise.decomposition``, ``log_decomposition``
        and an isotonic reliability ``curve``, with a band if there are resamples. The forecast of an edge is
        q(ŷ_i, ŷ_j), even where its confidence is a larger entry of the joint. All confidences are needed at once: 8
        bytes per edge for the edges, and 8 for "same label".
    smooth
        Also compute the smooth ECE of all views and of "same label", see `smooth_ece`. This needs 8 more bytes per
        edge, while edges are split by agreement.
    classwise
        Also compute the calibration error of the event "label c" of nodes for each class c, with the same bins, in
        ``ev.nodewise.class_ece``, and their mean, ``ev.nodewise.classwise_ece``.
    n_resamples
        Number of resamples of the nodes for confidence intervals, or 0 for none. With fewer than 2 / (1 - level), 40
        for 95%, the intervals are too narrow, and a warning says so. They are too wide, by at most a factor √3, if few
        edges share nodes. The interval of a calibration error takes into account that noise raises the error: its lower
        bound is 0 if noise alone explains the error. The interval of a perfect model contains 0 in about 95% of cases
        or more, a little less often with ``norm="max"`` and few nodes.
    chance
        Number of labelings drawn from the posterior for ``ev.chance``, or 0 for none: what each score would be if the
        posterior were right, with p-values. 200 draws cost as much as 200 evaluations.
    confidence_level
        Nominal coverage of the intervals, and of the range of scores by chance.
    seed
        Random seed of the resamples and of the drawn labelings.
    progress
        Function called with (processed edges, all edges) from time to time. The event is scored in a second pass.

    Returns
    -------
    Evaluation
        The scores. ``print`` shows them as a table. An empty view has count 0 and NaN scores.

    Raises
    ------
    ValueError
        If an input is invalid. The message states the expected value, the value passed and how to fix it.

    Examples
    --------
    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> ev = evaluate(probs, torch.tensor([0, 0, 1]), torch.tensor([[0, 1], [1, 2]]), n_bins=1)
    >>> ev.edgewise.count, round(ev.edgewise.ece, 4), ev.agree.count
    (2, 0.36, 1)
    """
    bins = Binning(n_bins, binning, closed)
    check_scoring_options(norm, edge_choice, n_resamples, confidence_level, seed, chance)
    flags = {"normalize": normalize, "same_label": same_label, "decompose": decompose, "smooth": smooth}
    for name, flag in {**flags, "classwise": classwise}.items():
        check_flag(name, flag)
    traits = check_grouping_names(groups, by, train)
    named_groups = {f"groups[{name!r}]": values for name, values in (groups or {}).items()}
    check_row_order(probs=probs, y=y, train=train, **named_groups)
    inputs = check_scoring_input(
        probs, y, edge_index, mask, edge_probs, class_names, normalize, predictions, edge_choice
    )
    if mask is not None and len(inputs.y) and not bool(inputs.mask.any()):
        warn_small_sample(
            f"The mask selects none of the {len(inputs.y)} nodes, so no node is scored and scores are NaN. Check how "
            "the mask was made."
        )
    sets = None if node_sets is None else _check_scored_sets(node_sets, inputs, edge_probs is not None)
    posterior = posterior_of(inputs, edge_probs is not None) if chance else None
    task = prepare(inputs, edge_choice)
    class_labels = _class_labels(probs, class_names)
    groupings = node_groups(task, bins, groups, traits, train, class_labels)
    views = elements_by_view(task, progress) if bins.kind == "mass" or n_resamples else {}
    requested = DetailOptions(decompose, smooth, classwise)
    keys, scored = allocate_keys(task, requested, same_label), (edge_choice, same_label, sets)
    sums, edge_tables = collect_sums(task, bins, *scored, progress, views, groupings, keys)
    if bins.kind == "mass":
        edge_tables = mass_edge_tables(views["edgewise"], groupings, bins, sums["edgewise"].boundaries)
    grouped = group_sums(task, groupings, sums, edge_tables, bins)
    intervals: Intervals = {}
    resampling = n_resamples, confidence_level, seed
    if n_resamples:
        grouped = group_intervals(views, grouped, groupings, inputs.mask, bins, norm, *resampling)
        if same_label:
            views["same_label"] = ViewElements(same_label_elements(task, progress), views["edgewise"].nodes)
        intervals = node_resampling_intervals(views, sums, inputs.mask, bins, norm, *resampling)
    details = score_details(task, keys, requested, bins, norm, views, *resampling, class_labels)
    settings = EvaluationSettings(
        _kind_of_belief(probs), normalize, predictions is not None, n_resamples, confidence_level, seed, chance
    )
    by_chance = None
    if posterior is not None:
        options = norm, chance, confidence_level, seed
        by_chance = compare_with_chance(
            posterior, sums, task, lambda drawn: collect_sums(drawn, bins, *scored)[0], *options
        )
    return Evaluation(sums, bins, norm, edge_choice, intervals, settings, grouped, details, by_chance)


def _class_labels(probs: Belief, class_names: NameLike | None) -> list[str] | None:
    names = column_names(probs) if class_names is None else class_names
    return None if names is None else [str(name) for name in as_name_array(names).tolist()]


def _kind_of_belief(belief: Belief) -> Scored:
    if not callable(getattr(belief, "posterior", None)):
        return "model" if isinstance(belief, Posterior) else "probs"
    return "calibrated" if hasattr(belief, "calibrator") else "model"


def check_scoring_options(
    norm: Norm, edge_choice: EdgeChoice, n_resamples: int, confidence_level: float, seed: int, chance: int = 0
) -> None:
    """Check options that `evaluate` and `compare` share, and warn about few resamples or draws."""
    check_option("norm", norm, get_args(Norm))
    check_option("edge_choice", edge_choice, get_args(EdgeChoice))
    check_whole_number("n_resamples", n_resamples, 0, 2**31 - 1)
    check_whole_number("chance", chance, 0, 2**31 - 1)
    check_seed(seed)
    check_number("confidence_level", confidence_level, above=0, below=1)
    for name, number, noun in (("n_resamples", n_resamples, "resample"), ("chance", chance, "draw")):
        if 0 < number * (1 - confidence_level) < 2 - 1e-9:
            enough = math.ceil(2 / (1 - confidence_level) - 1e-9)
            found, width = (f"{number} {noun}s are", "too narrow") if number > 1 else (f"1 {noun} is", "of width 0")
            warn_small_sample(
                f"{found} too few for intervals of level {confidence_level:g}, which are {width}. Use {name} of at "
                f"least {enough}, better ten times as many."
            )


def _check_scored_sets(node_sets: ArrayLike, inputs: ScoringInput, has_edge_probs: bool) -> Int[Tensor, "set sets"]:
    if has_edge_probs:
        raise ValueError(
            "Expected a posterior with joints of node sets, but edge_probs are joints of edges only. Omit node_sets, "
            "or build a posterior with ew.PairwisePosterior.from_joints."
        )
    return as_node_sets(node_sets, len(inputs.y), inputs.y.device, "node_sets")
