"""A bar for what takes longer than a moment."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

Report = Callable[[int, int], None]  # how many are done, of how many
PROGRESS_AFTER = 1.0  # seconds; what is done sooner needs no bar


@contextmanager
def progress_bar(at_first: str = "preparing", then: str = "scoring {:,} edges") -> Iterator[Report | None]:
    """Show on a terminal how far long work is; every pass over the edges starts the bar anew."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns, console = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()), Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task(at_first, total=None)

    def report(done: int, total: int) -> None:
        # After a pass nobody knows how much is left; without a total the bar moves to and fro until the next one.
        bar.tasks[0].total = total if done < total else None
        bar.update(task, description=then.format(total), completed=done)

    over = Event()

    def show() -> None:
        if not over.wait(PROGRESS_AFTER):
            with bar:
                over.wait()

    # The thread that shows the bar takes it away too: whenever Ctrl-C comes, no bar and no hidden cursor stay behind.
    shower = Thread(target=show)
    try:
        shower.start()
        yield report
    finally:
        over.set()
        if shower.is_alive():  # not if starting it was interrupted
            shower.join()
