"""Workers that run jobs in this process."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from edgewise.workers import JobOutcome
from edgewise.workers.outcomes import attempt


class InProcessWorkers:
    """Workers that run one job after another in this process."""

    def __init__(self, count: int = 1):
        self.count = count

    def __str__(self) -> str:
        return "1 on this machine"

    def execute(
        self, function: Callable[[Any], Any], jobs: Sequence[Any], check: Any = None, group: Any = None
    ) -> Generator[JobOutcome[Any, Any], None, None]:
        for job in jobs:
            yield attempt(function, job)
