"""Tensors on disk, with words about them, as safetensors."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.files.output import replace_file

if TYPE_CHECKING:
    from torch import Tensor


def write_tensors(path: Path | str, tensors: "Mapping[str, Tensor]", words: Mapping[str, str]) -> None:
    """Write a file, whole or not at all."""
    from safetensors.torch import save

    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    replace_file(Path(path), lambda file: file.write_bytes(save(own, metadata=dict(words))))


def read_tensors(
    path: Path | str, what: str, writer: str, expected: Mapping[str, Collection[str]]
) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Read ``what`` the ``writer`` wrote, whose words are each one of those expected."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"Expected a {what} at {path}, but there is no such file.")
    try:
        with safe_open(path, framework="pt") as file:
            words = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    except SafetensorError as error:
        raise ValueError(f"Expected a safetensors file, but {path} is none: {error}.") from error
    if any(words.get(name) not in allowed for name, allowed in expected.items()):
        version = ", ".join(expected["format"])
        raise ValueError(f"Expected a file that {writer} wrote ({version}), but {path} says {_brief(words)}.")
    return tensors, words


def _brief(words: Mapping[str, str]) -> str:
    return str({name: value[:40] for name, value in words.items()}) if words else "nothing"
