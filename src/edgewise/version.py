"""Versions: that of edgewise, and those of the libraries that its numbers rest on."""

import platform
from functools import cache
from importlib import metadata

__version__ = "0.1.0"

PACKAGES = ("torch", "torch_geometric", "numpy", "scipy", "numba")


@cache
def versions() -> dict[str, str]:
    """Return the versions that decide about numbers, by name; no library is imported for it.

    >>> list(versions())
    ['edgewise', 'python', 'torch', 'torch_geometric', 'numpy', 'scipy', 'numba']
    """
    packages = {name: metadata.version(name) for name in PACKAGES}
    return {"edgewise": __version__, "python": platform.python_version(), **packages}
