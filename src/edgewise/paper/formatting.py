"""How names and numbers are written."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from edgewise.data.pyg_files import HETEROPHILOUS
from edgewise.data.statistics import MeanStd
from edgewise.paper.readings import AS_DEFINED, AS_PUBLISHED
from edgewise.paper.results import SHARES, Summary
from edgewise.plots.style import BLUE, GREEN, GREY, OCHRE, PURPLE, VERMILION
from edgewise.sweep.runs import SAME_LABEL


@dataclass(frozen=True)
class RowLook:
    """The look of a row. Where colours are not seen, markers and dashes tell rows apart.

    ``marker`` is matplotlib's name of one; the page has shapes of the same names. ``dash``, the colour at ``night`` if
    it is another, and the ``note``, a sentence about a model that is not of the paper, are for the page alone.
    """

    label: str
    colour: str
    marker: str = "o"
    dash: str = "none"
    night: str = ""
    note: str = ""


LOOKS: Mapping[str, RowLook] = MappingProxyType(
    {
        "gcn": RowLook("GCN", BLUE, "o"),
        "gat": RowLook("GAT", VERMILION, "s", "7 4"),
        "gmnn": RowLook("GMNN", GREEN, "^", "2 3"),
        "epfgnn": RowLook("EPFGNN", PURPLE, "D", "9 3 2 3"),
        "epfgnn mean field": RowLook("EPFGNN mean field", "#1c2128", "v", "4 3", night="#e7e9ec"),
        "jointgcn": RowLook(
            "JointGCN",
            OCHRE,
            "<",
            "12 3",
            note="JointGCN is not of the paper: it averages GCNs, each trained without a part of the training nodes, "
            "and couples the ends of each edge as much as the labels that were held out say.",
        ),
        # Two of Tol's colours, far from the model that is calibrated.
        "gcn calibrated": RowLook("GCN, calibrated", "#882255", "$✦$", night="#f2a2c4"),
        "gat calibrated": RowLook("GAT, calibrated", "#332288", "*", night="#b8b0f0"),
    }
)


def calibrated_row(model: str) -> str:
    """Name what a calibrator makes of a model."""
    return f"{model} calibrated"


def look_of(row: str) -> RowLook:
    """Give the look of a row; without one above it is grey: a circle, or a star if it is calibrated."""
    is_calibrated = row == calibrated_row(row.split(" ")[0])
    return LOOKS.get(row, RowLook(row, GREY, "*", "2 3") if is_calibrated else RowLook(row, GREY))


def looks_css(rows: Iterable[str]) -> str:
    """Give colours and dashes of rows as a style of whatever is marked as theirs; print is always day."""
    looks = {f'[data-model="{row}"]': look_of(row) for row in rows}
    day = [f"{which} {{ --colour: {look.colour}; --dash: {look.dash}; }}" for which, look in looks.items()]
    night = [f"  {which} {{ --colour: {look.night}; }}" for which, look in looks.items() if look.night]
    return "\n".join([*day, "@media screen and (prefers-color-scheme: dark) {", *night, "}", ""])


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
