"""The application: which commands there are, how they fail, and how Ctrl-C ends them."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from edgewise.version import versions

# In the order of help. Each has its file here, whose `app` holds the one command.
COMMANDS = ("evaluate", "calibrate", "predict", "datasets", "reproduce", "report", "study")

SOME_RUNS_FAILED, FAILED, INTERRUPTED, TERMINATED = 1, 2, 130, 143
CLOSED_PIPE = 141  # what a shell gives where SIGPIPE ended a command
SHOW_CURSOR = "\x1b[?25h"


class _Commands(TyperGroup):
    """Loads a command when it is asked for, and makes one line and an exit code of whatever ends it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = dict.fromkeys(COMMANDS)  # typer looks here for names that are nearly right

    def list_commands(self, context: Any) -> list[str]:
        """Return the commands in the order in which people need them."""
        return list(COMMANDS)

    def get_command(self, context: Any, name: str) -> Any:
        """Load one command, and nothing that only others need."""
        return get_command(import_module(f"edgewise.cli.{name}").app) if name in COMMANDS else None

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command and leave with its exit code."""
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # what a terminal cannot show must not cost the answer
        code, signals = 0, Signals()
        try:
            with signals:
                try:
                    code = super().main(*args, **{**extra, "standalone_mode": False}) or 0
                except SystemExit as end:
                    if not isinstance(end.__context__, BrokenPipeError):
                        raise
                    code = CLOSED_PIPE
                except Exception as error:
                    if not signals.exit_code:  # else it is what an interrupted library made of the signal
                        code = complain_of(error)
        except KeyboardInterrupt:
            code = INTERRUPTED
        code = signals.exit_code or code
        if code in (INTERRUPTED, TERMINATED):
            _leave_terminal()
            complain("Interrupted.")
        sys.exit(code)


def _leave_terminal() -> None:
    """Show the cursor again, in case a display was cut off while it came or went."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(SHOW_CURSOR)


class Signals:
    """While entered, the first SIGINT or SIGTERM raises KeyboardInterrupt in the main thread.

    Commands clean up by ``with`` and ``finally``, so a second signal, which would cut that off, is ignored. A third one
    ends the process at once, whatever it is doing. Signals that were ignored before, as in the background of a shell,
    stay ignored.
    """

    def __init__(self) -> None:
        self.exit_code = 0  # 128 + the first signal
        self._num_received = 0
        self._handlers_before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers_before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._num_received += 1
        if self._num_received == 1:
            self.exit_code = 128 + number
            raise KeyboardInterrupt
        if self._num_received == 2:
            if os.isatty(2):
                os.write(2, b"\nedgewise: Cleaning up. Once more ends it at once.\n")
            return
        _leave_terminal()
        os._exit(128 + number)


# Plain help: in 80 columns typer's boxes leave twenty for the text.
app = typer.Typer(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def new_command() -> typer.Typer:
    """Return an application for the one command of a file."""
    return typer.Typer(add_completion=False, rich_markup_mode=None)


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
    """Tell how right a node classifier's probabilities are, for nodes and for pairs of neighbors."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def complain(message: str) -> int:
    """Print one line about what is wrong, and return the exit code."""
    with suppress(OSError):  # nobody listens, but the exit code still tells
        typer.echo(f"edgewise: {' '.join(message.split())}", err=True)
    return FAILED


def complain_of(error: Exception) -> int:
    """Print what the user can fix, and return the exit code; raise the rest, which is a mistake of ours."""
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


@contextmanager
def complaints_name(**files: Path | None) -> Iterator[None]:
    """Say which file is which when something is wrong with what is in them."""
    try:
        yield
    except ValueError as error:
        named = ", ".join(f"{name} is {file}" for name, file in files.items() if file and str(file) not in str(error))
        raise ValueError(f"{error} ({named})" if named else str(error)) from error
