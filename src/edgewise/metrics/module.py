"""Torchmetrics module for training loops and distributed evaluation."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import torch
import torch.distributed
from torch import Tensor
from torchmetrics import Metric

from edgewise.conversion import EdgesLike, GraphLike
from edgewise.data.edges import EdgeChoice
from edgewise.metrics.collect import prepare, same_label_sums, width_sums
from edgewise.metrics.evaluation import Evaluation
from edgewise.metrics.group_sums import (
    count_group_tables,
    numbered_groups,
    stack_group_tables,
    unstack_group_tables,
)
from edgewise.metrics.node_groups import MAX_PAIRED_GROUPS, check_names_of_groupings
from edgewise.metrics.scores import Norm
from edgewise.metrics.scoring_input import Binning, Closed, check_scoring_input
from edgewise.metrics.sums import VIEWS, Sums, bin_boundaries, carry_tables
from edgewise.posterior import Belief
from edgewise.suggestions import did_you_mean
from edgewise.validation import ArrayLike, check_option, check_whole_number

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray


def all_reduce_sum(tables: Tensor, group: Any = None) -> list[Tensor]:
    """Add the tables of all processes in one all-reduce. Integer sums have the same bits in any order."""
    total = tables.clone()
    torch.distributed.all_reduce(total, group=group)
    return [total]


OPTIONS = (
    "n_bins",
    "norm",
    "closed",
    "edge_choice",
    "same_label",
    "groups",
)  # of GraphCalibration, without those of Metric


class GraphCalibration(Metric):
    """Calibration of nodes and edges, accumulated over batches and processes.

    The state is one int64 tensor of exact sums. So the result is the same to the last bit for any number and order of
    batches and processes, and a change of the module's dtype does not round it. ``compute`` returns an `Evaluation`.
    Its ``scalars()`` are a flat dict for a logger, in Lightning ``self.log_dict(metric.compute().scalars())``.

    Batches are disjoint graphs or disjoint parts of a graph. A node or an edge in two batches counts twice, and an edge
    between two batches is not scored.

    Parameters
    ----------
    n_bins
        Number of confidence bins of equal width. Bins of equal mass are not supported: they depend on all batches.
    norm
        Norm of the calibration error in the field ``ece`` of the result: "l1", "l2" or "max".
    closed
        Side on which bins are closed, "right" or "left".
    edge_choice
        Score edges with "both" ends in the mask, with "any" end in the mask, or "all" edges.
    same_label
        Also score the event "both ends have the same label". Pass False to leave it out.
    groups
        Number of groups by the name of the grouping, such as ``{"region": 5}``, to also score groups of nodes and of
        the edges between them. Each batch then has ``groups={"region": array}``, integers from 0 to 4, or -1 for none.
        For groups by degree or distance, compute them in the whole graph, because a batch has other edges.
    **kwargs
        Options of `torchmetrics.Metric`, such as ``sync_on_compute``.

    Examples
    --------
    >>> metric = GraphCalibration()
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1]), torch.tensor([[0], [1]]))
    >>> round(metric.compute().edgewise.nll, 4)
    0.3285
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    def __init__(
        self,
        n_bins: int = 15,
        norm: Norm = "l1",
        closed: Closed = "right",
        edge_choice: EdgeChoice = "both",
        same_label: bool = True,
        groups: Mapping[str, int] | None = None,
        **kwargs: Any,
    ):
        if "binning" in kwargs:
            raise ValueError(
                f"Expected no option binning, but got {kwargs['binning']!r}. Bins have equal width here, because bins "
                "of equal mass depend on all batches. Score all batches at once with ew.evaluate(..., binning='mass')."
            )
        for keyword in kwargs:
            if suggestion := did_you_mean(keyword, OPTIONS):
                raise TypeError(f"GraphCalibration() got an unexpected keyword argument {keyword!r}.{suggestion}")
        # One state, one collective. A dist_sync_fn of the caller takes precedence.
        super().__init__(**{"dist_sync_fn": all_reduce_sum, **kwargs})
        check_option("norm", norm, get_args(Norm))
        check_option("edge_choice", edge_choice, get_args(EdgeChoice))
        self.binning = Binning(n_bins, "width", closed)
        self.norm: Norm = norm
        self.edge_choice: EdgeChoice = edge_choice
        self.views = (*VIEWS, "same_label") if same_label else VIEWS
        # The state's name holds all options that affect the sums, so that torchmetrics neither shares the state of two
        # modules in a collection nor merges or loads sums with other options.
        event = "_same_label" if same_label else ""
        if groups is not None and not isinstance(groups, Mapping):
            raise ValueError(
                "Expected groups as a dict of names and numbers of groups, because batches are added, but got "
                f"{type(groups).__name__}. Pass groups={{'name': number of groups}}, and the arrays to update."
            )
        self.group_counts = dict(groups or {})
        check_names_of_groupings(self.group_counts)
        for name, num in self.group_counts.items():
            check_whole_number(f"groups[{name!r}]", num, 1, MAX_PAIRED_GROUPS)
            event += f"_{name.encode().hex()}_{num}"  # the name as an identifier
        self.state_name = f"tables_{edge_choice}_{closed}_{n_bins}{event}"
        num_tables = len(self.views) + count_group_tables(self.group_counts)
        tables = torch.zeros(num_tables, n_bins + 2, 4, dtype=torch.long)
        self.add_state(self.state_name, tables, dist_reduce_fx="sum")

    @property
    def tables(self) -> Tensor:
        """Sums of each view in ``views`` (see `edgewise.metrics.sums`), then of groups."""
        tables: Tensor = getattr(self, self.state_name)
        return tables

    def update(
        self,
        probs: Belief,
        y: ArrayLike | GraphLike,
        edge_index: EdgesLike | None = None,
        mask: ArrayLike | None = None,
        edge_probs: ArrayLike | None = None,
        *,
        predictions: ArrayLike | None = None,
        groups: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Add a batch. The arguments are those of `edgewise.evaluate`."""
        inputs = check_scoring_input(
            probs, y, edge_index, mask, edge_probs, predictions=predictions, edge_choice=self.edge_choice
        )
        groupings = numbered_groups(groups, self.group_counts, len(inputs.y), inputs.y.device)
        task = prepare(inputs, self.edge_choice)
        sums, edge_tables = width_sums(task, self.binning, groupings)
        if "same_label" in self.views:
            sums["same_label"] = same_label_sums(task, self.binning)
        of_groups = stack_group_tables(task, groupings, edge_tables, self.binning)
        batch = torch.cat((torch.stack([sums[view].table for view in self.views]), of_groups))
        total = carry_tables(self.tables + batch.to(self.tables.device), self.binning.n_bins)
        setattr(self, self.state_name, total)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the scores of the batch."""
        batch = inspect.signature(self.update).bind(*args, **kwargs)
        # torchmetrics would lose all sums if `update` raised an error.
        keywords = {**batch.kwargs, "edge_choice": self.edge_choice}
        groups = keywords.pop("groups", None)
        inputs = check_scoring_input(*batch.args, **keywords)
        numbered_groups(groups, self.group_counts, len(inputs.y), inputs.y.device)
        return super().forward(*args, **kwargs)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the sums of another module with the same options, or its ``metric_state``."""
        state = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        if not isinstance(state, dict):
            raise ValueError(f"Expected a GraphCalibration or its metric_state, but got {type(state).__name__}.")
        if list(state) != [self.state_name]:
            raise ValueError(
                f"Expected sums with the same options, {self.state_name}, but got {', '.join(state) or 'none'}."
            )
        super().merge_state(incoming_state)

    def __add__(self, other: object) -> NoReturn:
        """Raise: torchmetrics would try to add the results as tensors."""
        raise ValueError(
            "Expected results or sums to add, but got modules. Add the results, first.compute() + second.compute(), or "
            "the sums, first.merge_state(second)."
        )

    def set_dtype(self, dst_type: str | torch.dtype) -> "GraphCalibration":
        """Do nothing: the sums are integers, and conversion to floating point would round them."""
        return self

    def compute(self) -> Evaluation:
        """Return the scores of all batches."""
        tables = carry_tables(self.tables, self.binning.n_bins)
        boundaries = bin_boundaries(self.binning)
        sums = {view: Sums(table, boundaries) for view, table in zip(self.views, tables, strict=False)}
        groups = unstack_group_tables(tables[len(self.views) :].cpu(), self.group_counts, self.binning)
        return Evaluation(sums, self.binning, self.norm, self.edge_choice, group_sums=groups)

    def plot(self, val: Evaluation | None = None, ax: Any = None) -> "tuple[Figure, NDArray[np.object_]]":
        """Plot reliability diagrams of all batches, or of ``val``, the result of ``compute`` or of one batch."""
        return (self.compute() if val is None else val).plot(ax=ax)
