"""Pickles that others published, read without executing what they ask for."""

import io
import pickle
import pickletools
import re
import warnings
from typing import Any

import numpy as np
from jaxtyping import Int

from edgewise.files.arrays import FileError

Indices = Int[np.ndarray, " _"]  # of any length

# What arrays, sparse matrices and adjacency lists are pickled with, by old and new versions of Python, NumPy and SciPy.
ADMITTED = {
    *(("numpy", name) for name in ("ndarray", "dtype")),
    *((module, "_reconstruct") for module in ("numpy.core.multiarray", "numpy._core.multiarray")),
    *((module, "csr_matrix") for module in ("scipy.sparse.csr", "scipy.sparse._csr")),
    *((module, "list") for module in ("__builtin__", "builtins")),
    ("collections", "defaultdict"),
}


class _ArraysAndLists(pickle.Unpickler):
    """Looks up the names that are admitted, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse any other name before it is looked up."""
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def unpickle_arrays_and_lists(content: bytes) -> Any:
    """Read a pickle of arrays, sparse matrices, dictionaries and lists; refuse one that asks for anything else."""
    stream = io.BytesIO(content)
    _check_memo(stream)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old names of modules
        found = _ArraysAndLists(stream, encoding="latin1").load()  # pickles of Python 2 hold bytes as text
    if hasattr(found, "check_format"):
        found.check_format(full_check=True)  # a matrix could lead SciPy out of its memory
    return found


def _check_memo(stream: io.BytesIO) -> None:
    """Refuse to remember something under a number that is larger than the pickle: memory is taken up to that number."""
    start = stream.tell()
    for operation, argument, _ in pickletools.genops(stream):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(str(argument)) > len(stream.getbuffer()):
            raise pickle.UnpicklingError("it asks for too much memory")
    stream.seek(start)


class _Inert:
    """Stands for all that a pickle may name: it keeps what it is called with and computes nothing."""

    def __init__(self, *args: object) -> None:
        self.args = args
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _InertArrays(pickle.Unpickler):
    """Admits the names that arrays are pickled with, and hands out not even those."""

    def find_class(self, module: str, name: str) -> Any:
        """Look the name up in a short list, never in the interpreter."""
        admitted = {"ndarray", "dtype"} if module == "numpy" else {"_reconstruct"}
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") and name in admitted:
            return _Inert
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def unpickle_integer_arrays(stream: io.BytesIO) -> list[Indices]:
    """Read a pickled array of integer arrays."""
    try:
        _check_memo(stream)
        match _InertArrays(stream).load():
            # An array is pickled as (version, shape, dtype, Fortran order, content); "O" is the dtype of objects.
            case _Inert(state=(_, (_,), _Inert(args=("O" | "O4" | "O8", *_)), _, list(items))):
                return [_to_array(item) for item in items]
        raise pickle.UnpicklingError("it is something else")
    except Exception as error:  # a pickle that was tampered with raises anything
        raise FileError(f"Expected a pickle of integer arrays and nothing else, but {error}.") from error


def _to_array(item: object) -> Indices:
    match item:
        case _Inert(
            state=(_, (int(length),), _Inert(args=(str(code), *_), state=(_, str(order), *_)), _, bytes(content))
        ) if re.fullmatch("[<>|=][iu][1248]", order + code):
            array: Indices = np.frombuffer(content, dtype=order + code)
            return array.reshape(length).astype(np.int64)
    raise pickle.UnpicklingError("it holds something else")
