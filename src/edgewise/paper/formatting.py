"""Formatting of names and numbers, and the colors and markers of rows in figures and on the page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from edgewise.data.pyg_files import LOADERS
from edgewise.paper.readings import AS_DEFINED, AS_PUBLISHED
from edgewise.plots.style import BLUE, GRAY, GREEN, OCHRE, PURPLE, VERMILION
from edgewise.sweep.runs import SAME_LABEL


@dataclass(frozen=True)
class RowStyle:
    """Color, marker and dash of a row, so that rows differ with and without color.

    ``marker`` is a matplotlib marker; the page has shapes of the same names. Only the page uses ``dash``,
    ``dark_color`` (the color on a dark screen if it differs) and ``note`` (a sentence about a model that is not in the
    paper).
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
            note="JointGCN is not in the paper: it averages GCNs, each trained without a part of the training nodes, "
            "and couples the ends of each edge with a strength fitted to the held-out labels.",
        ),
        "deepensemble": RowStyle(
            "Deep ensemble",
            "#2a7f8e",
            ">",
            "6 2 2 2",
            note="The deep ensemble is not in the paper: it is the mixture of several networks with different seeds.",
        ),
        "mcdropout": RowStyle(
            "MC dropout",
            "#7a5230",
            "P",
            "3 2",
            "#c49a6c",
            note="MC dropout is not in the paper: it is the mixture of predictions of a network with dropout at "
            "prediction time.",
        ),
        "spn": RowStyle(
            "SPN",
            "#b3007d",
            "X",
            "10 2 2 2 2 2",
            "#ff7ac6",
            note="SPN is not in the paper: it is a Markov random field with potentials of a node network and an edge "
            "network, and predicts by belief propagation.",
        ),
        # Two of Paul Tol's colors, distinct from those of the uncalibrated models.
        "gcn calibrated": RowStyle("GCN, calibrated", "#882255", "$✦$", dark_color="#f2a2c4"),
        "gat calibrated": RowStyle("GAT, calibrated", "#332288", "*", dark_color="#b8b0f0"),
    }
)


def calibrated_row(model: str) -> str:
    """Return the row name of a calibrated model."""
    return f"{model} calibrated"


def row_style(row: str) -> RowStyle:
    """Return the style of a row. Rows without one are gray, with a star if calibrated, else a circle."""
    is_calibrated = row == calibrated_row(row.split(" ")[0])
    label = display_name(row)
    return ROW_STYLES.get(row, RowStyle(label, GRAY, "*", "2 3") if is_calibrated else RowStyle(label, GRAY))


def row_styles_css(rows: Iterable[str]) -> str:
    """Return CSS with colors and dashes for elements with data-model. Print always uses the light colors."""
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
    **{name: name.capitalize() for name in LOADERS},
    "cs": "CS",
    "dblp": "DBLP",
    "cora-ml": "Cora-ML",
    **{row: style.label for row, style in ROW_STYLES.items()},
    "mlp": "MLP",
    "graphsage": "GraphSAGE",
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
    """Return the display name of a dataset, model, row or view. Of several words the first may be replaced.

    >>> display_name("cora"), display_name("epfgnn mean field"), display_name("gat + structured")
    ('Cora', 'EPFGNN mean field', 'GAT + structured')
    """
    first, space, rest = name.partition(" ")
    return LABELS.get(name, f"{LABELS.get(first, first)}{space}{rest}")


def score_name(view: str, metric: str) -> str:
    """Return the display name of a score, such as "edge NLL"."""
    return f"{VIEW_ADJECTIVES.get(view, display_name(view))} {METRIC_NAMES[metric]}"


def format_mean_std(mean: float, std: float, metric: str) -> str:
    """Format mean ± std: fractions in percent, counts as integers, NLL and Brier score unscaled. A NaN std is omitted.

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
    """Format a mean without std."""
    return format_mean_std(value, math.nan, metric)


def format_signed(value: float, digits: int = 2) -> str:
    """Format a number with its sign, without one for zero."""
    if math.isnan(value):
        return NO_VALUE
    text = f"{value:+.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−").replace("inf", "∞")


def join_with_and(parts: Sequence[str]) -> str:
    """Join texts by commas, with "and" before the last."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
