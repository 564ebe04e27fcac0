"""Options that several commands read in the same way."""

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from edgewise.cli.app import complaints_name

if TYPE_CHECKING:
    from edgewise.posterior import Posterior


NAME = re.compile(r'^    name(?:: ClassVar\[str\])? = "([^"]+)"$', re.MULTILINE)  # of a class
SEVERAL = ("--calibrators", "--datasets", "--events", "--models")
SEVERAL_OPEN = "edgewise.several_open"  # the option of these that further values would belong to


class SeveralValues(TyperCommand):
    """Takes several values after some options, by commas or by spaces."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Repeat the option before each further value."""
        out: list[str] = []
        several = ""
        for arg in args:
            if arg.startswith("-"):
                several = arg.split("=")[0] if arg.split("=")[0] in SEVERAL else ""
            elif several and out[-1] != several:
                out.append(several)
            out.append(arg)
        context.meta[SEVERAL_OPEN] = several
        return super().parse_args(context, out)

    def shell_complete(self, context: Any, incomplete: str) -> Any:
        """Complete further values of such an option too."""
        if (option := context.meta.get(SEVERAL_OPEN)) and not incomplete.startswith("-"):
            return next(param.shell_complete(context, incomplete) for param in self.params if option in param.opts)
        return super().shell_complete(context, incomplete)


def completes(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Complete a name, also after others and a comma; names are asked for when a shell asks for them."""

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(begun.lower())]

    return complete


def names_in(package: str) -> tuple[str, ...]:
    """Return what models or calibrators are called, sorted.

    Their files are read as text: help must not wait until torch is imported.

    >>> {"gat", "gcn"} <= set(names_in("models"))
    True
    """
    files = (file for file in resources.files("edgewise").joinpath(package).iterdir() if file.name.endswith(".py"))
    return tuple(sorted(name for file in files for name in NAME.findall(file.read_text(encoding="utf-8"))))


def listed(names: list[str] | None) -> tuple[str, ...]:
    """Take apart what was given by commas."""
    return tuple(name for several in names or () for name in several.lower().split(",") if name)


def as_given(paths: Mapping[str, Path | None]) -> dict[str, str | None]:
    """Give paths as they were typed."""
    return {name: str(path) if path else None for name, path in paths.items()}


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

    shower = Thread(target=show, daemon=True)  # takes the bar away too, so Ctrl-C leaves none behind
    try:
        shower.start()
        yield report
    finally:
        over.set()
        if shower.is_alive():  # not if starting it was interrupted
            shower.join()


def read_belief(path: Path) -> "Posterior":
    """Read the posterior in a file: of probabilities, of a posterior, of a fitted model or of a fitted calibrator."""
    from edgewise.files import inputs
    from edgewise.posterior import Posterior, as_posterior

    if path.suffix.lower() != ".safetensors":
        probs = inputs.read_probs(path)
        with complaints_name(probs=path):
            return as_posterior(probs)
    with complaints_name(probs=path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Inference of")  # commands print it themselves
        if (format_name := _format_of(path)).startswith("edgewise fitted"):
            from edgewise.models import Fitted

            return Fitted.load(path).posterior()
        if format_name.startswith("edgewise calibrated"):
            from edgewise.calibration import Calibrated

            return Calibrated.load(path).posterior()
        return Posterior.load(path)


def convergence_warnings(*beliefs: object) -> list[str]:
    """Return a line for each posterior whose inference did not converge, as predict prints it below its table."""
    found = [getattr(belief, "convergence", None) for belief in beliefs]
    return [f"convergence: {ended.advice}" for ended in dict.fromkeys(found) if ended is not None and not ended]


def _format_of(path: Path) -> str:
    """Return what a safetensors file says that it holds."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():  # a pipe would be waited for
        return ""
    try:
        with safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("format"))
    except (SafetensorError, OSError):  # said in words by whoever reads it
        return ""
