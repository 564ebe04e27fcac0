"""Private: compiled loops, each with a plain twin in tensors; nothing here checks its input.

Loops that only long inputs need are loaded when they are first used, as ``kernels.score_sums``: numba, which compiles
them, takes a second to load.
"""

from typing import TYPE_CHECKING

import lazy_loader  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from edgewise.kernels import distribution_rows as distribution_rows
    from edgewise.kernels import long_edge_list as long_edge_list
    from edgewise.kernels import score_sums as score_sums

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules=["distribution_rows", "long_edge_list", "score_sums"]
)
