"""Options that several commands read in the same way."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

LARGEST_SEED = 2**32 - 1
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


def listed(names: list[str] | None) -> tuple[str, ...]:
    """Take apart what was given by commas."""
    return tuple(name for several in names or () for name in several.lower().split(",") if name)


def as_given(paths: Mapping[str, Path | None]) -> dict[str, str | None]:
    """Give paths as they were typed."""
    return {name: str(path) if path else None for name, path in paths.items()}
