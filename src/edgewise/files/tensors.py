"""Safetensors files with metadata."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.files.output import replace_file

if TYPE_CHECKING:
    from torch import Tensor


def write_tensors(path: Path | str, tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata to a safetensors file, atomically."""
    from safetensors.torch import save

    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    replace_file(Path(path), lambda file: file.write_bytes(save(copies, metadata=dict(metadata))))


def read_tensors(
    path: Path | str, content: str, writer: str, expected: Mapping[str, Collection[str]]
) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Read a file that ``writer`` wrote, and check that its metadata has one of the expected values for each key.

    ``content`` describes the file in messages, such as "posterior".
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"Expected a {content} at {path}, but there is no such file. Check the path.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    except SafetensorError as error:
        raise ValueError(f"Expected {path} to be a safetensors file, but got: {error}.") from error
    if any(metadata.get(name) not in allowed for name, allowed in expected.items()):
        version = ", ".join(expected["format"])
        raise ValueError(f"Expected a file that {writer} wrote ({version}), but {path} has {_format(metadata)}.")
    return tensors, metadata


def _format(metadata: Mapping[str, str]) -> str:
    return f"metadata { ({name: value[:40] for name, value in metadata.items()}) }" if metadata else "no metadata"
