"""Shapes and types that signatures promise are checked while the tests run."""

import os
from pathlib import Path

from hypothesis import settings
from jaxtyping import install_import_hook

# Modules that compute. Those that check their input are left out, for a wrapper would refuse it before they do, and
# their own refusals are tested; so are compiled loops, which cannot be wrapped.
CHECKED = [
    "edgewise.data.edges",
    "edgewise.data.statistics",
    "edgewise.inference.messages",
    "edgewise.kernels.attention",
    "edgewise.kernels.dropout",
    "edgewise.kernels.projection",
    "edgewise.kernels.sparse",
    "edgewise.kernels.stars",
    "edgewise.metrics.collect",
    "edgewise.metrics.elements",
    "edgewise.metrics.evaluation",
    "edgewise.metrics.intervals",
    "edgewise.metrics.scores",
    "edgewise.metrics.sums",
    "edgewise.models.graph_pass",
]
install_import_hook(CHECKED, "beartype.beartype")

settings.register_profile("same each time", deadline=None, derandomize=True)  # also on a busy machine
settings.load_profile("same each time")

# Two processes that keep two compilations of one loop at once may mix them up: Numba numbers them without a lock.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    kept = os.environ.get("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "numba"))
    os.environ["NUMBA_CACHE_DIR"] = str(Path(kept, worker))
