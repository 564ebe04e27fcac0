"""The application: what all commands share, which is how they fail and how help looks."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import FrameType, TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from edgewise.version import versions

ORDER = ("evaluate", "calibrate", "predict", "datasets", "reproduce", "report", "study")  # of commands in help


class _Commands(TyperGroup):
    """Says what went wrong in one line: exit code 2 for what can be mended, 130 for Ctrl-C, 141 for a closed pipe."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command and leave with its exit code."""
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # what a terminal cannot show must not cost the answer
        code, interruption = 0, Interruption()
        try:
            with interruption:
                try:
                    code = super().main(*args, **{**extra, "standalone_mode": False})
                except SystemExit as end:
                    if not isinstance(end.__context__, BrokenPipeError):
                        raise
                    code = NOBODY_READS
                except Exception as error:
                    if not interruption.code:  # else it is what an interrupted library made of it
                        code = _told(error)
        except KeyboardInterrupt:  # it may come while an error is told
            code = INTERRUPTED
        if interruption.code or code == INTERRUPTED:
            code = interruption.code or code
            if not interruption.is_told:
                complain("Interrupted.")
        sys.exit(code or 0)

    def list_commands(self, context: Any) -> list[str]:
        """Give the commands in the order in which people need them."""
        return sorted(super().list_commands(context), key=ORDER.index)


def _told(error: Exception) -> int:
    """Say what can be mended, and give the exit code; raise the rest, which is a mistake of ours."""
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if isinstance(error, OSError) and error.strerror:
        what = f"use {error.filename}" if error.filename else "write the output"
        return complain(f"Expected to {what}, but got: {error.strerror}.")
    if isinstance(error, ValueError | OSError):
        return complain(str(error))
    # torch has no error of its own for a lack of memory.
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in str(error)):
        return complain("Expected more memory than there is. Bins of equal mass and resamples take the most.")
    # What typer raises for a wrong option has no public class in some of its versions, but this method in all.
    if not hasattr(error, "format_message"):
        raise error
    context = getattr(error, "ctx", None)
    message = error.format_message().replace(": Value error, ", ": ")  # which some versions of typer say of a choice
    stop = "" if message.endswith((".", "?")) else "."
    return complain(message + stop + (f" See '{context.command_path} --help'." if context else ""))


# Plain help: in 80 columns typer's boxes leave twenty for the text.
app = typer.Typer(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

EXAMPLES = """\b
Examples:
  edgewise evaluate --probs probs.npy --labels labels.npy --edges edges.npy
  edgewise calibrate --probs probs.npy --labels labels.npy --edges edges.npy \\
    --train train.npy --val val.npy --out calibrated.safetensors
  edgewise predict --probs calibrated.safetensors --pairs pairs.csv
  edgewise reproduce --out results --quick
"""


def _print_versions(wanted: bool) -> None:
    if wanted:
        typer.echo("\n".join(f"{name} {version}" for name, version in versions().items()))
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def _start(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_versions, is_eager=True, help="Show versions, of libraries too, and exit."
        ),
    ] = False,
) -> None:
    """Tell how right a node classifier's probabilities are, for nodes and for pairs of neighbours."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


SOME_RUNS_FAILED, FAILED, INTERRUPTED = 1, 2, 130
NOBODY_READS = 141  # what a shell gives where SIGPIPE ended a command


def complain(message: str) -> int:
    """Say in one line what is wrong, and give the exit code."""
    with suppress(OSError):  # nobody listens, but the exit code still tells
        typer.echo(f"edgewise: {' '.join(message.split())}", err=True)
    return FAILED


@contextmanager
def complaints_name(**files: Path | None) -> Iterator[None]:
    """Say which file is which when something is wrong with what is in them."""
    try:
        yield
    except ValueError as error:
        named = ", ".join(f"{name} is {file}" for name, file in files.items() if file and str(file) not in str(error))
        raise ValueError(f"{error} ({named})" if named else str(error)) from error


# Code that is on the stack while a module is imported, which torch and NumPy would go on with half of, having swallowed
# what is raised; while a worker is started, which would print that it got half of its orders; while a progress bar or
# a table comes or goes (not while it is shown), which would leave the cursor hidden; and while a thread is started or a
# lock is taken, which would leave another thread waiting for ever.
FILES_NOT_TO_BE_CUT = ("<frozen importlib._bootstrap>", "popen_spawn_posix.py", str(Path("cli", "progress_bar.py")))
FUNCTIONS_NOT_TO_BE_CUT = (
    *("Thread.start", "ThreadPoolExecutor.submit", "Condition.__enter__", "Condition.__exit__"),
    *("Live.start", "Live.stop"),
)
PATIENCE = 0.002  # seconds until it is looked again whether they have ended
WAITING = b"\nedgewise: Interrupted; it ends when what is being loaded is whole.\n"  # below ^C and the progress bar


class Interruption:
    """While it is entered, SIGINT and SIGTERM raise KeyboardInterrupt, at the next moment at which that does no harm.

    A second signal does not wait for it.
    """

    def __init__(self) -> None:
        self.signal = 0
        self.is_told = False  # on the terminal, so that nobody presses again
        self._has_waited = False
        self._before: dict[int, Any] = {}

    @property
    def code(self) -> int:
        """The exit code that tells which signal came; 0 if none did."""
        return 128 + self.signal if self.signal else 0

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # no other may, and no other is interrupted
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as in the background of a shell
                    self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.signal and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        is_first, self.signal = not self.signal, number
        if _is_over(frame):
            return
        if is_first and hasattr(signal, "setitimer"):  # not on Windows
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._look_again)
            self._look_again(signal.SIGALRM, frame)
            return
        raise KeyboardInterrupt

    def _look_again(self, number: int, frame: FrameType | None) -> None:
        if _is_over(frame):
            return
        if _can_be_cut(frame):
            raise KeyboardInterrupt
        if self._has_waited and not self.is_told and os.isatty(2):
            self.is_told = True
            os.write(2, WAITING)
        self._has_waited = True
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)


def _is_over(frame: FrameType | None) -> bool:
    """Tell whether handlers are being put back; a flag could be set too late."""
    while frame is not None and frame.f_code is not Interruption.__exit__.__code__:
        frame = frame.f_back
    return frame is not None


def _can_be_cut(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_qualname in FUNCTIONS_NOT_TO_BE_CUT or code.co_filename.endswith(FILES_NOT_TO_BE_CUT):
            return False
        frame = frame.f_back
    return True
