"""Workers without processes, for tests of what happens to outcomes."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from edgewise.workers import JobOutcome
from edgewise.workers.outcomes import attempt


class InProcessWorkers:
    """Does one job after the other here."""

    count = 1

    def __str__(self) -> str:
        return "1 on this machine"

    def execute(
        self, function: Callable[[Any], Any], jobs: Sequence[Any], check: Any = None
    ) -> Generator[JobOutcome[Any, Any], None, None]:
        for job in jobs:
            yield attempt(function, job)
