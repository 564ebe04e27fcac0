"""Score anybody's predictions on a graph."""

from typing import get_args

from jaxtyping import Int
from torch import Tensor

from edgewise.data.edges import EdgeChoice
from edgewise.metrics.collect import (
    Progress,
    elements_by_view,
    mass_sums,
    node_set_sums,
    prepare,
    same_label_sums,
    width_sums,
)
from edgewise.metrics.evaluation import Evaluation, Intervals
from edgewise.metrics.intervals import node_resampling_intervals
from edgewise.metrics.scores import Norm
from edgewise.metrics.scoring_input import Binning, Closed, Kind, ScoringInput, check_scoring_input
from edgewise.posterior import Belief
from edgewise.validation import (
    ArrayLike,
    as_tensor,
    check_node_sets,
    check_number,
    check_option,
    check_seed,
    check_whole_number,
)


def evaluate(
    probs: Belief,
    y: ArrayLike,
    edge_index: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    edge_probs: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Kind = "width",
    norm: Norm = "l1",
    closed: Closed = "right",
    edge_choice: EdgeChoice = "both",
    same_label: bool = False,
    node_sets: ArrayLike | None = None,
    n_resamples: int = 0,
    confidence_level: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Score node probabilities, and the joint of the two ends of each edge, in four views.

    Parameters
    ----------
    probs
        Probabilities (N, C), each row summing to 1, never logits; the joint of an edge is then the product of its ends.
        Or a `Posterior`, which has joints of its own, or anything with ``posterior()``, such as a fitted model.
    y
        True labels (N,); -1 where unknown, which is allowed outside the mask.
    edge_index
        Edges (2, E). An edge listed in both directions counts once, a parallel edge as often as it is listed, a
        self-loop not at all.
    mask
        Which nodes are scored (N,); by default all.
    edge_probs
        Joints (E, C, C), row e belonging to ``edge_index[:, e]``; by default the product of the ends' probabilities.
        Of an edge that is listed in both directions the joint of the direction that is listed more often is scored,
        that of (low, high) if they are equally frequent.
    n_bins
        How many bins confidences fall into.
    binning
        Bins of equal "width", or of equal "mass": each view then has its own.
    norm
        How the gaps of the bins make one calibration error: their mean ("l1"), the root of their mean square ("l2"), or
        the largest ("max").
    closed
        Which end belongs to a bin, "right" or "left".
    edge_choice
        Score an edge when "both" ends are in the mask, or "any", or "all" edges. An edge with an unknown label at an
        end is left out.
    same_label
        Also score the event "both ends have the same label". It looks at all classes of every edge, which the sixteen
        scores do not: on 10^8 edges that takes several times as long.
    node_sets
        Also score sets of k nodes, given as an index (k, M): wedges, triangles, whatever is of interest. A set counts
        as often as it is listed, when all its nodes are in the mask (``edge_choice`` says otherwise). A pairwise field
        knows sets that its edges connect; for products any k will do, for other posteriors k is at most 6.
    n_resamples
        Compute confidence intervals from so many resamples of the nodes. They are corrected for the upward bias of a
        calibration error, so that of a nearly calibrated model can lie below the error itself; and they are too wide,
        by √3 at the most, where edges hardly share nodes. The correction is not whole near zero: whether an error is
        more than chance is better asked by drawing labels from the probabilities themselves.
    confidence_level
        How often such intervals hold what they estimate.
    seed
        Of the resamples.
    progress
        Called with (edges done, edges in all) now and then.

    Returns
    -------
    Evaluation
        The scores, which ``print`` shows as a table. An empty set has count 0 and NaN scores.

    Raises
    ------
    ValueError
        If an input is not as expected: the message says what was expected, what came, where, and a way out.

    Examples
    --------
    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> ev = evaluate(probs, torch.tensor([0, 0, 1]), torch.tensor([[0, 1], [1, 2]]), n_bins=1)
    >>> ev.edgewise.count, round(ev.edgewise.ece, 4), ev.agree.count
    (2, 0.36, 1)
    """
    bins = Binning(n_bins, binning, closed)
    _check_options(norm, edge_choice, n_resamples, confidence_level, seed)
    given = check_scoring_input(probs, y, edge_index, mask, edge_probs)
    sets = None if node_sets is None else _check_node_sets(node_sets, given, edge_probs is not None)
    task = prepare(given, edge_choice)
    views = elements_by_view(task, progress) if bins.kind == "mass" or n_resamples else {}
    sums = mass_sums(views, given.mask, bins) if bins.kind == "mass" else width_sums(task, bins, progress)
    if same_label:
        sums["same_label"] = same_label_sums(task, bins, progress)
    if sets is not None:
        sums["node_sets"] = node_set_sums(task, sets, edge_choice, bins)
    intervals: Intervals = {}
    if n_resamples:
        intervals = node_resampling_intervals(views, sums, given.mask, bins, norm, n_resamples, confidence_level, seed)
    return Evaluation(sums, bins, norm, edge_choice, intervals)


def _check_options(norm: Norm, edge_choice: EdgeChoice, n_resamples: int, confidence_level: float, seed: int) -> None:
    check_option("norm", norm, get_args(Norm))
    check_option("edge_choice", edge_choice, get_args(EdgeChoice))
    check_whole_number("n_resamples", n_resamples, 0, 2**31 - 1)
    check_seed(seed)
    check_number("confidence_level", confidence_level, above=0, below=1)


def _check_node_sets(node_sets: ArrayLike, given: ScoringInput, has_edge_probs: bool) -> Int[Tensor, "set sets"]:
    if has_edge_probs:
        raise ValueError(
            "Expected a posterior that knows sets of nodes, but edge_probs are joints of edges only. Leave out "
            "node_sets, or make a posterior of marginals and joints: ew.PairwisePosterior.from_joints."
        )
    sets = as_tensor(node_sets, "node_sets").to(given.y.device)
    return check_node_sets(sets, len(given.y), "node_sets")
