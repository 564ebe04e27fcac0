"""Atomic writes and checks of output paths."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

from edgewise.version import __version__


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a temporary file in the same folder and rename it to ``path``, so that no partial file is visible."""
    target = path.resolve()
    temporary = path if is_special(path) else target.with_name(f".{uuid4().hex}.tmp")
    try:
        write(temporary)
        if temporary != path:
            temporary.replace(target)
    except BrokenPipeError:  # the reader closed the pipe: not an error of the path
        raise
    except Exception as error:
        if (cause := _find_os_error(error)) is None:
            raise
        raise ValueError(f"Expected to write {path}, but got: {cause.strerror or cause}.") from error
    finally:
        if temporary != path:
            temporary.unlink(missing_ok=True)


def _find_os_error(error: BaseException | None) -> OSError | None:
    """Return the OSError in the context chain, if any. A library may raise another error while it cleans up."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def is_special(path: Path) -> bool:
    """Return whether a path is a device or a pipe, such as /dev/stdout, which is written in place."""
    return path.exists() and not path.is_file()


PLOT_SUFFIXES = (".png", ".pdf", ".svg")


def check_page_suffix(path: Path, name: str = "path") -> None:
    """Raise ValueError if the name of a page is not that of an HTML file."""
    if path.suffix.lower() not in (".html", ".htm") and not is_special(path):
        raise ValueError(
            f"Expected {name} to end in .html or .htm, but got {path}. Pass {path.with_suffix('.html')}, and print the "
            "page from a browser if it must be a PDF."
        )


def check_outputs(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Raise ValueError if an output file cannot be written, before any long computation starts."""
    used = {_resolve(_file_path(path)) for path in inputs.values() if path}
    for option, path in outputs.items():
        if path is None:
            continue
        if option == "--plot" and path.suffix.lower() not in PLOT_SUFFIXES:
            raise ValueError(f"Expected {option} to end in {', '.join(PLOT_SUFFIXES)}, but got {path}.")
        if path.is_dir():
            raise ValueError(f"Expected {option} to be a file, but {path} is a folder. Pass a file in it.")
        if option == "--html":
            check_page_suffix(path, option)
        if (target := _resolve(path)) in used:
            raise ValueError(f"Expected {option} to be a file of its own, but {path} is named twice.")
        if not is_special(path):
            _check_folder(target.parent, option)
        used.add(target)


def make_folder(folder: Path, option: str) -> None:
    """Create a writable folder, or raise ValueError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "is a file" if folder.is_file() else f"cannot be created: {error.strerror}"
        raise ValueError(f"Expected {option} to be a folder, but {folder} {reason}. Pass another path.") from error
    _check_folder(folder, option)


def _file_path(path: Path) -> Path:
    """Call `strip_array_name`, which imports NumPy, only for a path with a colon."""
    if ":" not in str(path):
        return path
    from edgewise.files.arrays import strip_array_name

    return strip_array_name(path)


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError as error:  # raised by Python before 3.13
        raise ValueError(f"Expected a file, but {path} is a link to itself. Check the path.") from error


def _check_folder(folder: Path, option: str) -> None:
    if not folder.is_dir():
        raise ValueError(f"Expected {option} in an existing folder, but there is no {folder}. Create it first.")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"Expected {option} in a writable folder, but {folder} is read-only. Pass another path.")


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write strict JSON with the version of edgewise. NaN and infinity become null."""
    text = json.dumps(_replace_non_finite({"version": __version__, **document}), indent=2, allow_nan=False)
    replace_file(path, lambda file: file.write_text(f"{text}\n", encoding="utf-8"))


def _replace_non_finite(value: object) -> object:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, Mapping):
        return {key: _replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replace_non_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
