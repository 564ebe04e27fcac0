"""Predict pairs of nodes: the one call."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Int
from torch import Tensor

from edgewise.data.arrays import ArrayLike
from edgewise.data.options import check_whole_number
from edgewise.decisions.edge_predictions import Column, EdgePredictions, numbers, same_for_all
from edgewise.decisions.events import EventLike, checked_events
from edgewise.decisions.node_names import NameLike, Names, PairsLike, checked_names, checked_pairs
from edgewise.decisions.pair_beliefs import PairBeliefs, Progress, checked_belief, methods_of, pair_beliefs
from edgewise.inference.convergence import Convergence
from edgewise.posterior import PairwisePosterior, Posterior


def predict_edges(
    posterior: Posterior | ArrayLike,
    pairs: PairsLike,
    events: Iterable[EventLike] = ("same", "both_correct"),
    *,
    node_ids: NameLike | None = None,
    class_names: NameLike | None = None,
    top: int = 1,
    convergence: Convergence | None = None,
    progress: Progress | None = None,
) -> EdgePredictions:
    """Tell what is believed about pairs of nodes: their most likely labels, and how probable events are.

    Parameters
    ----------
    posterior
        A `Posterior`, or probabilities (N, C), whose joints are products. A pairwise field knows the joints of its
        edges; for another pair the product of the node marginals stands in, and ``method`` says so in its row.
    pairs
        An array (2, M), like edge_index, or a list of M pairs; each becomes a row, in this order.
    events
        "same", "different", "both_correct" (both nodes are what each is predicted to be by itself), "both=A", "any=A",
        "only_one=A" for a class A, or (name, booleans (C, C)) that are True where labels (start, end) belong to it.
    node_ids
        Text or whole numbers (N,): ``pairs`` are given in them, and the table shows them. By default nodes are counted
        from 0.
    class_names
        Text or whole numbers (C,), for labels in the table and in events. By default classes are counted from 0.
    top
        How many pairs of labels to list.
    convergence
        What the solver said of the posterior; the table repeats it in words.
    progress
        Called with the number of pairs done and of all, some thousand pairs at a time.

    Returns
    -------
    EdgePredictions
        The table; ``print`` shows its first rows, ``write`` puts it on disk.

    Examples
    --------
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.5, 0.5]])
    >>> print(predict_edges(probs, [("x17", "x20"), ("y3", "x20")], node_ids=["x17", "x20", "y3"]))
    start  end  start_predicted  end_predicted  start_label  end_label  P(labels)  P(same)  P(both_correct)   method
      x17  x20                0              0            0          0     0.7200   0.7400           0.7200  product
       y3  x20                0              0            0          0     0.4000   0.5000           0.4000  product
    <BLANKLINE>
    convergence: nothing to converge
    """
    belief = checked_belief(posterior)
    nodes = checked_names(node_ids, belief.num_nodes, "node_ids", "node")
    classes = checked_names(class_names, belief.num_classes, "class_names", "class")
    asked = checked_events(events, belief.num_classes, classes.words())
    check_whole_number("top", top, 1, belief.num_classes**2)
    ends = checked_pairs(pairs, nodes)
    words = _convergence_words(belief, convergence)
    said = pair_beliefs(belief, ends, asked, top, progress)
    table = {
        **_nodes_and_labels(ends, belief.node.argmax(-1).cpu(), said, nodes, classes),
        **{f"P({event.name})": Column(numbers(p)) for event, p in zip(asked, said.event_probability, strict=True)},
        "method": Column(numbers(said.method), np.array(methods_of(belief), dtype=object)),
        "convergence": same_for_all(words, ends.shape[1]),
    }
    return EdgePredictions(table, words, asked, belief.node.detach(), ends)


def _nodes_and_labels(
    ends: Int[Tensor, "2 pairs"], predicted: Int[Tensor, " nodes"], said: PairBeliefs, nodes: Names, classes: Names
) -> dict[str, Column]:
    """Give the first columns: who is in a pair, what each is by itself, and what both are together, best first."""
    sides = ("start", "end")
    table = {side: Column(numbers(ends[k]), nodes.given) for k, side in enumerate(sides)}
    for k, side in enumerate(sides):
        table[f"{side}_predicted"] = Column(numbers(predicted[ends[k]].int()), classes.given)
    for rank, (labels, probability) in enumerate(zip(said.labels, said.label_probability, strict=True), start=1):
        suffix = "" if rank == 1 else f"_{rank}"
        for k, side in enumerate(sides):
            table[f"{side}_label{suffix}"] = Column(numbers(labels[k]), classes.given)
        table[f"P(labels{suffix})"] = Column(numbers(probability))
    return table


def _convergence_words(belief: Posterior, convergence: Convergence | None) -> str:
    if convergence is None:
        return "not recorded" if isinstance(belief, PairwisePosterior) else "nothing to converge"
    if not isinstance(convergence, Convergence):
        raise ValueError(f"Expected convergence as a solver returns it, but got {type(convergence).__name__}.")
    if not convergence:
        return convergence.advice or f"did not converge: the residual is {convergence.residual:.2g}"
    if convergence.sweeps == 0:
        return "exact"
    return f"converged in {convergence.sweeps} sweeps, residual {convergence.residual:.2g}"
