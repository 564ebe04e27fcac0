"""Settings of all tests: shapes in signatures are checked, properties are repeatable, compiled functions are cached."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from uuid import uuid4

import numba
import psutil
import pytest
from filelock import FileLock
from hypothesis import settings
from jaxtyping import install_import_hook
from numba.core.caching import IndexDataCacheFile

from helpers.processes import SESSION_VARIABLE, leftover_processes, wait_until

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
    "edgewise.metrics.decomposition",
    "edgewise.metrics.elements",
    "edgewise.metrics.evaluation",
    "edgewise.metrics.forecasts",
    "edgewise.metrics.intervals",
    "edgewise.metrics.score_parts",
    "edgewise.metrics.scores",
    "edgewise.metrics.sums",
    "edgewise.models.graph_pass",
]
install_import_hook(CHECKED, "beartype.beartype")

# The same examples each time, and no deadline: tests must not depend on the speed of the machine.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=150)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Test processes share one cache of compiled functions, so that each function is compiled once. Numba does not lock its
# cache, and processes that use it at the same time may mix up functions. So it is locked here. Processes that tests
# start do not know this lock and get a cache of their own.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    cache = Path(os.environ.get("NUMBA_CACHE_DIR", Path(__file__).parents[1] / ".pytest_cache" / "numba"))
    cache.mkdir(parents=True, exist_ok=True)
    numba.config.CACHE_DIR = str(cache / "shared")
    os.environ["NUMBA_CACHE_DIR"] = str(cache / worker)
    lock = FileLock(cache / "lock")
    IndexDataCacheFile.save = lock(IndexDataCacheFile.save)
    IndexDataCacheFile.load = lock(IndexDataCacheFile.load)

LEFTOVER_SECONDS = 600  # ends a hang: processes of finished tests end earlier


@pytest.fixture(scope="session", autouse=True)
def no_leftover_processes() -> Iterator[None]:
    """Fail if the tests of this session leave a process running."""
    os.environ[SESSION_VARIABLE] = session = uuid4().hex
    yield
    if not wait_until(lambda: not leftover_processes(session), LEFTOVER_SECONDS):
        commands = []
        for process in leftover_processes(session):
            with suppress(psutil.Error):  # it has ended meanwhile
                commands.append(process.as_dict(["pid", "cmdline"]))
                process.kill()
        if commands:
            pytest.fail(f"Tests left {len(commands)} processes running: {commands}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that open a page in a browser as slow: they need Playwright."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def load_benchmark(monkeypatch):
    """Return a function that imports a script of ``benchmarks/`` by its name."""
    benchmarks = Path(__file__).parents[1] / "benchmarks"
    monkeypatch.syspath_prepend(str(benchmarks))

    def load(name: str) -> ModuleType:
        spec = spec_from_file_location(f"benchmark_of_{name}", benchmarks / f"{name}.py")
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def forget_own_models() -> Iterator[None]:
    """Remove models in files of users from ``sys.modules`` after a test: each name is that of one file per process."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__spec__", None) is None:  # executed as text
            del sys.modules[name]
