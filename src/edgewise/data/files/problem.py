"""What is said of a file that cannot be read."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


class FileProblem(ValueError):
    """A file that cannot be read as what it should be; the message names it and a way out."""
