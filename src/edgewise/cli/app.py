"""The command-line application: list of commands, error messages, exit codes and signals."""

import os
import re
import signal
import sys
import threading
import warnings
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from edgewise.small_samples import SmallSampleWarning
from edgewise.suggestions import did_you_mean
from edgewise.version import versions

# In the order of the help. Each command is the `app` of the file of the same name in this folder.
COMMANDS = ("evaluate", "compare", "calibrate", "predict", "datasets", "reproduce", "report", "study")

SOME_RUNS_FAILED, FAILED, INTERRUPTED, TERMINATED = 1, 2, 130, 143
CLOSED_PIPE = 141  # exit code that a shell reports for a command ended by SIGPIPE
SHOW_CURSOR = "\x1b[?25h"


class _Commands(TyperGroup):
    """Group of commands that imports a command on demand, and turns errors into one line and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = dict.fromkeys(COMMANDS)  # typer suggests similar names from here

    def list_commands(self, context: Any) -> list[str]:
        """Return the commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, context: Any, name: str) -> Any:
        """Import the module of one command and return the command, or None if the name is unknown."""
        return get_command(import_module(f"edgewise.cli.{name}").app) if name in COMMANDS else None

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command and exit with its code."""
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # print "?" for characters that the terminal cannot show
        code, signals = 0, Signals()
        try:
            with signals, warnings.catch_warnings():
                warnings.showwarning = _print_warning
                warnings.simplefilter("always", SmallSampleWarning)
                try:
                    code = super().main(*args, **{**extra, "standalone_mode": False}) or 0
                except SystemExit as end:
                    if not isinstance(end.__context__, BrokenPipeError):
                        raise
                    code = CLOSED_PIPE
                except Exception as error:
                    if not signals.exit_code:  # else a library raised it because of the signal
                        code = print_exception(error)
        except KeyboardInterrupt:
            code = INTERRUPTED
        code = signals.exit_code or code
        if code in (INTERRUPTED, TERMINATED):
            _show_cursor()
            print_error("Interrupted.")
        sys.exit(code)


def _show_cursor() -> None:
    """Show the cursor again, in case a live display was interrupted."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(SHOW_CURSOR)


class Signals:
    """Context in which the first SIGINT or SIGTERM raises KeyboardInterrupt in the main thread.

    A second signal is ignored, so that it does not interrupt the cleanup in ``with`` and ``finally``. A third one ends
    the process immediately. Signals that were ignored before, as in background jobs of a shell, stay ignored.
    """

    def __init__(self) -> None:
        self.exit_code = 0  # 128 + number of the first signal; 0 if there was none
        self._num_received = 0
        self._handlers_before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers
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
                os.write(2, b"\nedgewise: Cleaning up. Interrupt again to exit immediately.\n")
            return
        _show_cursor()
        os._exit(128 + number)


# Plain help, because in 80 columns the boxes of typer leave only twenty for the text.
app = typer.Typer(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def new_command() -> typer.Typer:
    """Return a typer application for a single command."""
    return typer.Typer(add_completion=False, rich_markup_mode=None)


EXAMPLES = """\b
Examples:
  edgewise evaluate --probs probs.npy --labels labels.npy --edges edges.npy
  edgewise calibrate --probs probs.npy --labels labels.npy --edges edges.npy \\
    --train train.npy --val val.npy --out calibrated.safetensors
  edgewise predict --probs calibrated.safetensors --pairs pairs.csv
  edgewise reproduce --out results --quick
"""


def _print_versions(requested: bool) -> None:
    if requested:
        typer.echo("\n".join(f"{name} {version}" for name, version in versions().items()))
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def _start(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_versions,
            is_eager=True,
            help="Show the versions of edgewise and its libraries, and exit.",
        ),
    ] = False,
) -> None:
    """Evaluate and calibrate the probabilities of node classifiers, for nodes and for pairs of neighbors."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# Advice of the library that is about arrays, and the advice of the commands in its place.
END = r"(?= \(\w+ is |$)"  # names of files follow
ADVICE = {
    r"For logits pass logits\.softmax\(-1\), or .*? array\.": "For logits pass --logits instead of --probs.",
    r"Pass ew\.wrap\(probs\), or --probs on the command line\.": "Pass --probs instead of --logits.",
    r"pass the probabilities: ew\.wrap\(probs\), or --probs on the command line": "save exp(x) and pass it as --probs",
    rf"If the values are rounded, .*?{END}": "If the values are rounded, add --normalize.",
    r"pass (y|predictions)\.clamp\(min=-1\)": r"save np.maximum(\1, -1)",
    r"\bpass (?=np\.|edge_index|pairs - 1|probs\.|both columns|their probabilities)": "save ",
    r"pass ew\.MixturePosterior\(samples\)": "save a mixture: ew.MixturePosterior(samples).save('FILE.safetensors')",
    r"\bPass (?=edge_index|probs\.)": "Save ",
    r"with mask=(np\..*?\))\.(?= |$)": r"with --mask: np.save('FILE.npy', \1).",
    r"pass class_names=\[-1, 1\]": "pass --classes FILE, with the lines -1 and 1",
    r"with mask=\.": "with --mask.",
    rf"Pass the graph of the logits: .*?{END}": "Pass --edges.",
    r"Use n_resamples of": "Use --resamples of",
    r"edge_choice='(both|any|all)'": r"--edge-choice \1",
    rf": pass one of ew\.make_splits.*?{END}": ": add some to --val.",
    r", or \(name, label pairs\)": "",
    r"ew\.TemperatureScaling\(\)": "--calibrator temperature",
    r"ew\.BayesianScaling\(\)": "--calibrator bayesian",
    r": threshold\.check\(p, happened\)": " with --test",
    r"Pass features, data\.x or --features on the command line,": "Pass --features",
    r"(a class out of 0, .*, but got '[^']*[^'\d][^']*'\.)": r"\1 For names of classes pass --classes FILE.",
}


def print_error(message: str) -> int:
    """Print an error message in one line to stderr, and return the exit code."""
    with suppress(OSError):  # stderr is closed; the exit code still reports the error
        typer.echo(f"edgewise: {' '.join(replace_advice(message).split())}", err=True)
    return FAILED


def replace_advice(message: str) -> str:
    """Return a message of the library with the advice of the commands."""
    for pattern, advice in ADVICE.items():
        message = re.sub(pattern, advice, message)
    return message


def _print_warning(message: Warning | str, *details: object, **more: object) -> None:
    """Print a warning of a library in one line, without the file and line that issued it."""
    print_error(f"Warning: {message}")


def print_exception(error: Exception) -> int:
    """Print an error that the user can fix, and return the exit code. Raise other errors, which are bugs."""
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if isinstance(error, OSError) and error.strerror:
        action = f"use {error.filename}" if error.filename else "write the output"
        return print_error(f"Expected to {action}, but got: {error.strerror}.")
    if isinstance(error, ValueError | OSError):
        return print_error(str(error))
    # torch raises a RuntimeError if memory runs out.
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in str(error)):
        return print_error(
            "Expected more memory than is available. Use a machine with more memory. evaluate needs the least with "
            "--binning width and without --resamples."
        )
    # Errors of typer have no public class in some versions, but all have this method.
    if not hasattr(error, "format_message"):
        raise error
    context = getattr(error, "ctx", None)
    message = _usage_message(error, context)
    stop = "" if message.endswith((".", "?")) else "."
    return print_error(message + stop + (f" See '{context.command_path} --help'." if context else ""))


SYNONYMS = {"--method": "--calibrator"}  # what a user may expect, and the option


def _usage_message(error: Any, context: Any) -> str:
    """Return the message of a usage error, with the most similar option or value if one is misspelled."""
    if type(error).__name__ == "NoSuchOption":
        name = error.option_name
        known = [option for param in context.command.params for option in (*param.opts, *param.secondary_opts)]
        # A word with one hyphen is parsed letter by letter.
        hint = " Options start with two hyphens." if len(name) == 2 else did_you_mean(SYNONYMS.get(name, name), known)
        return f"No such option: {name}.{hint}"
    message = str(error.format_message()).replace(": Value error, ", ": ")  # added by some versions of typer
    if (choice := re.search("'([^']*)' is not one of (.*)", message)) is None:
        return message
    known = re.findall("'([^']*)'", choice[2])
    return f"{message.rstrip('.')}.{did_you_mean(choice[1], known)}"
