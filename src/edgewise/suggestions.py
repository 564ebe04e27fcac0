"""Suggestions for misspelled names. This file imports neither torch nor NumPy, so that the command line stays fast."""

import inspect
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a sentence with the most similar known name, to append to a message, or "" if none is similar.

    >>> did_you_mean("gnc", ["gat", "gcn"])
    " Did you mean 'gcn'?"
    >>> did_you_mean("mlp", ["gat", "gcn"])
    ''
    """
    by_lower_case = {other.lower(): other for other in known}
    similar = get_close_matches(str(name).lower(), by_lower_case, n=1, cutoff=0.65)
    return f" Did you mean {by_lower_case[similar[0]]!r}?" if similar else ""


def suggest_keywords(callable_: F) -> F:
    """Decorate a function or a dataclass, so that a misspelled keyword raises a TypeError with a suggestion.

    Python does this itself since version 3.13.
    """
    if sys.version_info >= (3, 13):
        return callable_
    if isinstance(callable_, type):
        callable_.__init__ = suggest_keywords(callable_.__init__)  # type: ignore[misc]
        return callable_
    names = tuple(inspect.signature(callable_).parameters)

    @wraps(callable_)
    def call(*args: Any, **keywords: Any) -> Any:
        for keyword in keywords:
            if keyword not in names:
                raise TypeError(
                    f"{callable_.__qualname__}() got an unexpected keyword argument {keyword!r}."
                    f"{did_you_mean(keyword, names)}"
                )
        return callable_(*args, **keywords)

    return call  # type: ignore[return-value]  # a wrapper with the same signature


class NamedResults(dict[str, V]):
    """A dict of results. A missing name raises a KeyError that lists the names and suggests one.

    >>> NamedResults(degree=1)["degre"]
    Traceback (most recent call last):
    KeyError: "Expected one of degree, but got 'degre'. Did you mean 'degree'?"
    """

    def __missing__(self, name: str) -> V:
        names = tuple(self)
        raise KeyError(
            f"Expected one of {', '.join(names) or 'no names'}, but got {name!r}.{did_you_mean(name, names)}"
        )
