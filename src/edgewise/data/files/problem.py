"""What is said of a file that cannot be read."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


class FileProblem(ValueError):
    """A file that cannot be read as what it should be; the message names it and a way out."""


def in_one_line(error: Exception) -> str:
    """Give what a library says of a file, without the bytes that it may quote at length."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"
