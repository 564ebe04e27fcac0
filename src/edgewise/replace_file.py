"""Files that are never left half written."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the path and put the whole file in its place, so that no half of one is ever there."""
    target = path.resolve()
    beside = path if is_special(path) else target.with_name(f".{uuid4().hex}.tmp")
    try:
        write(beside)
        if beside != path:
            beside.replace(target)
    except BrokenPipeError:  # nobody reads on, which is no fault of the path
        raise
    except Exception as error:
        if (cause := _cause(error)) is None:
            raise
        raise ValueError(f"Expected to write {path}, but got: {cause.strerror or cause}.") from error
    finally:
        try:
            if beside != path:
                beside.unlink(missing_ok=True)
        except KeyboardInterrupt:  # Ctrl-C was pressed again
            if beside != path:
                beside.unlink(missing_ok=True)
            raise


def _cause(error: BaseException | None) -> OSError | None:
    """Find what the system said; a library that tidies up after it, such as Matplotlib, may stumble once more."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def is_special(path: Path) -> bool:
    """Tell /dev/stdout or a pipe, which is written to and not replaced."""
    return path.exists() and not path.is_file()
