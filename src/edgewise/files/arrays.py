"""Reading .npy and .npz files without pickle, and the errors raised for unreadable files of any format."""

import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from edgewise.suggestions import did_you_mean

Array = NDArray[np.generic]


class FileError(ValueError):
    """Raised when a file cannot be read. The message names the file and how to fix it."""


class TextError(FileError):
    """Raised when a file holds text where numbers are expected. The message lacks a hint, as it depends on the use."""


def one_line_message(error: Exception) -> str:
    """Return the message of an exception in one line of at most 200 characters."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"


@contextmanager
def convert_read_errors(path: Path, expected: str) -> Iterator[None]:
    """Check that a file exists, and convert exceptions raised while it is read to FileError."""
    try:
        _check_file(strip_array_name(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers written by Python 2 are valid
            yield
    except FileError:
        raise
    except MemoryError as error:
        raise FileError(
            f"Expected {path} to fit in memory, but it does not. Save it as .npy, which is memory-mapped."
        ) from error
    except Exception as error:  # damaged files raise BadZipFile, EOFError, zlib.error, ArrowInvalid, …
        if isinstance(error, OSError) and error.errno:
            raise FileError(f"Expected {path} to be readable, but got: {error.strerror}.") from error
        raise FileError(
            f"Expected {path} to be {expected}, but got: {one_line_message(error)}. Save it again."
        ) from error


def _check_file(file: Path) -> None:
    if file.is_dir():
        raise FileError(f"Expected a file, but {file} is a folder. Pass a file in it.")
    if not file.exists():
        raise FileError(f"Expected a file, but {file} does not exist. Check the path.")
    if not file.is_file():
        raise FileError(f"Expected a file, but {file} is a pipe or a device. Save its content as a file.")
    if file.stat().st_size == 0:
        raise FileError(f"Expected numbers in {file}, but the file is empty. Save it again.")


def suffix_of(path: Path) -> str:
    """Return the suffix of a file in lower case, such as ".npz"."""
    return strip_array_name(path).suffix.lower()


def check_memory(num_bytes: int, path: Path) -> None:
    """Raise FileError if an array is larger than the physical memory."""
    if hasattr(os, "sysconf") and num_bytes > (memory := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
        raise FileError(
            f"Expected {path} to fit in the {memory >> 30} GiB of memory, but unpacked it has {num_bytes >> 30} GiB. "
            "Save it as .npy, which is memory-mapped."
        )


MIN_MEMMAP_BYTES = 64 << 20  # larger .npy and .pt files are memory-mapped
MAX_LISTED_NAMES = 10  # of the arrays in a file, in messages


CheckDtype = Callable[[np.dtype[Any], Path], None]  # raises FileError if an array of the dtype is not accepted


def check_numbers(dtype: np.dtype[Any], path: Path) -> None:
    """Raise FileError unless arrays of a dtype hold booleans, integers or floats of at most 64 bits."""
    if dtype.hasobject:
        raise FileError(
            f"Expected numbers in {path}, but got pickled Python objects, which are not loaded. "
            "Save a plain array: np.asarray(values, dtype=float), or dtype=str for names."
        )
    got = f"but got an array of dtype {dtype}"
    if dtype.kind in "US":
        raise TextError(f"Expected numbers in {path}, {got}.")
    if dtype.kind not in "biuf":
        raise FileError(f"Expected numbers in {path}, {got}. Save a plain array of booleans, integers or floats.")
    if dtype.itemsize > 8:
        raise FileError(f"Expected numbers of at most 64 bits in {path}, {got}. Save it with .astype(float).")


def read_npy(path: Path, check_dtype: CheckDtype = check_numbers) -> Array:
    """Read an array, or memory-map it if it is large."""
    num_bytes = path.stat().st_size
    with path.open("rb") as stream:
        _check_header(stream, num_bytes, path, check_dtype)
        if num_bytes < MIN_MEMMAP_BYTES:
            return _read_stream(stream)
    # Copy on write: torch expects a writable array, and the file must not change.
    array: Array = npy.open_memmap(path, mode="c")
    return array


def read_npz(path: Path, check_dtype: CheckDtype = check_numbers) -> Array:
    """Read the only array of an archive, or the array ``name`` for a path ``file.npz:name``."""
    with zipfile.ZipFile(strip_array_name(path)) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        name = select_array(path, names)
        member = archive.getinfo(f"{name}.npy")
        with archive.open(member) as stream:
            _check_header(stream, member.file_size, path, check_dtype)
            check_memory(member.file_size, path)
            return _read_stream(stream)


def select_array(path: Path, names: Sequence[str]) -> str:
    """Return the name of the array that a path selects, ``file.npz:name``, or the name of the only array."""
    file, name = strip_array_name(path), array_name(path)
    if name in names:
        return name
    held = ", ".join(names[:MAX_LISTED_NAMES]) + (", …" if len(names) > MAX_LISTED_NAMES else "")
    if name:
        raise FileError(
            f"Expected an array {name!r} in {file}, but it holds {held or 'none'}.{did_you_mean(name, names)}"
        )
    if not names:
        raise FileError(f"Expected one array in {path}, but it holds none. Save an array in it.")
    if len(names) > 1:
        raise FileError(f"Expected one array in {path}, but it holds {held}. Select one: {path}:{names[0]}.")
    return names[0]


def _check_header(stream: IO[bytes], num_bytes: int, path: Path, check_dtype: CheckDtype) -> None:
    """Check the dtype and the size in the header before memory is allocated."""
    read_header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    check_dtype(dtype, path)
    expected, actual = math.prod(shape) * dtype.itemsize, num_bytes - stream.tell()
    if expected != actual:
        raise FileError(
            f"Expected {expected} bytes of numbers in {path}, but got {actual}: it is cut off or damaged. "
            "Save it again."
        )


def _read_stream(stream: IO[bytes]) -> Array:
    stream.seek(0)
    array: Array = npy.read_array(stream, allow_pickle=False)
    return array


def strip_array_name(path: Path) -> Path:
    """Return ``file.npz`` for a path ``file.npz:name``, likewise for .pt, and any other path unchanged."""
    return Path(re.sub(r"(\.(?:npz|pth?)):.*", r"\1", str(path), flags=re.IGNORECASE | re.DOTALL))


def array_name(path: Path) -> str:
    """Return ``name`` for a path ``file.npz:name``, and "" for any other path."""
    return str(path).removeprefix(str(strip_array_name(path))).removeprefix(":")
