"""Joint predictive quality over sets of nodes: the joint NLL of their labels, and its gain over the marginals.

Sets share nodes, so they are not independent: an interval from the variance between sets is several times too narrow.
Here the variance of a mean over M sets is Σ_i (Σ_{S∋i} r_S / M)², where r_S is the difference of set S from the mean.
This is the infinitesimal jackknife of resampling nodes: the variance under small changes of the weights of nodes, if
the weight of a set is the product of the weights of its nodes. A pair of sets counts as often as they share nodes, so
that a set of k nodes counts k times with itself. The interval is therefore too wide, by at most a factor √k, if few
sets share nodes. In return, there is room for the dependence between the labels of neighbors. For single nodes there is
none: their 95% interval covers about 90% if labels are strongly coupled.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.conversion import EdgesLike, GraphLike, NameLike
from edgewise.data.node_sets import NodeSetSampler, Sampler
from edgewise.files.tables import data_frame
from edgewise.metrics.evaluation import Interval
from edgewise.metrics.scoring_input import check_scoring_input
from edgewise.posterior import Belief, Posterior
from edgewise.posterior.independent import sum_rows
from edgewise.representation import shorten
from edgewise.small_samples import warn_small_sample
from edgewise.suggestions import suggest_keywords
from edgewise.validation import ArrayLike, check_number, check_option, check_seed, check_whole_number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_SIZE = 1000  # nodes per set
MAX_SETS = 10**7


@dataclass(frozen=True)
class SetScores:
    """Joint scores of the sets of one size.

    Attributes
    ----------
    size
        Number of nodes per set.
    count
        Number of sets.
    nll_per_node
        Mean of -log p(y_S) / size over the sets S, in nats. NaN without sets.
    nll_interval
        Its confidence interval.
    gain
        Mean of [Σ_i -log p_i(y_i) + log p(y_S)] / size: by how much the joint is better than the product of the
        marginals. Below 0 it is worse. A set whose labels both find impossible counts as 0.
    gain_interval
        Its confidence interval.
    note
        How the posterior computed p(y_S), and what it ignores.
    """

    size: int
    count: int
    nll_per_node: float
    nll_interval: Interval
    gain: float
    gain_interval: Interval
    note: str

    def to_dict(self) -> dict[str, float | str]:
        """Return plain numbers and text, with the bounds of the intervals."""
        numbers: dict[str, float | str] = {"size": self.size, "count": self.count}
        for name, interval in (("nll_per_node", self.nll_interval), ("gain", self.gain_interval)):
            numbers |= {name: getattr(self, name), f"{name}_low": interval.low, f"{name}_high": interval.high}
        return {**numbers, "note": self.note}


@dataclass(frozen=True, repr=False)
class JointNLL:
    """Joint NLL per node and gain over the marginals, by size of the sets. Returned by `joint_nll`.

    ``result[8].gain`` is the gain for sets of 8 nodes, and ``print(result)`` shows a table.

    Attributes
    ----------
    rows
        The `SetScores` of each size.
    sampler
        How sets were drawn.
    num_sets
        Requested number of sets of each size.
    seed
        Random seed of the sets.
    confidence_level
        Nominal coverage of the intervals.
    """

    rows: tuple[SetScores, ...]
    sampler: Sampler
    num_sets: int
    seed: int
    confidence_level: float

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes, in the order of the rows."""
        return tuple(row.size for row in self.rows)

    def __getitem__(self, size: int) -> SetScores:
        if size not in self.sizes:
            raise KeyError(f"Expected one of the sizes {', '.join(map(str, self.sizes))}, but got {size!r}.")
        return self.rows[self.sizes.index(size)]

    def to_dict(self) -> dict[str, object]:
        """Return all results as plain dicts, lists and numbers."""
        names = ("sampler", "num_sets", "seed", "confidence_level")
        options = {name: getattr(self, name) for name in names}
        return {"rows": [row.to_dict() for row in self.rows], "options": options}

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas DataFrame, one row per size."""
        rows = [row.to_dict() for row in self.rows]
        return data_frame({name: [row[name] for row in rows] for name in rows[0]})

    def plot(self, *, ax: "Axes | None" = None, title: str | None = None) -> "tuple[Figure, Axes]":
        """Plot the NLL per node against the size, with `plot_joint_nll`, which also compares several models."""
        from edgewise.plots.joint_nll_plot import plot_joint_nll

        return plot_joint_nll(self, ax=ax, title=title)

    def __repr__(self) -> str:
        gains = ", ".join(f"{row.size}: {row.gain:.4g}" for row in self.rows)
        return shorten(f"JointNLL(sampler={self.sampler!r}, num_sets={self.num_sets}, gain={{{gains}}})")

    def _repr_html_(self) -> str:
        from edgewise.pages.notebook import joint_nll_html

        return joint_nll_html(self)

    def __str__(self) -> str:
        lines = [f"{'size':>4}{'count':>9}{'NLL per node':>28}{'gain over marginals':>30}"]
        for row in self.rows:
            cells = (_format(row.nll_per_node, row.nll_interval), _format(row.gain, row.gain_interval))
            lines.append(f"{row.size:4}{row.count:9,}{cells[0]:>28}{cells[1]:>30}")
        return "\n".join([*lines, "", *_notes(self.rows)])


def _format(value: float, interval: Interval) -> str:
    return f"{value:.4f} [{interval.low:.4f}, {interval.high:.4f}]"


def _notes(rows: Sequence[SetScores]) -> list[str]:
    """Return one line for each note, with the sizes it belongs to."""
    notes: dict[str, list[str]] = {}
    for row in rows:
        notes.setdefault(row.note, []).append(str(row.size))
    return [f"size {', '.join(sizes)}: {note}" for note, sizes in notes.items()]


@suggest_keywords
def joint_nll(
    belief: Belief,
    y: ArrayLike | GraphLike,
    edge_index: EdgesLike | None = None,
    *,
    mask: ArrayLike | None = None,
    class_names: NameLike | None = None,
    normalize: bool = False,
    sizes: Iterable[int] = (1, 2, 3, 5, 8),
    sampler: Sampler = "neighborhood",
    num_sets: int = 1000,
    seed: int = 0,
    confidence_level: float = 0.95,
) -> JointNLL:
    """Score the joint probability of the labels of random node sets, against the size of the sets.

    The joint NLL per node is the mean of -log p(y_S) / k over sets S of k nodes. Its gain over the marginals is the
    mean of [Σ_i -log p_i(y_i) + log p(y_S)] / k: exactly 0 for independent nodes, and for the true distribution the
    total correlation of the sets per node, which is not negative in expectation.

    A `PairwisePosterior` is exact for nodes in components without loops, if its solver converged. In a component with
    loops it uses the edges inside a set and ignores paths around it. The ``note`` of each row counts such sets.

    Parameters
    ----------
    belief
        Probabilities (N, C), a `Posterior`, or an object with ``posterior()``, as in `evaluate`.
    y
        True labels (N,), or a graph with labels and edges, as in `evaluate`.
    edge_index
        Edges (2, E), in any form that `evaluate` accepts. By default those of the graph passed as ``y``.
    mask
        Mask (N,) of the nodes that sets consist of. By default all nodes. Only edges between them count.
    class_names
        Class of each column of the probabilities (C,), as in `evaluate`. By default the columns of a pandas table.
    normalize
        Divide probabilities by the sum of their row, if it is 1 within 2%.
    sizes
        Numbers of nodes per set.
    sampler
        - "neighborhood": connected sets. A random node is extended by uniformly chosen nodes adjacent to the set.
        - "random": nodes chosen uniformly, regardless of edges.
        - "path": simple paths. A random node is extended by a uniformly chosen new neighbor of the last node. A path
          that ends early is drawn again.
        - "triangle": cliques. A random node is extended by uniformly chosen common neighbors. Size 2 is an edge and
          size 3 a triangle. A clique that ends early is drawn again.

        A set has distinct nodes. The first node is chosen uniformly, from the connected components with enough nodes.
    num_sets
        Number of sets of each size, drawn with replacement.
    seed
        Random seed of the sets. The sets of a size depend on the graph, the mask, the sampler, ``num_sets`` and the
        seed, not on the belief, so that several beliefs are compared on the same sets.
    confidence_level
        Nominal coverage of the intervals. They take into account that sets share nodes, and are too wide, by at most a
        factor √k, if few of them do.

    Returns
    -------
    JointNLL
        The scores of each size. A size without sets has count 0 and NaN scores.

    Warns
    -----
    SmallSampleWarning
        If there are fewer sets of a size than requested, or none, because attempts to draw more failed.

    Examples
    --------
    Two samples that agree on the labels of all nodes, but not on which:

    >>> import torch, edgewise as ew
    >>> sample = torch.tensor([[0.9, 0.1]]).repeat(6, 1)
    >>> mixture = ew.MixturePosterior(torch.stack([sample, sample.flip(1)]))
    >>> path = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    >>> result = joint_nll(mixture, torch.zeros(6, dtype=torch.long), path, sizes=(1, 2, 4), num_sets=100)
    >>> [(row.size, round(row.nll_per_node, 3), round(row.gain, 3)) for row in result.rows]
    [(1, 0.693, 0.0), (2, 0.446, 0.247), (4, 0.279, 0.415)]
    """
    checked_sizes = _check_sizes(sizes)
    check_option("sampler", sampler, get_args(Sampler))
    check_whole_number("num_sets", num_sets, 1, MAX_SETS)
    check_seed(seed)
    check_number("confidence_level", confidence_level, above=0, below=1)
    inputs = check_scoring_input(belief, y, edge_index, mask, None, class_names, normalize)
    posterior = inputs.posterior.detach()
    sets = NodeSetSampler(inputs.edge_index, inputs.mask, sampler)
    rows = []
    for size in checked_sizes:
        drawn = sets.draw(size, num_sets, seed).to(inputs.y.device)
        if not (count := drawn.shape[1]):
            warn_small_sample(
                f"No set of {size} nodes was found with sampler={sampler!r}, so the scores of this size are NaN. Use "
                "smaller sizes, or check the mask and the edges."
            )
        elif count < num_sets:
            warn_small_sample(
                f"Only {count:,} of {num_sets:,} sets of {size} nodes could be drawn with sampler={sampler!r}. Others "
                "ended early. Use smaller sizes, or sampler='neighborhood'."
            )
        rows.append(_score_sets(posterior, drawn, inputs.y, confidence_level))
    return JointNLL(tuple(rows), sampler, num_sets, seed, confidence_level)


def _check_sizes(sizes: Iterable[int]) -> list[int]:
    listed: Any = sizes.tolist() if isinstance(sizes, Tensor | np.ndarray) else sizes
    if not isinstance(listed, Iterable) or isinstance(listed, str):
        example = listed if isinstance(listed, int) and listed >= 1 else 3
        raise ValueError(f"Expected sizes as a list of whole numbers, but got {listed!r}. Pass sizes=[{example}].")
    listed = list(listed)
    for size in listed:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 1 <= size <= MAX_SIZE:
            raise ValueError(
                f"Expected sizes of at least 1 and at most {MAX_SIZE} nodes, as whole numbers, but got {size!r} in "
                f"sizes={shorten(repr(listed))}. Pass sizes such as [1, 2, 3]."
            )
    if not listed or len(set(listed)) < len(listed):
        raise ValueError(f"Expected one or more different sizes, but got {listed}. Pass each size once.")
    return [int(size) for size in listed]


def _score_sets(
    posterior: Posterior, sets: Int[Tensor, "size sets"], y: Int[Tensor, " nodes"], confidence_level: float
) -> SetScores:
    size, count = sets.shape
    if not count:
        nothing = Interval(math.nan, math.nan)
        return SetScores(size, 0, math.nan, nothing, math.nan, nothing, "no sets of this size")
    labels = y[sets].long()
    joint = posterior.log_prob(sets, labels)
    marginals = sum_rows(posterior.log_prob(sets.reshape(1, -1), labels.reshape(1, -1)).reshape(size, count))
    both_impossible = (joint == -math.inf) & (marginals == -math.inf)
    nll, gain = -joint / size, torch.where(both_impossible, 0.0, (joint - marginals) / size)
    intervals = (mean_interval(scores, sets, len(y), confidence_level) for scores in (nll, gain))
    (nll_mean, nll_interval), (gain_mean, gain_interval) = intervals
    return SetScores(size, count, nll_mean, nll_interval, gain_mean, gain_interval, posterior.describe_sets(sets))


def mean_interval(
    scores: Float[Tensor, " sets"], sets: Int[Tensor, "size sets"], num_nodes: int, confidence_level: float
) -> tuple[float, Interval]:
    """Return the mean over sets that share nodes, and its normal interval, with a variance of the nodes' influences.

    The interval is NaN for a single node, and as infinite as the mean.
    """
    mean = float(scores.mean())
    if math.isinf(mean):
        return mean, Interval(mean, mean)
    residual = ((scores - mean) / len(scores)).expand(sets.shape).flatten()
    influence = torch.zeros(num_nodes, dtype=torch.float64, device=scores.device)
    influence.index_add_(0, sets.flatten(), residual)
    num_drawn = int(torch.zeros_like(influence).index_fill_(0, sets.flatten(), 1).sum())
    if num_drawn == len(sets):  # always the same nodes
        return mean, Interval(math.nan, math.nan)
    variance = float(influence.square().sum()) * num_drawn / (num_drawn - 1)
    half_width = NormalDist().inv_cdf((1 + confidence_level) / 2) * math.sqrt(variance)
    return mean, Interval(mean - half_width, mean + half_width)
