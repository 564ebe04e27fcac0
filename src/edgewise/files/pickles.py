"""Reading of published pickles without executing their code."""

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

# Names in pickles of arrays, sparse matrices and adjacency lists, for old and new versions of Python, NumPy and SciPy.
ALLOWED_GLOBALS = {
    *(("numpy", name) for name in ("ndarray", "dtype")),
    *((module, "_reconstruct") for module in ("numpy.core.multiarray", "numpy._core.multiarray")),
    *((module, "csr_matrix") for module in ("scipy.sparse.csr", "scipy.sparse._csr")),
    *((module, "list") for module in ("__builtin__", "builtins")),
    ("collections", "defaultdict"),
}


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler that imports only the names in `ALLOWED_GLOBALS`."""

    def find_class(self, module: str, name: str) -> Any:
        """Raise UnpicklingError before any other name is imported."""
        if (module, name) not in ALLOWED_GLOBALS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return super().find_class(module, name)


def unpickle_arrays_and_lists(pickled: bytes) -> Any:
    """Read a pickle of arrays, sparse matrices, dictionaries and lists. Raise UnpicklingError for any other content."""
    stream = io.BytesIO(pickled)
    _check_memo(stream)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old module names
        content = _ArrayUnpickler(stream, encoding="latin1").load()  # Python 2 pickled bytes as text
    if hasattr(content, "check_format"):
        content.check_format(full_check=True)  # invalid indices would make SciPy access memory out of bounds
    return content


def _check_memo(stream: io.BytesIO) -> None:
    """Raise UnpicklingError for a memo index larger than the pickle: memory is allocated up to that index."""
    start = stream.tell()
    for operation, argument, _ in pickletools.genops(stream):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(str(argument)) > len(stream.getbuffer()):
            raise pickle.UnpicklingError("it needs too much memory")
    stream.seek(start)


class _Placeholder:
    """Placeholder for every name in a pickle: it stores its arguments and its state, and executes nothing."""

    def __init__(self, *args: object) -> None:
        self.args = args
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _PlaceholderUnpickler(pickle.Unpickler):
    """Unpickler that replaces the names of pickled arrays by `_Placeholder` and imports nothing."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the placeholder for an allowed name, or raise UnpicklingError."""
        allowed = {"ndarray", "dtype"} if module == "numpy" else {"_reconstruct"}
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") and name in allowed:
            return _Placeholder
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def unpickle_integer_arrays(stream: io.BytesIO) -> list[Indices]:
    """Read a pickled array of integer arrays."""
    try:
        _check_memo(stream)
        match _PlaceholderUnpickler(stream).load():
            # An array is pickled as (version, shape, dtype, Fortran order, content); "O" is the dtype of objects.
            case _Placeholder(state=(_, (_,), _Placeholder(args=("O" | "O4" | "O8", *_)), _, list(items))):
                return [_to_array(item) for item in items]
        raise pickle.UnpicklingError("it is not an array of arrays")
    except Exception as error:  # a manipulated pickle may raise any exception
        raise FileError(f"Expected a pickle of integer arrays only, but {error}.") from error


def _to_array(item: object) -> Indices:
    match item:
        case _Placeholder(
            state=(_, (int(length),), _Placeholder(args=(str(code), *_), state=(_, str(order), *_)), _, bytes(content))
        ) if re.fullmatch("[<>|=][iu][1248]", order + code):
            array: Indices = np.frombuffer(content, dtype=order + code)
            return array.reshape(length).astype(np.int64)
    raise pickle.UnpicklingError("it holds other objects")
