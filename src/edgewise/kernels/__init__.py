"""Compiled loops and their reference implementations with tensors. Private; inputs are not checked.

A function ``name_compiled`` runs compiled loops on the CPU. ``name_tensors`` computes the same with tensors on any
device. Modules that only long inputs need, such as ``kernels.score_sums``, are imported on first use, because loading
numba takes about a second.
"""

from typing import TYPE_CHECKING

import lazy_loader  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from edgewise.kernels import distribution_rows as distribution_rows
    from edgewise.kernels import group_loops as group_loops
    from edgewise.kernels import isotonic_blocks as isotonic_blocks
    from edgewise.kernels import long_edge_list as long_edge_list
    from edgewise.kernels import score_sums as score_sums

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["distribution_rows", "group_loops", "isotonic_blocks", "long_edge_list", "score_sums"],
)
