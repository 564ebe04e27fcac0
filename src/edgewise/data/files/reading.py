"""Any array from a file, by its ending."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from edgewise.data.files.numpy_files import archive_of, read_npy, read_npz
from edgewise.data.files.problem import Array, FileProblem, in_one_line
from edgewise.data.files.tables import read_csv, read_parquet

READERS: dict[str, Callable[[Path], Array]] = {
    ".npy": read_npy,
    ".npz": read_npz,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


def read_array(path: Path) -> Array:
    """Read numbers by the ending of the file; ``file.npz:name`` picks one array of several.

    A table gives (rows, columns), or (rows,) if it has one column. Whatever is wrong is a FileProblem.
    """
    ending = ending_of(path)
    if ending not in READERS:
        raise FileProblem(
            f"Expected a file that ends in {', '.join(READERS)}, but got {path}. Of a tensor make one by "
            "np.save('FILE.npy', tensor.numpy())."
        )
    with refusals(path, f"a sound {ending} file of numbers"):
        return READERS[ending](path)


@contextmanager
def refusals(path: Path, what: str) -> Iterator[None]:
    """Refuse what is no file, and make a FileProblem of all that is raised while it is read as ``what``."""
    try:
        _check_file(archive_of(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a header written by Python 2 is as good as any
            yield
    except FileProblem:
        raise
    except MemoryError as error:
        raise FileProblem(f"Expected {path} to fit in memory, but it does not. A large .npy file need not.") from error
    except Exception as error:  # a damaged file raises anything: BadZipFile, EOFError, zlib.error, ArrowInvalid, …
        if isinstance(error, OSError) and error.errno:
            raise FileProblem(f"Expected {path} to be readable, but got: {error.strerror}.") from error
        raise FileProblem(f"Expected {path} to be {what}, but got: {in_one_line(error)}. Save it again.") from error


def _check_file(file: Path) -> None:
    if file.is_dir():
        raise FileProblem(f"Expected a file, but {file} is a folder. Name a file in it.")
    if not file.exists():
        raise FileProblem(f"Expected a file, but {file} does not exist. Check the path.")
    if not file.is_file():
        raise FileProblem(f"Expected a file, but {file} is a pipe or a device. Save what comes from it as a file.")
    if file.stat().st_size == 0:
        raise FileProblem(f"Expected numbers in {file}, but the file is empty. Save it again.")


def ending_of(path: Path) -> str:
    """Give the ending of a file, in lower case."""
    return archive_of(path).suffix.lower()


def is_table(path: Path) -> bool:
    """Tell a file that has columns from one that has axes."""
    return ending_of(path) in (".csv", ".parquet")
