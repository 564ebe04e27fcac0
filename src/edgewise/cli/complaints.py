"""How commands say what went wrong, and with which code they end."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

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
