"""Two readings of the paper: the prediction that each row of its tables shows, and descriptions of all predictions.

Models and calibrators that are not listed here can be run and shown too. They come after the listed ones, sorted by
name. This module imports nothing slow, because command-line help uses it.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

AS_PUBLISHED, AS_DEFINED = "as_published", "as_defined"


class Source(NamedTuple):
    """The source of a row of the tables: a model, and the prediction of it that is scored."""

    model: str
    prediction: str


# By reading (as published, as defined), then by row of the tables. Each model has a row of its own name. Models that
# are not in the paper have one only as defined.
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
            "deepensemble": Source("deepensemble", "deepensemble_mixture"),
            "mcdropout": Source("mcdropout", "mcdropout_mixture"),
            "spn": Source("spn", "spn_sum_product"),
            "jointgcn": Source("jointgcn", "joint"),
        },
    }
)


def sort_known_first(known: Iterable[str], names: Iterable[str]) -> list[str]:
    """Sort unique names: known ones in the known order, then the others alphabetically."""
    unique = set(names)
    in_order = [name for name in known if name in unique]
    return in_order + sorted(unique.difference(in_order))


def _models(*readings: str) -> tuple[str, ...]:
    """Return the distinct models of readings, in the order of their rows."""
    return tuple(dict.fromkeys(source.model for reading in readings for source in READINGS[reading].values()))


MODELS = _models(AS_PUBLISHED)  # those of the paper, the default of --models
KNOWN_MODELS = _models(*READINGS)


def same_in_both_readings() -> list[str]:
    """Return the rows of the tables that show the same prediction in both readings."""
    one, *others = READINGS.values()
    return [row for row, source in one.items() if all(other.get(row) == source for other in others)]


def changed_rows() -> list[str]:
    """Return the rows of the tables that show different predictions in the two readings."""
    same = same_in_both_readings()
    return [row for row in READINGS[AS_PUBLISHED] if row in READINGS[AS_DEFINED] and row not in same]


# Descriptions of the predictions of models, by name.
MODEL_PREDICTIONS: Mapping[str, str] = MappingProxyType(
    {
        "product": "softmax of the logits; product joints: the joint of an edge is the product of its ends",
        "averaged_logits": "logits averaged over 32 samples of labels, then softmax; product joints",
        "mixture_product": "probabilities averaged over 32 samples of labels; product joints",
        "mixture": "the mixture of 32 samples of labels, with its own joints",
        "published_misplaced_evidence": "published EM schedule; max-product with the labels of training nodes assigned "
        "to the wrong nodes; product joints",
        "published_mean_field": "published EM schedule; mean field with labels clamped; product joints",
        "published_sum_product": "published EM schedule; sum-product with labels clamped; edge beliefs as joints",
        "mean_field": "EM that must improve on its backbone in validation; mean field with labels clamped; product "
        "joints",
        "sum_product": "EM that must improve on its backbone in validation; sum-product with labels clamped; edge "
        "beliefs as joints",
        "joint": "node marginals averaged over GCNs; joints with these marginals and one coupling for all edges, "
        "learned from held-out labels",
        "deepensemble_product": "probabilities averaged over several networks with different seeds; product joints",
        "deepensemble_mixture": "the mixture of several networks with different seeds, with its own joints",
        "mcdropout_product": "probabilities averaged over predictions of a network with dropout at prediction time; "
        "product joints",
        "mcdropout_mixture": "the mixture of predictions of a network with dropout at prediction time, with its own "
        "joints",
        "spn_sum_product": "potentials of a node network and an edge network; sum-product with labels clamped; edge "
        "beliefs as joints",
    }
)
UNCALIBRATED_PREDICTION = "product"  # the input of calibrators; models that have it can be calibrated
CALIBRATED_MODELS = tuple(
    model
    for model in KNOWN_MODELS
    if any(Source(model, UNCALIBRATED_PREDICTION) in rows.values() for rows in READINGS.values())
)

# Descriptions of calibrated predictions, by the name of the calibrator.
CALIBRATED_PREDICTIONS: Mapping[str, str] = MappingProxyType(
    {
        "temperature": "logits divided by one temperature; product joints",
        "vector": "logits scaled and shifted per class; product joints",
        "ensemble": "a mixture of softmax with a temperature, softmax without one, and the uniform distribution; "
        "product joints",
        "cagcn": "logits scaled per node by a GCN on the logits; product joints",
        "gats": "logits divided by a temperature per node from attention to its neighbors; product joints",
        "isotonic": "isotonic regression of each class's probability; product joints",
        "local": "logits divided by a temperature per node, a function of the spread of its logits and its degree; "
        "product joints",
        "bayesian": "the average of sixteen scaling models, weighted by their evidence; product joints",
        "structured": "node marginals of Bayesian scaling; joints with these marginals and one learned coupling, which "
        "is weaker at hubs and may be zero",
    }
)
CALIBRATORS = tuple(CALIBRATED_PREDICTIONS)

# Descriptions of all predictions, for the legend of the report.
PREDICTIONS: Mapping[str, str] = MappingProxyType({**MODEL_PREDICTIONS, **CALIBRATED_PREDICTIONS})
