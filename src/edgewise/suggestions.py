"""Suggestions for misspelt names. This file imports neither torch nor NumPy, so that the command line stays fast."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a sentence with the most similar known name, to append to a message, or "" if none is similar.

    >>> did_you_mean("gnc", ["gat", "gcn"])
    " Did you mean 'gcn'?"
    >>> did_you_mean("mlp", ["gat", "gcn"])
    ''
    """
    by_lower_case = {other.lower(): other for other in known}
    similar = get_close_matches(str(name).lower(), by_lower_case, n=1)
    return f" Did you mean {by_lower_case[similar[0]]!r}?" if similar else ""
