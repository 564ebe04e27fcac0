"""Files that are never left half written."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

from edgewise.version import __version__


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
        if beside != path:
            beside.unlink(missing_ok=True)


def _cause(error: BaseException | None) -> OSError | None:
    """Find what the system said; a library that tidies up after it, such as Matplotlib, may stumble once more."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def is_special(path: Path) -> bool:
    """Tell /dev/stdout or a pipe, which is written to and not replaced."""
    return path.exists() and not path.is_file()


PLOT_ENDINGS = (".png", ".pdf", ".svg")


def check_outputs(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Refuse a file that could not be written, before anything long is begun."""
    taken = {_resolved(_file_of(path)) for path in inputs.values() if path}
    for option, path in outputs.items():
        if path is None:
            continue
        if option == "--plot" and path.suffix.lower() not in PLOT_ENDINGS:
            raise ValueError(f"Expected {option} to end in {', '.join(PLOT_ENDINGS)}, but got {path}.")
        if path.is_dir():
            raise ValueError(f"Expected {option} to be a file, but {path} is a folder. Name a file in it.")
        if (target := _resolved(path)) in taken:
            raise ValueError(f"Expected {option} to be a file of its own, but {path} is named twice.")
        if not is_special(path):
            _check_folder(target.parent, option)
        taken.add(target)


def make_folder(folder: Path, option: str) -> None:
    """Make a folder to write to, or refuse what could not be one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = "is a file" if folder.is_file() else f"cannot be made: {error.strerror}"
        raise ValueError(f"Expected {option} to be a folder, but {folder} {what}. Name another.") from error
    _check_folder(folder, option)


def _file_of(path: Path) -> Path:
    """Leave out the name of an array behind ``file.npz:``."""
    if ":" not in str(path):
        return path
    from edgewise.files.arrays import strip_array_name

    return strip_array_name(path)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError as error:  # of Python before 3.13
        raise ValueError(f"Expected a file, but {path} is a link that leads to itself. Check the path.") from error


def _check_folder(folder: Path, option: str) -> None:
    if not folder.is_dir():
        raise ValueError(f"Expected {option} in a folder that exists, but there is no {folder}. Make it first.")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"Expected {option} in a folder to write to, but {folder} is read-only. Name another.")


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write strict JSON, with the version that wrote it."""
    text = json.dumps(_strict({"version": __version__, **document}), indent=2, allow_nan=False)
    replace_file(path, lambda file: file.write_text(f"{text}\n", encoding="utf-8"))


def _strict(value: object) -> object:
    """Put null for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_strict(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
