"""Parsing, completion, progress bars and input files shared by several commands."""

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

from edgewise.cli.app import name_files_in_errors

if TYPE_CHECKING:
    from edgewise.posterior import Posterior


NAME_PATTERN = re.compile(r'^    name(?:: ClassVar\[str\])? = "([^"]+)"$', re.MULTILINE)  # class attribute
MULTIPLE_VALUE_OPTIONS = ("--calibrators", "--datasets", "--events", "--models")
OPEN_OPTION_KEY = "edgewise.open_option"  # in the context: the option that a further value would belong to


class MultipleValues(TyperCommand):
    """Command whose options take several values, separated by commas or spaces."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its values."""
        out: list[str] = []
        open_option = ""
        for arg in args:
            if arg.startswith("-"):
                open_option = arg.split("=")[0] if arg.split("=")[0] in MULTIPLE_VALUE_OPTIONS else ""
            elif open_option and out[-1] != open_option:
                out.append(open_option)
            out.append(arg)
        context.meta[OPEN_OPTION_KEY] = open_option
        return super().parse_args(context, out)

    def shell_complete(self, context: Any, incomplete: str) -> Any:
        """Complete all values of such an option, not only the first."""
        if (option := context.meta.get(OPEN_OPTION_KEY)) and not incomplete.startswith("-"):
            return next(param.shell_complete(context, incomplete) for param in self.params if option in param.opts)
        return super().shell_complete(context, incomplete)


def complete_from(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a completion function for names, also after a comma. ``names`` is called only on completion."""

    def complete(incomplete: str) -> list[str]:
        before, comma, prefix = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(prefix.lower())]

    return complete


def names_in(package: str) -> tuple[str, ...]:
    """Return the sorted names of the classes in ``"models"`` or ``"calibration"``.

    Files are searched as text, because importing them would import torch, and help must be fast.

    >>> {"gat", "gcn"} <= set(names_in("models"))
    True
    """
    files = (file for file in resources.files("edgewise").joinpath(package).iterdir() if file.name.endswith(".py"))
    return tuple(sorted(name for file in files for name in NAME_PATTERN.findall(file.read_text(encoding="utf-8"))))


def split_names(names: list[str] | None) -> tuple[str, ...]:
    """Split names at commas and spaces, in lower case."""
    return tuple(name for value in names or () for name in re.split(r"[,\s]+", value.lower()) if name)


def paths_as_text(paths: Mapping[str, Path | None]) -> dict[str, str | None]:
    """Convert paths to text as they were typed."""
    return {name: str(path) if path else None for name, path in paths.items()}


ReportProgress = Callable[[int, int], None]  # called with the numbers of finished and of all elements
PROGRESS_DELAY_SECONDS = 1.0  # shorter work shows no bar


@contextmanager
def progress_bar(
    initial: str = "preparing", description: str = "scoring {:,} edges"
) -> Iterator[ReportProgress | None]:
    """Show a progress bar if stderr is a terminal. It restarts with every pass over the edges."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns, console = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()), Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task(initial, total=None)

    def report(done: int, total: int) -> None:
        # After a pass, the remaining work is unknown. Without a total, the bar pulses until the next pass.
        bar.tasks[0].total = total if done < total else None
        bar.update(task, description=description.format(total), completed=done)

    finished = Event()

    def show() -> None:
        if not finished.wait(PROGRESS_DELAY_SECONDS):
            with bar:
                finished.wait()

    thread = Thread(target=show, daemon=True)  # also removes the bar, so that none is left after Ctrl-C
    try:
        thread.start()
        yield report
    finally:
        finished.set()
        if thread.is_alive():  # false if its start was interrupted
            thread.join()


def read_belief(path: Path) -> "Posterior":
    """Read a posterior from a file of probabilities, a posterior, a fitted model or a fitted calibrator."""
    from edgewise.files import inputs
    from edgewise.posterior import Posterior, as_posterior

    if path.suffix.lower() != ".safetensors":
        probs = inputs.read_probs(path)
        with name_files_in_errors(probs=path):
            return as_posterior(probs)
    with name_files_in_errors(probs=path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Inference of")  # printed by `convergence_warnings`
        if (format_name := _format_name(path)).startswith("edgewise fitted"):
            from edgewise.models import Fitted

            return Fitted.load(path).posterior()
        if format_name.startswith("edgewise calibrated"):
            from edgewise.calibration import Calibrated

            return Calibrated.load(path).posterior()
        return Posterior.load(path)


def convergence_warnings(*beliefs: object) -> list[str]:
    """Return one line per posterior whose inference did not converge."""
    reports = dict.fromkeys(getattr(belief, "convergence", None) for belief in beliefs)
    return [f"convergence: {report.advice}" for report in reports if report is not None and not report]


def _format_name(path: Path) -> str:
    """Return the format name in the metadata of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():  # reading a pipe would block
        return ""
    try:
        with safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("format"))
    except (SafetensorError, OSError):  # `Posterior.load` reports it
        return ""
