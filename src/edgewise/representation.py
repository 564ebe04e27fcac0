"""One-line representations of objects, and of times and sizes."""

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
    values = {option.name: getattr(options, option.name) for option in fields(options) if option.init}
    changed = (
        f"{option.name}={changed_options(value) if is_dataclass(value) else repr(value)}"
        for option in fields(options)
        if option.init and (value := values[option.name]) != _default(option)
    )
    return shorten(f"{type(options).__name__}({', '.join(changed)})", limit)


def _default(option: "Field[Any]") -> object:
    return option.default_factory() if option.default_factory is not MISSING else option.default


def format_duration(seconds: float) -> str:
    """Format a time in seconds, minutes or hours.

    >>> format_duration(42), format_duration(95), format_duration(4000)
    ('42 s', '1 min 35 s', '1 h 06 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_bytes(number: float) -> str:
    """Format a number of bytes.

    >>> format_bytes(512), format_bytes(3 << 20), format_bytes(1.5 * (1 << 30))
    ('512 B', '3.0 MiB', '1.5 GiB')
    """
    if number < 1024:
        return f"{number:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        number /= 1024
        if number < 1024 or unit == "TiB":
            return f"{number:.1f} {unit}"
    raise AssertionError
