"""What the two readings of the paper change, as a table and in sentences that are made from its numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgewise.experiments.readings import AS_DEFINED, AS_PUBLISHED, PREDICTIONS, READINGS
from edgewise.report.page_tables import PageCell, PageRow, label, same_in_both_readings, signed
from edgewise.report.paper_tables import METRIC_NAMES, PERCENT, TELLING, Change, change
from edgewise.report.results import Results

BETTER, WORSE, UNCLEAR = "better", "worse", "not clearly different"
OF_VIEW = {"nodewise": "node", "edgewise": "edge"}


@dataclass(frozen=True)
class Story:
    """What differs in one row of the tables: what is scored in each reading, and a sentence for each score."""

    row: str
    published: str
    defined: str
    sentences: list[str]


def changed_rows() -> list[str]:
    """Give the rows of the tables whose prediction is another in the other reading."""
    same = same_in_both_readings()
    return [row for row in READINGS[AS_PUBLISHED] if row not in same]


def score_name(view: str, metric: str) -> str:
    """Name a score, such as "edge NLL"."""
    return f"{OF_VIEW.get(view, label(view))} {METRIC_NAMES[metric]}"


def change_rows(results: Results) -> list[PageRow]:
    """Give a row for each dataset and changed row of the tables, with a cell for each telling score."""
    return [
        PageRow(dataset, row, [_cell(results, dataset, row, view, metric) for view, metric in TELLING])
        for dataset in results.datasets
        for row in changed_rows()
        if results.of(dataset, READINGS[AS_PUBLISHED][row].model)
    ]


def _cell(results: Results, dataset: str, row: str, view: str, metric: str) -> PageCell:
    found = change(results, dataset, row, view, metric)
    if found is None:
        return PageCell("–", None, "nothing to compare")
    runs = found.difference.runs
    return PageCell(_difference(found, metric), found.difference.mean, f"better in {found.better} of {runs}")


def _difference(found: Change, metric: str) -> str:
    return signed(100 * found.difference.mean, 2) if metric in PERCENT else signed(found.difference.mean, 4)


def stories(results: Results) -> list[Story]:
    """Tell what differs, for each changed row that has runs."""
    return [
        Story(
            row,
            PREDICTIONS[READINGS[AS_PUBLISHED][row].prediction],
            PREDICTIONS[READINGS[AS_DEFINED][row].prediction],
            [sentence for view, metric in TELLING if (sentence := _sentence(results, row, view, metric))],
        )
        for row in changed_rows()
        if any(results.of(dataset, READINGS[AS_PUBLISHED][row].model) for dataset in results.datasets)
    ]


def _sentence(results: Results, row: str, view: str, metric: str) -> str:
    """Say on which datasets a score is better as defined, on which worse, by how much and in how many runs."""
    each = {dataset: change(results, dataset, row, view, metric) for dataset in results.datasets}
    found = {label(dataset): one for dataset, one in each.items() if one is not None}
    if not found:
        return ""
    name = score_name(view, metric)
    places = {
        direction: [place for place, one in found.items() if _direction(one, metric) == direction]
        for direction in (BETTER, WORSE, UNCLEAR)
    }
    verdict = "; ".join(f"{direction} on {_listed(several)}" for direction, several in places.items() if several)
    better, runs = sum(one.better for one in found.values()), sum(one.difference.runs for one in found.values())
    by = _range([*found.values()], metric)
    return f"{name[0].upper()}{name[1:]} is {verdict}: {by}, better in {better} of {runs} runs."


def _direction(found: Change, metric: str) -> str:
    """Tell better from worse; a mean within two standard errors of zero is neither."""
    difference = found.difference
    if abs(difference.mean) <= 2 * difference.std / math.sqrt(difference.runs):
        return UNCLEAR
    return BETTER if (difference.mean > 0) == (metric == "accuracy") else WORSE


def _range(found: Sequence[Change], metric: str) -> str:
    ordered = sorted(found, key=lambda one: one.difference.mean)
    ends = dict.fromkeys((_difference(ordered[0], metric), _difference(ordered[-1], metric)))
    return " to ".join(ends) + (" points" if metric in PERCENT else "")


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
