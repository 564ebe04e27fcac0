"""One-line representations of objects."""

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

MAX_LENGTH = 199  # characters of a representation, so that it fits the lines of a notebook or a log


def shorten(text: str, limit: int = MAX_LENGTH) -> str:
    """Return a text in one line. A longer one is cut before its last character, which may close a bracket.

    >>> shorten("f(1, 2, 3, 4)", 8)
    'f(1, 2…)'
    """
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 2]}…{line[-1]}"


def changed_options(options: Any, limit: int = 90) -> str:
    """Return the representation of a dataclass with only those fields that differ from their defaults.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Model:
    ...     hidden: int = 64
    ...     dropout: float = 0.5
    >>> changed_options(Model(dropout=0.1))
    'Model(dropout=0.1)'
    """
    values = {one.name: getattr(options, one.name) for one in fields(options) if one.init}
    changed = (
        f"{one.name}={changed_options(value) if is_dataclass(value) else repr(value)}"
        for one in fields(options)
        if one.init and (value := values[one.name]) != _default(one)
    )
    return shorten(f"{type(options).__name__}({', '.join(changed)})", limit)


def _default(one: "Field[Any]") -> object:
    return one.default_factory() if one.default_factory is not MISSING else one.default
