"""Version of edgewise and of the libraries that its results depend on."""

import platform
from functools import cache
from importlib import metadata

__version__ = "0.1.0"

PACKAGES = ("torch", "torch_geometric", "numpy", "scipy", "numba")


@cache
def versions() -> dict[str, str]:
    """Return the versions that results depend on, by name, without importing the libraries.

    >>> list(versions())
    ['edgewise', 'python', 'torch', 'torch_geometric', 'numpy', 'scipy', 'numba']
    """
    packages = {name: metadata.version(name) for name in PACKAGES}
    return {"edgewise": __version__, "python": platform.python_version(), **packages}
