"""How each row of the tables looks in figures and on the page: its written name, colours, marker and dash."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from edgewise.report.colours import BLUE, GREEN, GREY, OCHRE, PURPLE, VERMILION


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
