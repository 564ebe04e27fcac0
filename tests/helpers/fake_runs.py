"""Fake runs, for tests of the store."""

import math

from edgewise.metrics.sums import VIEWS
from edgewise.sweep.runs import SAME_LABEL, Bins, Run, RunKey, ViewResult
from edgewise.sweep.store import TaskRow

VERSIONS = {"edgewise": "0.1.0", "python": "3.11.7", "torch": "2.13.0"}


def make_run(init: int, model: str = "gcn", fold: int = 0) -> Run:
    """Return a run whose scores depend on ``init``. The view disagree is empty, and one NLL is infinite."""
    bins = Bins([init, 3], [0.1 * init, 2.5], [init, 2])
    scored = ViewResult(10 + init, 0.5 + init / 1000, 1 / (1 + init), 0.1, 0.01 * init, bins)
    empty = ViewResult(0, math.nan, math.nan, math.nan, math.nan, Bins([0, 0], [0.0, 0.0], [0, 0]))
    certain = ViewResult(5, 0.5, math.inf, 0.5, 0.5, bins)
    views = {**dict.fromkeys(VIEWS, scored), "disagree": empty, SAME_LABEL: certain}
    key = RunKey("cora", model, '[{"hidden": 64}]', 0, fold, init)
    return Run(key, {"product": views, "other": views}, 1.5 + init, 100 + init, VERSIONS, "2026-01-02T03:04:05+00:00")


def make_task(fingerprint: str = "0123456789abcdef", split: int = 0) -> TaskRow:
    return TaskRow("cora", split, fingerprint, 520, 2206, 24, 3, 0.75, 0.9, 0.8, math.nan, 52.0, 375.0)
