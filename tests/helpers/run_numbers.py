"""What has to be the same wherever and whenever a run is done."""

from collections.abc import Iterable
from dataclasses import replace

from edgewise.sweep.runs import Run, RunKey


def numbers(runs: Iterable[Run]) -> dict[RunKey, str]:
    """Give all of each run but its time, as text: in it NaN is like NaN, and every float is exact."""
    runs = list(runs)
    assert all(isinstance(run, Run) for run in runs)
    assert len({run.key for run in runs}) == len(runs)
    return {run.key: repr(replace(run, seconds=0.0, finished="")) for run in runs}
