"""Belief propagation with PGMax, if it is installed (`make bench` installs it; the package does not depend on it)."""

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from torch import Tensor


def is_installed() -> bool:
    return find_spec("pgmax") is not None and find_spec("jax") is not None


def pgmax_runner(unary: Tensor, edge_index: Tensor, pairwise: Tensor) -> tuple[Callable[[int], Any], float]:
    """Return a function that runs n sweeps and waits for the beliefs, and the seconds to build the graph."""
    import jax
    from pgmax import fgraph, fgroup, infer, vgroup

    start = perf_counter()
    num_nodes, num_classes = unary.shape
    variables = vgroup.NDVarArray(num_states=num_classes, shape=(num_nodes,))
    graph = fgraph.FactorGraph(variable_groups=variables)
    pairs = [[variables[i], variables[j]] for i, j in edge_index.T.tolist()]
    graph.add_factors(fgroup.PairwiseFactorGroup(variables_for_factors=pairs, log_potential_matrix=pairwise.numpy()))
    inferer = infer.build_inferer(graph.bp_state, backend="bp")
    arrays = inferer.init(evidence_updates={variables: unary.numpy()})
    seconds = perf_counter() - start

    @cache
    def compiled(num_sweeps: int) -> Callable[..., Any]:
        # The graph is passed as arguments. As constants, XLA would fold it, which takes minutes and 20 GiB.
        def sweep(state: Any) -> Any:
            return inferer.run(state, num_iters=num_sweeps, damping=0.0, temperature=1.0)

        closed = jax.make_jaxpr(lambda state: jax.tree.leaves(sweep(state)))(arrays)
        run = jax.jit(partial(jax.core.eval_jaxpr, closed.jaxpr))
        return lambda state: jax.tree.unflatten(jax.tree.structure(state), run(closed.consts, *jax.tree.leaves(state)))

    def run(num_sweeps: int) -> Any:
        return jax.block_until_ready(inferer.get_beliefs(compiled(num_sweeps)(arrays))[variables])

    return run, seconds
