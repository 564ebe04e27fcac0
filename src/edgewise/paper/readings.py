"""Two readings of the paper: which prediction of which model is a row of its tables, and what predictions mean.

Models and calibrators that are not named here are run and shown too: after those that are, in the order in which they
are found. This file imports nothing that takes time, as help texts are made of it.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

AS_PUBLISHED, AS_DEFINED = "as_published", "as_defined"


class Source(NamedTuple):
    """Where a row of the tables comes from: which model was run, and which of its predictions is scored."""

    model: str
    prediction: str


# By reading, as published and as the definitions say, then by row of the tables. A model has a row of its own name; one
# that the paper has not, in the second alone.
READINGS: Mapping[str, Mapping[str, Source]] = MappingProxyType(
    {
        AS_PUBLISHED: {
            "gcn": Source("gcn", "product"),
            "gat": Source("gat", "product"),
            "gmnn": Source("gmnn", "averaged_logits"),
            "epfgnn": Source("epfgnn", "published_misplaced_evidence"),
            "epfgnn mean field": Source("epfgnn", "published_mean_field"),
        },
        AS_DEFINED: {
            "gcn": Source("gcn", "product"),
            "gat": Source("gat", "product"),
            "gmnn": Source("gmnn", "mixture"),
            "epfgnn": Source("epfgnn", "sum_product"),
            "epfgnn mean field": Source("epfgnn", "mean_field"),
            "jointgcn": Source("jointgcn", "joint"),
        },
    }
)


def sort_known_first(known: Iterable[str], found: Iterable[str]) -> list[str]:
    """Put what was found in the known order; the rest follows, sorted."""
    names = set(found)
    in_order = [name for name in known if name in names]
    return in_order + sorted(names.difference(in_order))


def _models(*readings: str) -> tuple[str, ...]:
    """Return the models of readings, each once, in the order of their rows."""
    return tuple(dict.fromkeys(source.model for reading in readings for source in READINGS[reading].values()))


MODELS = _models(AS_PUBLISHED)  # the paper's; what --models is when it is left out
KNOWN_MODELS = _models(*READINGS)


def same_in_both_readings() -> list[str]:
    """Return the rows of the tables that both readings take from the same prediction."""
    one, *others = READINGS.values()
    return [row for row, source in one.items() if all(other.get(row) == source for other in others)]


def changed_rows() -> list[str]:
    """Return the rows of the tables that both readings have, and take from different predictions."""
    same = same_in_both_readings()
    return [row for row in READINGS[AS_PUBLISHED] if row in READINGS[AS_DEFINED] and row not in same]


# What models say themselves, by the name of the prediction.
MODEL_PREDICTIONS: Mapping[str, str] = MappingProxyType(
    {
        "product": "softmax of the logits; the joint of an edge is the product of its ends",
        "averaged_logits": "logits averaged over 32 samples of labels, then softmax; product joints",
        "mixture_product": "probabilities averaged over 32 samples of labels; product joints",
        "mixture": "the mixture of 32 samples of labels, with its own joints",
        "published_misplaced_evidence": "published schedule of EM; max-product with the labels of training nodes put "
        "at the wrong nodes; product joints",
        "published_mean_field": "published schedule of EM; mean field with labels clamped; product joints",
        "published_sum_product": "published schedule of EM; sum-product with labels clamped; joints of the beliefs",
        "mean_field": "EM that has to beat its backbone on validation; mean field with labels clamped; product joints",
        "sum_product": "EM that has to beat its backbone on validation; sum-product with labels clamped; joints of the "
        "beliefs",
        "joint": "node marginals averaged over GCNs, and kept; the ends of each edge coupled by one number, learned "
        "from labels that were held out",
    }
)
UNCALIBRATED_PREDICTION = "product"  # the prediction that is calibrated, so models that have it can be
CALIBRATED_MODELS = tuple(
    model
    for model in KNOWN_MODELS
    if any(Source(model, UNCALIBRATED_PREDICTION) in rows.values() for rows in READINGS.values())
)

# What each calibrator makes of it, by its name, which is that of the prediction too.
CALIBRATED_PREDICTIONS: Mapping[str, str] = MappingProxyType(
    {
        "temperature": "logits divided by one temperature; product joints",
        "vector": "a factor and a shift for each class's logits; product joints",
        "ensemble": "a mixture of softmax with a temperature, softmax without one, and equal probabilities; product "
        "joints",
        "cagcn": "logits multiplied by a factor of each node, which a GCN makes from the logits; product joints",
        "gats": "logits divided by a temperature of each node, made by attention to its neighbors; product joints",
        "isotonic": "each class's probability mapped by a curve that never falls; product joints",
        "local": "logits divided by a temperature that follows the spread of a node's logits and its degree; product "
        "joints",
        "structured": "node marginals by local scaling, kept; the ends of each edge coupled by one learned number",
    }
)
CALIBRATORS = tuple(CALIBRATED_PREDICTIONS)

# What each prediction is, for the legend of a report.
PREDICTIONS: Mapping[str, str] = MappingProxyType({**MODEL_PREDICTIONS, **CALIBRATED_PREDICTIONS})
