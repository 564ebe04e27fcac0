"""Settings of all tests: shapes in signatures are checked, properties are repeatable, compiled functions are cached."""

import os
from pathlib import Path

from hypothesis import settings
from jaxtyping import install_import_hook

# Modules whose signatures are checked at run time. Modules that validate their own input are left out, because the
# checker would raise before they do. Compiled functions cannot be wrapped.
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

# The same examples each time, and no deadline: tests must not depend on the speed of the machine.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Numba does not lock its cache: two processes that save compiled functions at the same time may mix them up.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    cache = os.environ.get("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "numba"))
    os.environ["NUMBA_CACHE_DIR"] = str(Path(cache, worker))
