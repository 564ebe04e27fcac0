"""The application: what all commands share, which is how they fail and how help looks."""

import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from edgewise.cli.complaints import INTERRUPTED, NOBODY_READS, complain
from edgewise.cli.interruption import Interruption
from edgewise.experiments.versions import versions

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
