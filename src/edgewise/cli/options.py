"""Options that several commands read in the same way."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

LARGEST_SEED = 2**32 - 1
SEVERAL = ("--calibrators", "--datasets", "--events", "--models")


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
        return super().parse_args(context, out)


def listed(names: list[str] | None) -> tuple[str, ...]:
    """Take apart what was given by commas."""
    return tuple(name for several in names or () for name in several.lower().split(",") if name)


def as_given(paths: Mapping[str, Path | None]) -> dict[str, str | None]:
    """Give paths as they were typed."""
    return {name: str(path) if path else None for name, path in paths.items()}
