"""Compilation of loops and division of work over threads."""

import numba
import pytest
import torch

from edgewise.kernels import dispatch


def test_loops_compile_without_a_cache_folder(monkeypatch):
    njit = numba.njit

    def njit_without_cache(*functions, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*functions, **options)

    monkeypatch.setattr(numba, "njit", njit_without_cache)
    assert dispatch.compiled(lambda x: x + 1)(2) == 3


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_slices_cover_the_list_in_order(monkeypatch, num_threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    for length in (0, 1, 5, 100):
        slices = dispatch.map_slices(lambda start, stop: list(range(start, stop)), length)
        assert [number for part in slices for number in part] == list(range(length))


def test_error_in_a_slice_is_raised():
    def fail(start, stop):
        raise ValueError("in a thread")

    with pytest.raises(ValueError, match="in a thread"):
        dispatch.map_slices(fail, 10)


def test_only_long_cpu_tensors_of_supported_dtypes_are_worth_compiling():
    assert dispatch.worth_compiling(torch.empty(dispatch.MIN_COMPILED_LENGTH))
    assert not dispatch.worth_compiling(torch.empty(dispatch.MIN_COMPILED_LENGTH - 1))
    assert not dispatch.worth_compiling(torch.empty(dispatch.MIN_COMPILED_LENGTH, dtype=torch.bfloat16))
    assert not dispatch.worth_compiling(torch.empty(dispatch.MIN_COMPILED_LENGTH, device="meta"))
