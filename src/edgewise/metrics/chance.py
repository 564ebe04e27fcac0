"""Scores by chance: those that the posterior itself would get if the labels were drawn from it.

The measured calibration error of a perfect model is above zero, because accuracy differs from confidence in each bin by
chance. To tell chance from error, labelings are drawn from the posterior and scored like the true labels. If the
posterior is right, the true labels are one more draw, and the p-value

    p = (1 + number of draws whose score is at least the observed one) / (1 + number of draws)

is at most u with probability at most u. Each draw is a labeling of all nodes, so neighbors depend on each other as the
posterior says, and the edges that agree and disagree are chosen anew by each draw.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from edgewise.data.edges import pair_keys, scored_edges
from edgewise.metrics.collect import ScoringTask
from edgewise.metrics.elements import node_records
from edgewise.metrics.scores import METRICS, EventScores, Norm, ViewScores
from edgewise.metrics.scoring_input import ScoringInput
from edgewise.metrics.sums import Sums
from edgewise.posterior import PairwisePosterior, Posterior, Sample, Sampling
from edgewise.suggestions import NamedResults
from edgewise.validation import MAX_SEED

CHUNK_LABELS = 1 << 25  # labels that are drawn at once: 256 MiB
SAME_LABEL_METRICS = ("frequency", *METRICS[1:])


@dataclass(frozen=True)
class ChanceScore:
    """A score by chance, if the posterior is right.

    Attributes
    ----------
    mean
        Mean score of the draws.
    low
        Lower end of the range of the draws, at the ``confidence_level``.
    high
        Upper end of this range.
    p_value
        P(a score at least as large as the observed one), from 1 / (1 + draws) to 1. None without `Chance.has_p_values`.
        NaN if the observed score is, or if no draw has elements of the view.
    """

    mean: float
    low: float
    high: float
    p_value: float | None


@dataclass(frozen=True)
class Chance:
    """Scores by chance of each view and metric, such as ``ev.chance["edgewise"]["ece"].p_value``.

    A small p-value means that the observed score is larger than chance explains. For an accuracy, that is
    underconfidence; an accuracy that is too small has a p-value near 1. A draw in which a view is empty, such as
    "disagree" if all neighbors agree, is left out of mean and range, and counts as large in the p-value, which makes it
    larger rather than smaller.

    Attributes
    ----------
    n_draws
        Number of labelings drawn.
    sampling
        How they were drawn.
    scores
        `ChanceScore` by view and metric.

    Examples
    --------
    >>> import torch
    >>> from edgewise.metrics import evaluate
    >>> probs = torch.tensor([[0.6, 0.4]]).expand(500, 2)
    >>> ev = evaluate(probs, torch.zeros(500, dtype=torch.long), chance=99)  # always right, and underconfident
    >>> by_chance = ev.chance["nodewise"]["ece"]
    >>> round(ev.nodewise.ece, 2), round(by_chance.mean, 2), by_chance.p_value
    (0.4, 0.02, 0.01)
    """

    n_draws: int
    sampling: Sampling
    scores: Mapping[str, Mapping[str, ChanceScore]] = field(repr=False)
    _p_values: Mapping[str, Mapping[str, float]] = field(repr=False)

    def __getitem__(self, view: str) -> Mapping[str, ChanceScore]:
        return self.scores[view]

    @property
    def has_p_values(self) -> bool:
        """Whether the labelings are exact draws from the distribution whose marginals are scored.

        They are not if the marginals are those of an approximate solver. Then a field can explain the labels although
        the scored probabilities are far off.
        """
        return self.sampling.is_exact and self.sampling.keeps_marginals

    def approximate_p_value(self, view: str, metric: str) -> float:
        """Return the p-value as if the draws were exact.

        It may be wrong in both directions. Gibbs chains may not have visited all likely labelings, and a spanning
        forest draws neighbors that are too independent, which makes a right posterior look wrong. Draws from a field
        have the errors of an approximate solver too, so they hide these errors.
        """
        return self._p_values[view][metric]

    def to_dict(self) -> dict[str, object]:
        """Return the scores by chance and how they were drawn as plain dicts and numbers."""
        scores = {view: {name: asdict(score) for name, score in part.items()} for view, part in self.scores.items()}
        return {"n_draws": self.n_draws, "sampling": asdict(self.sampling), **scores}

    def columns(self, view: str) -> dict[str, float]:
        """Return the scores of a view by the names of columns, such as "ece_chance_mean" and "ece_p_value"."""
        columns: dict[str, float] = {}
        for metric, score in self[view].items():
            columns |= {f"{metric}_chance_{name}": getattr(score, name) for name in ("mean", "low", "high")}
            columns[f"{metric}_p_value"] = math.nan if score.p_value is None else score.p_value
        return columns

    def lines(self, has_edges: bool) -> list[str]:
        """Format a table: means and p-values by view and metric. The first column of "same_label" is its frequency."""
        lines = ["", f"by chance: mean of {self.n_draws:,} drawn labelings{' (p-value)' if self.has_p_values else ''}"]
        lines += [" " * 10 + "".join(f"{metric:>19}" for metric in METRICS)]
        for view, scores in self.scores.items():
            if has_edges or view in ("nodewise", "node_sets"):
                p_values = ("" if score.p_value is None else f" (p {score.p_value:.3f})" for score in scores.values())
                cells = (f"{score.mean:.4f}{p}" for score, p in zip(scores.values(), p_values, strict=True))
                lines.append(f"{view:10}" + "".join(f"{cell:>19}" for cell in cells))
        if not self.sampling.is_exact:
            lines.append(f"drawn approximately ({self.sampling.method}), so there are no p-values")
        elif not self.has_p_values:
            lines.append("drawn from the field, whose marginals are not the scored ones, so there are no p-values")
        return lines


def compare_with_chance(
    posterior: Posterior,
    observed: Mapping[str, Sums],
    task: ScoringTask,
    collect: Callable[[ScoringTask], Mapping[str, Sums]],
    norm: Norm,
    n_draws: int,
    confidence_level: float,
    seed: int,
) -> Chance:
    """Draw labelings, score each with ``collect``, and compare them with the observed scores.

    Predictions stay the same, and so do the scored nodes and edges: a node whose true label is unknown has no label in
    any draw.
    """
    names = [(view, metric) for view in observed for metric in _metrics(view)]
    drawn, samplings = [], []
    for labels, sampling in _draw(posterior, n_draws, seed):
        samplings.append(sampling)
        drawn += [_scores(collect(_with_labels(task, row)), norm) for row in labels]
    sampling = reduce(_merge, samplings)
    table = torch.tensor(drawn, dtype=torch.float64)
    found = torch.tensor(_scores(observed, norm), dtype=torch.float64)
    # NaN, the score of an empty view, counts as at least as large as any score.
    p_values = ((~(table < found)).sum(0) + 1).double() / (1 + n_draws)
    p_values = torch.where(found.isnan() | table.isnan().all(0), math.nan, p_values)
    tail = (1 - confidence_level) / 2
    # Without interpolation, which is undefined between infinite scores.
    low = table.nanquantile(tail, dim=0, interpolation="lower")
    high = table.nanquantile(1 - tail, dim=0, interpolation="higher")
    columns = (column.tolist() for column in (table.nanmean(0), low, high, p_values))
    has_p_values = sampling.is_exact and sampling.keeps_marginals
    scores = NamedResults({view: NamedResults[ChanceScore]() for view in observed})
    approximate = NamedResults({view: NamedResults[float]() for view in observed})
    for (view, metric), mean, low_score, high_score, p in zip(names, *columns, strict=True):
        scores[view][metric] = ChanceScore(mean, low_score, high_score, p if has_p_values else None)
        approximate[view][metric] = p
    return Chance(n_draws, sampling, scores, approximate)


def posterior_of(inputs: ScoringInput, has_edge_probs: bool) -> Posterior:
    """Return the posterior that labelings are drawn from. With edge_probs, build it from all listed joints."""
    if not has_edge_probs or inputs.joints is None:
        return inputs.posterior
    nodes = len(inputs.probs)
    positions = scored_edges(inputs.edge_index, inputs.mask, "all").nonzero().squeeze(1)
    edges = inputs.edge_index[:, positions].long()
    joints = inputs.joints(edges, positions)
    _, pair = pair_keys(edges, nodes).unique(return_inverse=True)
    num_pairs = int(pair.max()) + 1 if len(pair) else 0
    first = torch.full((num_pairs,), len(pair), device=pair.device)
    first.scatter_reduce_(0, pair, torch.arange(len(pair), device=pair.device), "amin")
    try:
        if not torch.equal(joints, joints[first[pair]]):
            raise ValueError("parallel edges have different joints.")
        return PairwisePosterior.from_joints(inputs.probs, edges[:, first], joints[first])
    except ValueError as error:
        raise ValueError(
            "Expected edge_probs that are the joints of one distribution with the marginals probs, because chance "
            f"draws labels from it, but: {error} Omit chance, or omit edge_probs to draw and score independent labels."
        ) from error


def _draw(posterior: Posterior, n_draws: int, seed: int) -> Iterator[Sample]:
    """Yield labelings in chunks of bounded size. The first chunk, usually the only one, has the seed itself."""
    step = max(1, CHUNK_LABELS // max(1, posterior.num_nodes))
    for first in range(0, n_draws, step):
        own_seed = seed if first == 0 else int(np.random.default_rng([seed, first]).integers(MAX_SEED))
        yield posterior.sample(min(step, n_draws - first), own_seed)


def _merge(before: Sampling, drawn: Sampling) -> Sampling:
    """Describe two chunks together: the worst R-hat, and the sum of their effective sizes."""
    worst = max(before, drawn, key=lambda sampling: sampling.r_hat or 0.0)
    if before.effective_size is None or drawn.effective_size is None:
        return worst
    return replace(worst, effective_size=before.effective_size + drawn.effective_size)


def _with_labels(task: ScoringTask, labels: Int[Tensor, " nodes"]) -> ScoringTask:
    """Replace the known labels. The same nodes and edges are scored."""
    inputs = task.inputs
    y = torch.where(inputs.y >= 0, labels, -1)
    return task._replace(inputs=inputs._replace(y=y), records=node_records(inputs.probs, y, inputs.predictions))


def _metrics(view: str) -> tuple[str, ...]:
    return SAME_LABEL_METRICS if view == "same_label" else METRICS


def _scores(sums: Mapping[str, Sums], norm: Norm) -> list[float]:
    """Return the scores of all views and metrics, in one order."""
    scores = []
    for view, (table, boundaries) in sums.items():
        kind = EventScores if view == "same_label" else ViewScores
        part = kind(table.cpu(), boundaries.cpu(), norm)
        scores += [float(getattr(part, metric)) for metric in _metrics(view)]
    return scores
