"""Predict pairs of nodes: the one call."""

from collections.abc import Iterable

import numpy as np

from edgewise.data.arrays import ArrayLike, check_whole_number
from edgewise.decisions.edge_predictions import Column, EdgePredictions, numbers, same_for_all
from edgewise.decisions.events import EventLike, checked_events
from edgewise.decisions.node_names import NameLike, PairsLike, checked_names, checked_pairs
from edgewise.decisions.pair_beliefs import Progress, methods_of, pair_beliefs
from edgewise.inference.convergence import Convergence
from edgewise.metrics.checks import checked_probs
from edgewise.posterior import IndependentPosterior, PairwisePosterior, Posterior


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
    predicted = belief.node.argmax(-1).cpu()
    table = {side: Column(numbers(ends[k]), nodes.given) for k, side in enumerate(("start", "end"))}
    for k, side in enumerate(("start", "end")):
        table[f"{side}_predicted"] = Column(numbers(predicted[ends[k]].int()), classes.given)
    for rank, suffix in enumerate(["", *(f"_{rank}" for rank in range(2, top + 1))]):
        for k, side in enumerate(("start", "end")):
            table[f"{side}_label{suffix}"] = Column(numbers(said.labels[rank, k]), classes.given)
        table[f"P(labels{suffix})"] = Column(numbers(said.label_probability[rank]))
    for event, probability in zip(asked, said.event_probability, strict=True):
        table[f"P({event.name})"] = Column(numbers(probability))
    table["method"] = Column(numbers(said.method), np.array(methods_of(belief), dtype=object))
    table["convergence"] = same_for_all(words, ends.shape[1])
    return EdgePredictions(table, words, asked, belief.node.detach(), ends)


def checked_belief(posterior: Posterior | ArrayLike) -> Posterior:
    """Check that there is one belief; probabilities make one of independent nodes."""
    if isinstance(posterior, tuple):
        raise ValueError(
            "Expected a posterior, but got (posterior, convergence). Pass predict_edges(posterior, …, "
            "convergence=convergence)."
        )
    if not isinstance(posterior, Posterior):
        return IndependentPosterior(checked_probs(posterior))
    if posterior.batch_shape:
        raise ValueError(
            f"Expected one belief, but got a batch of shape {posterior.batch_shape}. Choose one: posterior[b]."
        )
    return posterior


def _convergence_words(belief: Posterior, convergence: Convergence | None) -> str:
    if convergence is None:
        return "not told" if isinstance(belief, PairwisePosterior) else "nothing to converge"
    if not isinstance(convergence, Convergence):
        raise ValueError(f"Expected convergence as a solver returns it, but got {type(convergence).__name__}.")
    if not convergence:
        return convergence.advice or f"did not converge: the residual is {convergence.residual:.2g}"
    if convergence.sweeps == 0:
        return "exact"
    return f"converged in {convergence.sweeps} sweeps, residual {convergence.residual:.2g}"
