"""The columns of a table of pairs with the conformal set of each pair."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.edges import pair_keys
from edgewise.decisions.conformal_pairs import PairPredictionSets
from edgewise.decisions.edge_predictions import Column, EdgePredictions, as_array

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class SetColumn:
    """A column with the set of each pair, a list of [start label, end label]. Sets are computed when rows are read."""

    sets: PairPredictionSets
    pairs: Int[Tensor, "2 pairs"]
    names: NDArray[Any] | None = None

    @property
    def max_values(self) -> int:
        """The number of values in the set of all label pairs."""
        return 2 * self.sets.posterior.num_classes**2

    def __getitem__(self, part: slice) -> NDArray[Any]:
        rows = self.to_arrow(part).to_pylist()
        cells = np.empty(len(rows), dtype=object)
        cells[:] = rows
        return cells

    def to_arrow(self, part: slice) -> "pa.Array":
        """Convert a slice of rows to Arrow lists."""
        import pyarrow as pa

        sizes, labels = [torch.zeros(1, dtype=torch.long)], [np.empty((0, 2), np.int64)]
        for chunk in self.sets.iter_pair_sets(self.pairs[:, part]):
            sizes.append(chunk.sum((1, 2)))
            labels.append(chunk.nonzero()[:, 1:].numpy())
        entries = np.concatenate(labels).ravel()
        values = pa.array(entries) if self.names is None else pa.array(self.names).take(pa.array(entries))
        label_pairs = pa.LargeListArray.from_arrays(pa.array(np.arange(0, len(entries) + 1, 2)), values)
        return pa.LargeListArray.from_arrays(pa.array(torch.cat(sizes).cumsum(0).numpy()), label_pairs)


def add_sets(predictions: EdgePredictions, sets: PairPredictionSets) -> EdgePredictions:
    """Return the table with the columns ``set`` and ``guaranteed``, True for test pairs of the matching.

    Examples
    --------
    >>> import edgewise as ew
    >>> from torch_geometric.data import Data
    >>> probs, edges = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.5, 0.5], [0.3, 0.7]]), [(0, 1), (2, 3)]
    >>> graph = Data(y=torch.tensor([0, 0, 1, 1]), edge_index=torch.tensor(edges).T)
    >>> calibration = torch.tensor([True, True, False, False])
    >>> sets = ew.ConformalPairs(alpha=0.5).fit(probs, graph, calibration=calibration, test=~calibration)
    >>> table = add_sets(ew.predict_edges(probs, edges), sets)
    >>> table["set"].tolist(), table["guaranteed"].tolist()
    ([[[0, 0]], []], [False, True])
    """
    num_nodes = len(predictions.node)
    names = predictions.table["start_predicted"].names
    is_guaranteed = torch.isin(pair_keys(predictions.pairs, num_nodes), pair_keys(sets.test_pairs, num_nodes))
    column = SetColumn(sets, predictions.pairs, names)
    return replace(
        predictions,
        table={**predictions.table, "set": column, "guaranteed": Column(as_array(is_guaranteed))},
    )
