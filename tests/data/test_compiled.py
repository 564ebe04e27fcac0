import numba
import pytest
import torch

from edgewise.kernels import dispatch as compiled


def test_without_a_folder_to_keep_them_loops_are_compiled_all_the_same(monkeypatch):
    njit = numba.njit

    def without_folder(*functions, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*functions, **options)

    monkeypatch.setattr(numba, "njit", without_folder)
    assert compiled.compiled(lambda x: x + 1)(2) == 3


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_slices_cover_the_list_in_order(monkeypatch, num_threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    for length in (0, 1, 5, 100):
        slices = compiled.map_slices(lambda start, stop: list(range(start, stop)), length)
        assert [number for part in slices for number in part] == list(range(length))


def test_an_error_in_a_slice_is_raised():
    def fail(start, stop):
        raise ValueError("in a thread")

    with pytest.raises(ValueError, match="in a thread"):
        compiled.map_slices(fail, 10)


def test_only_long_tensors_of_known_dtypes_are_worth_compiling():
    assert compiled.worth_compiling(torch.empty(compiled.MIN_COMPILED_LENGTH))
    assert not compiled.worth_compiling(torch.empty(compiled.MIN_COMPILED_LENGTH - 1))
    assert not compiled.worth_compiling(torch.empty(compiled.MIN_COMPILED_LENGTH, dtype=torch.bfloat16))
    assert not compiled.worth_compiling(torch.empty(compiled.MIN_COMPILED_LENGTH, device="meta"))
