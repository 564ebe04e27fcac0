"""Inference with other libraries, each used only if it is installed (benchmarks/requirements.txt).

- pgmpy: `VariableElimination`, with one query per node. `BeliefPropagation` would calibrate a junction tree once for
  all nodes, but with pgmpy 1.1.2 this takes longer on Grids_12, and its marginals are wrong by up to 0.99.
- aGrUM: `ShaferShenoyMRFInference`, a junction tree.
- pyGMs: `LBP`, loopy belief propagation with a fixed number of sweeps and without damping.
- toulbar2: the most likely labeling by branch and bound, with a proof that it is optimal.

libDAI and the solver Merlin of UC Irvine are neither on PyPI nor in Debian. The package merlin on PyPI is different.
"""

import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import edgewise as ew

Array = NDArray[Any]

PACKAGES = {"pgmpy": "pgmpy", "aGrUM": "pyagrum", "pyGMs": "pygms", "toulbar2": "pytoulbar2"}
LBP_SWEEPS = 100  # the default of pyGMs


def is_installed(rival: str) -> bool:
    return find_spec(PACKAGES[rival]) is not None


class Pgmpy:
    """Variable elimination with pgmpy, from tables whose largest entry is 1."""

    def __init__(self, mrf: ew.PairwiseMRF, sizes: Sequence[int]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports its own deprecated modules
            from pgmpy.factors.discrete import DiscreteFactor
            from pgmpy.inference import VariableElimination
            from pgmpy.models import DiscreteMarkovNetwork

        network = DiscreteMarkovNetwork(mrf.edge_index.T.tolist())
        network.add_nodes_from(range(mrf.num_nodes))
        tables = log_tables(mrf, sizes)
        self._log_constant = sum(float(table.max()) for table in tables)
        for scope, table in zip(scopes(mrf), tables, strict=True):
            network.add_factors(DiscreteFactor(scope, table.shape, np.exp(table - table.max())))
        self._inference, self._num_nodes = VariableElimination(network), mrf.num_nodes

    def marginals(self) -> tuple[list[Array], float]:
        """Return the marginals and log Z, which is the sum of any unnormalized marginal."""
        rows = [self._inference.query([i], show_progress=False).values for i in range(self._num_nodes)]
        return [row / row.sum() for row in rows], self._log_constant + float(np.log(rows[0].sum()))


class Agrum:
    """A junction tree with aGrUM, from tables whose largest entry is 1.

    Its reader of UAI files (pyagrum 3.3.1) takes the first variable of a scope for the fastest one, so it transposes
    tables. The model is built by calls instead.
    """

    def __init__(self, mrf: ew.PairwiseMRF, sizes: Sequence[int]):
        from pyagrum import RangeVariable
        from pyagrum.markov_random_field import MarkovRandomField, ShaferShenoyMRFInference

        self._model = MarkovRandomField()
        for i, size in enumerate(sizes):
            self._model.add(RangeVariable(str(i), "", 0, size - 1))
        for scope, table in zip(scopes(mrf), log_tables(mrf, sizes), strict=True):
            factor = self._model.addFactor([str(i) for i in scope])
            order = [scope.index(int(variable.name())) for variable in factor.variablesSequence()]
            factor.fillWith(np.exp(table - table.max()).transpose(order).ravel(order="F").tolist())
        self._inference, self._num_nodes = ShaferShenoyMRFInference(self._model), mrf.num_nodes

    def marginals(self) -> tuple[list[Array], None]:
        """Return the marginals. There is no log Z."""
        self._inference.makeInference()
        return [np.array(self._inference.posterior(str(i)).tolist()) for i in range(self._num_nodes)], None


class Pygms:
    """Loopy belief propagation with pyGMs, which reads the model file itself."""

    def __init__(self, path: Path, observed: Mapping[int, int], num_nodes: int):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences
            from pygms.filetypes import readUai
            from pygms.graphmodel import Factor, GraphModel

        self._observed, self._num_nodes = observed, num_nodes
        factors = readUai(str(path))
        variables = {int(variable): variable for factor in factors for variable in factor.vars}
        for node, label in observed.items():
            factors.append(Factor([variables[node]], np.eye(variables[node].states)[label]))
        self._model = GraphModel(factors)

    def marginals(self) -> tuple[list[Array], float]:
        """Return the marginals and the Bethe approximation of log Z."""
        from pygms.messagepass import LBP

        with np.errstate(all="ignore"):
            log_partition, beliefs = LBP(self._model, maxIter=LBP_SWEEPS)
        return [np.asarray(beliefs[i].table) for i in range(self._num_nodes)], float(log_partition)


class Toulbar2:
    """The most likely labeling with toulbar2, from log-potentials that are rounded to six decimals."""

    def __init__(self, mrf: ew.PairwiseMRF, sizes: Sequence[int]):
        from pytoulbar2 import CFN

        self._network = CFN(resolution=6)
        for i, size in enumerate(sizes):
            self._network.AddVariable(f"x{i}", range(size))
        for scope, table in zip(scopes(mrf), log_tables(mrf, sizes), strict=True):
            self._network.AddFunction(scope, (table.max() - np.maximum(table, -1e4)).ravel().tolist())

    def labels(self) -> list[int]:
        """Return the most likely labeling."""
        solution = self._network.Solve()
        if solution is None:
            raise RuntimeError("toulbar2 found no labeling.")
        return [int(label) for label in solution[0]]


def scopes(mrf: ew.PairwiseMRF) -> list[list[int]]:
    """Return the scopes of `log_tables`."""
    return [*([i] for i in range(mrf.num_nodes)), *mrf.edge_index.T.tolist()]


def log_tables(mrf: ew.PairwiseMRF, sizes: Sequence[int]) -> list[Array]:
    """Return the log-potentials of all nodes, then of all edges, without the labels that a node lacks."""
    unary, couplings = mrf.unary.numpy(), mrf.coupling(slice(None)).numpy()
    edges = mrf.edge_index.T.tolist()
    couplings = np.broadcast_to(couplings, (len(edges), *couplings.shape[1:]))
    tables = [unary[i, :size] for i, size in enumerate(sizes)]
    return [*tables, *(table[: sizes[i], : sizes[j]] for (i, j), table in zip(edges, couplings, strict=True))]
