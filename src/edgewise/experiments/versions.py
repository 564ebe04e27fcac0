"""The versions of what the numbers of a run depend on."""

import platform
from functools import cache
from importlib.metadata import version

from edgewise.version import __version__

PACKAGES = ("torch", "torch_geometric", "numpy", "numba")


@cache
def versions() -> dict[str, str]:
    """Give them by name."""
    packages = {name: version(name) for name in PACKAGES}
    return {"edgewise": __version__, "python": platform.python_version(), **packages}
