"""Safetensors files with metadata, and reading of .pt files without executing code."""

import pickle
import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewise.files.arrays import (
    MIN_MEMMAP_BYTES,
    Array,
    FileError,
    array_name,
    check_memory,
    check_numbers,
    select_array,
    strip_array_name,
)
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


def read_pt(path: Path) -> Array:
    """Read the tensor of a .pt file, or the tensor ``name`` of a dictionary for a path ``file.pt:name``."""
    import torch

    content = load_pt(path)
    if isinstance(content, dict):
        tensors = {str(name): value for name, value in content.items() if isinstance(value, torch.Tensor)}
        content = tensors[select_array(path, list(tensors))]
    elif name := array_name(path):
        raise FileError(
            f"Expected {strip_array_name(path)} to hold a dictionary with {name!r}, but it holds a "
            f"{type(content).__name__}. Pass {strip_array_name(path)}."
        )
    if not isinstance(content, torch.Tensor):
        raise FileError(f"Expected tensors in {path}, but it holds a {type(content).__name__}. {SAVE_TENSORS}")
    return _as_array(content, path)


SAVE_TENSORS = (
    "Save tensors: torch.save({'y': data.y, 'edge_index': data.edge_index}, 'FILE.pt'), and select one with FILE.pt:y."
)


def load_pt(path: Path) -> Any:
    """Load the content of a .pt file, memory-mapped if it is large. Only tensors, numbers, text and lists load."""
    import torch

    file, is_stored = strip_array_name(path), False
    if zipfile.is_zipfile(file):  # all files but those of old versions of torch
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
        is_stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
        if not is_stored:
            check_memory(sum(member.file_size for member in members), path)
    mmap = is_stored and file.stat().st_size >= MIN_MEMMAP_BYTES
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # damaged files raise UnpicklingError, RuntimeError, EOFError, KeyError, …
        refused = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if refused is None:
            raise FileError(
                f"Expected {path} to be a valid .pt file of tensors, but it is damaged, or not written by torch.save. "
                "Save it again: torch.save(tensor, 'FILE.pt')."
            ) from error
        module, _, kind = refused[1].rpartition(".")
        what = "a graph of torch_geometric" if module.startswith("torch_geometric") else f"an object of type {kind}"
        raise FileError(
            f"Expected tensors in {path}, but it holds {what}, which is not loaded, as a pickle can execute code. "
            f"{SAVE_TENSORS}"
        ) from error


def _as_array(tensor: "Tensor", path: Path) -> Array:
    import torch

    if tensor.layout != torch.strided:
        raise FileError(
            f"Expected a dense tensor in {path}, but got {tensor.layout}. Save the edges of a sparse adjacency: "
            "torch.save(adjacency.to_sparse_coo().coalesce().indices(), 'FILE.pt')."
        )
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:  # NumPy has no such type
        tensor = tensor.float()
    if not tensor.is_contiguous():  # an expanded tensor takes no space in the file
        check_memory(tensor.numel() * tensor.element_size(), path)
    array: Array = tensor.numpy()
    check_numbers(array.dtype, path)
    return array
