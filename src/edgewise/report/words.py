"""How names and numbers are written."""

import math
from collections.abc import Sequence

from edgewise.data.heterophilous import HETEROPHILOUS
from edgewise.data.statistics import MeanStd
from edgewise.experiments.readings import AS_DEFINED, AS_PUBLISHED
from edgewise.experiments.runs import SAME_LABEL
from edgewise.report.results import SHARES, Summary
from edgewise.report.row_looks import LOOKS

METRIC_NAMES = {"ece": "ECE", "accuracy": "accuracy", "nll": "NLL", "brier": "Brier score"}
READING_NAMES = {AS_PUBLISHED: "as published", AS_DEFINED: "as defined"}
PERCENT = ("accuracy", "ece", *SHARES)
EMPTY = "–"
LABELS = {
    "cora": "Cora",
    "citeseer": "Citeseer",
    "pubmed": "Pubmed",
    **{name: name.capitalize() for name in HETEROPHILOUS},
    **{row: look.label for row, look in LOOKS.items()},
    "cagcn": "CaGCN",
    "gats": "GATS",
    "directed_edges": "edges",
    "k_edgewise": "K edgewise",
    "k_agree": "K agree",
    "k_disagree": "K disagree",
    SAME_LABEL: "same label",
}
OF_VIEW = {"nodewise": "node", "edgewise": "edge"}


def label(name: str) -> str:
    """Write a name of the results as people do; of several words the first one.

    >>> label("cora"), label("epfgnn mean field"), label("gat + structured")
    ('Cora', 'EPFGNN mean field', 'GAT + structured')
    """
    first, space, rest = name.partition(" ")
    return LABELS.get(name, f"{LABELS.get(first, first)}{space}{rest}")


def score_name(view: str, metric: str) -> str:
    """Name a score, such as "edge NLL"."""
    return f"{OF_VIEW.get(view, label(view))} {METRIC_NAMES[metric]}"


def mean_std(value: MeanStd | None, metric: str) -> str:
    """Write mean ± std: shares in percent, NLL and Brier score as they are; one run has no spread."""
    if value is None:
        return EMPTY
    factor, digits = (100, 2) if metric in PERCENT else (1, 3)
    alone = isinstance(value, Summary) and value.runs == 1
    std = "" if alone or math.isnan(value.std) else f" ± {factor * value.std:.{digits}f}"
    return f"{factor * value.mean:.{digits}f}{std}".replace("inf", "∞")


def number(value: float, metric: str) -> str:
    """Write one number: shares in percent."""
    return mean_std(MeanStd(value, math.nan), metric)


def signed(value: float, digits: int = 2) -> str:
    """Write a number with its sign, but none at zero."""
    if math.isnan(value):
        return EMPTY
    text = f"{value:+.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−").replace("inf", "∞")


def listed(parts: Sequence[str]) -> str:
    """Write several things one after the other, with "and" before the last."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def counted(count: int, name: str) -> str:
    """Write a number of things, in the plural but for one."""
    return f"{count} {name}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Write a time as people say it.

    >>> duration(42), duration(95), duration(4000)
    ('42 s', '1 min 35 s', '1 h 06 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
