"""What is said of a file that cannot be read."""

import math
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

Array = NDArray[np.generic]


class FileError(ValueError):
    """A file that cannot be read as what it should be; the message names it and a way out."""


def one_line_message(error: Exception) -> str:
    """Give what a library says of a file, without the bytes that it may quote at length."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"


def check_memory(num_bytes: int, path: Path) -> None:
    """Refuse what would not fit even if nothing else ran."""
    if hasattr(os, "sysconf") and num_bytes > (memory := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
        raise FileError(
            f"Expected {path} to fit in the {memory >> 30} GiB of memory, but unpacked it has {num_bytes >> 30} GiB. "
            "A large .npy file need not fit."
        )


MAP_FROM = 64 << 20  # bytes; from here on an .npy file is looked at where it lies instead of being read


def read_npy(path: Path, check_dtype: Callable[[np.dtype[Any], Path], None] | None = None) -> Array:
    """Read an array, or map it into memory if it is large; of numbers, unless ``check_dtype`` admits others."""
    num_bytes = path.stat().st_size
    with path.open("rb") as stream:
        _check_header(stream, num_bytes, path, check_dtype or _check_numbers)
        if num_bytes < MAP_FROM:
            return _read_stream(stream)
    # Copy on write: torch wants an array it may write into, and the file must never change.
    array: Array = npy.open_memmap(path, mode="c")
    return array


def read_npz(path: Path) -> Array:
    """Read the only array of an archive, or the one that ``file.npz:name`` picks."""
    with zipfile.ZipFile(strip_array_name(path)) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        name = _chosen_name(path, names)
        member = archive.getinfo(f"{name}.npy")
        with archive.open(member) as stream:
            _check_header(stream, member.file_size, path, _check_numbers)
            check_memory(member.file_size, path)
            return _read_stream(stream)


def _chosen_name(path: Path, names: list[str]) -> str:
    name = str(path).removeprefix(str(strip_array_name(path))).removeprefix(":")
    if name in names:
        return name
    if name:
        raise FileError(
            f"Expected an array {name!r} in {strip_array_name(path)}, but it holds {', '.join(names) or 'none'}."
        )
    if len(names) != 1:
        raise FileError(
            f"Expected one array in {path}, but it holds {', '.join(names) or 'none'}. Pick one: {path}:NAME."
        )
    return names[0]


def _check_header(
    stream: IO[bytes], num_bytes: int, path: Path, check_dtype: Callable[[np.dtype[Any], Path], None]
) -> None:
    """Compare what the header promises with what is there, before memory is taken on its word."""
    read_header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    check_dtype(dtype, path)
    promised, held = math.prod(shape) * dtype.itemsize, num_bytes - stream.tell()
    if promised != held:
        raise FileError(
            f"Expected {promised} bytes of numbers in {path}, but got {held}: it is cut off or damaged. Save it again."
        )


def _read_stream(stream: IO[bytes]) -> Array:
    stream.seek(0)
    array: Array = npy.read_array(stream, allow_pickle=False)
    return array


def strip_array_name(path: Path) -> Path:
    """Leave out the name of an array behind ``file.npz:``."""
    return Path(re.sub(r"(\.npz):.*", r"\1", str(path), flags=re.IGNORECASE | re.DOTALL))


def _check_numbers(dtype: np.dtype[Any], path: Path) -> None:
    if dtype.hasobject:
        raise FileError(
            f"Expected numbers in {path}, but got pickled Python objects, which are never loaded. "
            "Save a plain numeric array, such as np.asarray(values, dtype=float)."
        )
    got = f"but got an array of dtype {dtype}"
    if dtype.kind in "US":
        raise FileError(
            f"Expected numbers in {path}, {got}. Number strings: np.unique(strings, return_inverse=True)[1]."
        )
    if dtype.kind not in "biuf":
        raise FileError(f"Expected numbers in {path}, {got}. Save a plain array of booleans, integers or floats.")
    if dtype.itemsize > 8:
        raise FileError(f"Expected numbers of 64 bits at most in {path}, {got}. Save it with .astype(float).")
