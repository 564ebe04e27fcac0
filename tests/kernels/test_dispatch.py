"""The cache of compiled loops."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import numba
import pytest

MODULE = """
from typing import NamedTuple

import numpy as np

from edgewise.kernels.dispatch import compiled


class {name}(NamedTuple):
    values: np.ndarray


@compiled
def total(arrays):
    return arrays.values.sum()


arrays = {name}(np.arange(4.0))
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that writes and imports a module with a class of the given name."""
    # Numba reads its settings from the environment again whenever a variable of it has changed.
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))

    def load(name):
        file = tmp_path / "loops.py"
        text = MODULE.format(name=name)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
        spec = spec_from_file_location("loops", file)
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "loops", module)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        spec.loader.exec_module(module)
        return module

    return load


def test_compiled_loop_is_loaded_from_the_cache(load):
    for hits in (0, 1):
        module = load("Arrays")
        assert module.total(module.arrays) == 6
        assert sum(module.total.stats.cache_hits.values()) == hits


def test_cache_of_a_version_with_another_class_is_cleared(load):
    for name in ("OldArrays", "NewArrays"):
        module = load(name)
        assert module.total(module.arrays) == 6
        assert sum(module.total.stats.cache_hits.values()) == 0


def test_loops_run_without_compilation(load, monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    module = load("Arrays")
    assert module.total(module.arrays) == 6
