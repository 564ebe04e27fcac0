"""How names and numbers are written, and what rows of tables look like in figures and on the page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from edgewise.data.pyg_files import HETEROPHILOUS
from edgewise.paper.readings import AS_DEFINED, AS_PUBLISHED
from edgewise.plots.style import BLUE, GRAY, GREEN, OCHRE, PURPLE, VERMILION
from edgewise.sweep.runs import SAME_LABEL


@dataclass(frozen=True)
class RowStyle:
    """The look of a row. Where colors are not seen, markers and dashes tell rows apart.

    ``marker`` is matplotlib's name of one; the page has shapes of the same names. ``dash``, the color on a dark screen
    if it is another, and the ``note``, a sentence about a model that is not of the paper, are for the page alone.
    """

    label: str
    color: str
    marker: str = "o"
    dash: str = "none"
    dark_color: str = ""
    note: str = ""


ROW_STYLES: Mapping[str, RowStyle] = MappingProxyType(
    {
        "gcn": RowStyle("GCN", BLUE, "o"),
        "gat": RowStyle("GAT", VERMILION, "s", "7 4"),
        "gmnn": RowStyle("GMNN", GREEN, "^", "2 3"),
        "epfgnn": RowStyle("EPFGNN", PURPLE, "D", "9 3 2 3"),
        "epfgnn mean field": RowStyle("EPFGNN mean field", "#1c2128", "v", "4 3", dark_color="#e7e9ec"),
        "jointgcn": RowStyle(
            "JointGCN",
            OCHRE,
            "<",
            "12 3",
            note="JointGCN is not of the paper: it averages GCNs, each trained without a part of the training nodes, "
            "and couples the ends of each edge as much as the labels that were held out say.",
        ),
        # Two of Tol's colors, far from the model that is calibrated.
        "gcn calibrated": RowStyle("GCN, calibrated", "#882255", "$✦$", dark_color="#f2a2c4"),
        "gat calibrated": RowStyle("GAT, calibrated", "#332288", "*", dark_color="#b8b0f0"),
    }
)


def calibrated_row(model: str) -> str:
    """Return the name of the row of what a calibrator makes of a model."""
    return f"{model} calibrated"


def row_style(row: str) -> RowStyle:
    """Return the style of a row; without one above it is gray: a circle, or a star if it is calibrated."""
    is_calibrated = row == calibrated_row(row.split(" ")[0])
    return ROW_STYLES.get(row, RowStyle(row, GRAY, "*", "2 3") if is_calibrated else RowStyle(row, GRAY))


def row_styles_css(rows: Iterable[str]) -> str:
    """Write colors and dashes of rows as CSS of whatever is marked as theirs; print always has the light colors."""
    styles = {f'[data-model="{row}"]': row_style(row) for row in rows}
    light = [f"{which} {{ --color: {style.color}; --dash: {style.dash}; }}" for which, style in styles.items()]
    dark = [f"  {which} {{ --color: {style.dark_color}; }}" for which, style in styles.items() if style.dark_color]
    return "\n".join([*light, "@media screen and (prefers-color-scheme: dark) {", *dark, "}", ""])


METRIC_NAMES = {"ece": "ECE", "accuracy": "accuracy", "nll": "NLL", "brier": "Brier score"}
COUNTS = ("nodes", "directed_edges", "features", "classes")
FRACTIONS = ("homophily", "k_edgewise", "k_agree", "k_disagree")
READING_NAMES = {AS_PUBLISHED: "as published", AS_DEFINED: "as defined"}
PERCENT = ("accuracy", "ece", *FRACTIONS)
NO_VALUE = "–"
LABELS = {
    "cora": "Cora",
    "citeseer": "Citeseer",
    "pubmed": "Pubmed",
    **{name: name.capitalize() for name in HETEROPHILOUS},
    **{row: style.label for row, style in ROW_STYLES.items()},
    "cagcn": "CaGCN",
    "gats": "GATS",
    "directed_edges": "edges",
    "k_edgewise": "K edgewise",
    "k_agree": "K agree",
    "k_disagree": "K disagree",
    SAME_LABEL: "same label",
}
VIEW_ADJECTIVES = {"nodewise": "node", "edgewise": "edge"}


def display_name(name: str) -> str:
    """Write a name of the results as people do; of several words the first one.

    >>> display_name("cora"), display_name("epfgnn mean field"), display_name("gat + structured")
    ('Cora', 'EPFGNN mean field', 'GAT + structured')
    """
    first, space, rest = name.partition(" ")
    return LABELS.get(name, f"{LABELS.get(first, first)}{space}{rest}")


def score_name(view: str, metric: str) -> str:
    """Name a score, such as "edge NLL"."""
    return f"{VIEW_ADJECTIVES.get(view, display_name(view))} {METRIC_NAMES[metric]}"


def format_mean_std(mean: float, std: float, metric: str) -> str:
    """Write mean ± std: shares in percent, counts whole, NLL and Brier score as they are; a NaN is left out.

    >>> format_mean_std(0.1234, 0.01, "ece"), format_mean_std(0.1234, math.nan, "ece")
    ('12.34 ± 1.00', '12.34')
    >>> format_mean_std(math.nan, math.nan, "ece")
    '–'
    """
    if math.isnan(mean):
        return NO_VALUE
    if metric in COUNTS:
        return f"{mean:,.0f}"
    factor, digits = (100, 2) if metric in PERCENT else (1, 3)
    spread = "" if math.isnan(std) else f" ± {factor * std:.{digits}f}"
    return f"{factor * mean:.{digits}f}{spread}".replace("inf", "∞")


def format_number(value: float, metric: str) -> str:
    """Write one number as a table does."""
    return format_mean_std(value, math.nan, metric)


def format_signed(value: float, digits: int = 2) -> str:
    """Write a number with its sign, but none at zero."""
    if math.isnan(value):
        return NO_VALUE
    text = f"{value:+.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−").replace("inf", "∞")


def join_with_and(parts: Sequence[str]) -> str:
    """Write several things one after the other, with "and" before the last."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
