"""The door: what is wrong with an input is said here, once, and never again."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.compiled import worth_compiling

ArrayLike = Tensor | NDArray[np.generic]

# How far a row may be from 1: rounding to the dtype; and float64 often holds float32 numbers, or decimals.
SUM_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
CHECK_ELEMENTS = 1 << 22


class Prediction(NamedTuple):
    """Inputs that passed the door."""

    probs: Float[Tensor, "nodes classes"]
    y: Int[Tensor, " nodes"]
    edge_index: Int[Tensor, "2 edges"]
    mask: Bool[Tensor, " nodes"]
    edge_probs: Float[Tensor, "edges classes classes"] | None


def checked(
    probs: ArrayLike,
    y: ArrayLike,
    edge_index: ArrayLike,
    mask: ArrayLike | None = None,
    edge_probs: ArrayLike | None = None,
) -> Prediction:
    """Bring all inputs to one device as tensors, or raise a ValueError that says what was expected and what came."""
    p = checked_probs(probs)
    nodes = p.shape[0]
    chosen = torch.ones(nodes, dtype=torch.bool, device=p.device)
    if mask is not None:
        chosen = _checked_mask(_on_device(mask, "mask", p.device), nodes)
    labels = _checked_labels(_on_device(y, "y", p.device), chosen, p.shape[1])
    edges = checked_edges(_on_device(edge_index, "edge_index", p.device), nodes)
    joints = None
    if edge_probs is not None:
        joints = _checked_joints(_on_device(edge_probs, "edge_probs", p.device), edges.shape[1], p.shape[1])
    return Prediction(p, labels, edges, chosen, joints)


def check_option(name: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse an option that does not exist, and list those that do."""
    if value not in allowed:
        raise ValueError(f"Expected {name} to be one of {', '.join(allowed)}, but got {value!r}.")


def check_whole_number(name: str, value: object, low: int, high: int) -> None:
    """Refuse what is no whole number within limits; a NumPy integer is one, and True is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise ValueError(f"Expected {name} to be a whole number from {low} to {high}, but got {value!r}.")


def checked_probs(probs: ArrayLike) -> Float[Tensor, "nodes classes"]:
    """Check that each row is a distribution over classes."""
    p = as_tensor(probs, "probs")
    if p.ndim != 2 or p.shape[1] == 0:
        raise ValueError(f"Expected probs of shape (nodes, classes), but got shape {tuple(p.shape)}.")
    _check_distributions(p, "probs", "row")
    return p


def checked_edges(edge_index: Tensor, num_nodes: int) -> Int[Tensor, "2 edges"]:
    """Check that edges are pairs of existing nodes."""
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        hint = " Pass edge_index.T." if edge_index.ndim == 2 and edge_index.shape[1] == 2 else ""
        raise ValueError(f"Expected edge_index of shape (2, edges), but got shape {tuple(edge_index.shape)}.{hint}")
    edge_index = _integers(edge_index, "edge_index")
    if edge_index.shape[1] == 0:
        return edge_index
    low, high = (int(limit) for limit in edge_index.aminmax())
    if low < 0 or high >= num_nodes:
        outside = (edge_index < 0) | (edge_index >= num_nodes)
        e = int(outside.any(0).nonzero()[0])
        hint = " If they are counted from 1, pass edge_index - 1." if (low, high) == (1, num_nodes) else ""
        raise ValueError(
            f"Expected edge_index to hold nodes from 0 to {num_nodes - 1}, but edge {e} is "
            f"{edge_index[:, e].tolist()}.{hint}"
        )
    return edge_index


def as_tensor(array: ArrayLike, name: str) -> Tensor:
    """Look at an array as a tensor, without a copy where torch knows its dtype."""
    if isinstance(array, Tensor):
        if array.layout != torch.strided or array.device.type == "meta":
            raise ValueError(f"Expected {name} to be a dense tensor with values. For a sparse one pass .to_dense().")
        return array.detach()
    if not isinstance(array, np.ndarray):
        raise ValueError(
            f"Expected {name} to be a tensor or a NumPy array, but got {type(array).__name__}. "
            "Of a list make one by np.asarray, of a torch_geometric Data take data.edge_index or data.y."
        )
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise ValueError(
            f"Expected {name} to hold numbers of 64 bits at most, but got an array of dtype {array.dtype}."
        )
    if array.dtype.kind == "u":  # torch compares unsigned numbers with -1 in their own ring
        if array.dtype.itemsize == 8 and array.size and array.max() > np.iinfo(np.int64).max:
            raise ValueError(f"Expected {name} to hold numbers below 2^63, but got {array.max()}.")
        array = array.astype(np.int64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        # Nothing here writes into an input, so a read-only array (a memory map) is as good as any.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _on_device(array: ArrayLike, name: str, device: torch.device) -> Tensor:
    return as_tensor(array, name).to(device)


def _integers(tensor: Tensor, name: str) -> Tensor:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(
            f"Expected {name} to hold integers, but got dtype {tensor.dtype}. If they are whole, pass {name}.long() "
            f"(NumPy: {name}.astype(int))."
        )
    return tensor if tensor.dtype.is_signed else tensor.long()


def _checked_mask(mask: Tensor, num_nodes: int) -> Bool[Tensor, " nodes"]:
    if mask.dtype != torch.bool:
        raise ValueError(
            f"Expected mask to hold booleans, one a node, but got dtype {mask.dtype}. "
            "For 0/1 numbers pass mask.bool() (NumPy: mask.astype(bool)); for node indices pass "
            "torch_geometric.utils.index_to_mask(index, size)."
        )
    if mask.shape != (num_nodes,):
        hint = " Of several masks choose one: mask[:, k]." if mask.ndim == 2 and len(mask) == num_nodes else ""
        raise ValueError(f"Expected mask of shape ({num_nodes},), one entry a node, but got {tuple(mask.shape)}.{hint}")
    return mask


def _checked_labels(y: Tensor, mask: Tensor, num_classes: int) -> Int[Tensor, " nodes"]:
    if y.shape != mask.shape:
        hint = ""
        if y.ndim == 2:
            hint = " Pass y.squeeze(1)." if y.shape[1] == 1 else " For one-hot labels pass y.argmax(1)."
        raise ValueError(
            f"Expected y of shape {tuple(mask.shape)}, one label a node as probs has one row a node, but got shape "
            f"{tuple(y.shape)}.{hint}"
        )
    y = _integers(y, "y")
    if y.numel() == 0:
        return y
    low, high = (int(limit) for limit in y.aminmax())
    if low < -1 or high >= num_classes:
        i = int(((y < -1) | (y >= num_classes)).nonzero()[0])
        raise ValueError(
            f"Expected labels from 0 to {num_classes - 1} (probs has {num_classes} columns), or -1 for an unknown "
            f"label outside the mask, but node {i} has label {int(y[i])}."
        )
    if low < 0 and bool((mask & (y < 0)).any()):
        i = int((mask & (y < 0)).nonzero()[0])
        raise ValueError(
            f"Expected a known label for every scored node, but node {i} has label -1. "
            "Leave such nodes out with mask=(y >= 0)."
        )
    return y


def _checked_joints(edge_probs: Tensor, num_edges: int, num_classes: int) -> Tensor:
    expected = (num_edges, num_classes, num_classes)
    if edge_probs.shape != expected:
        raise ValueError(
            f"Expected edge_probs of shape (edges, classes, classes) = {expected}, one joint for each column of "
            f"edge_index, but got shape {tuple(edge_probs.shape)}."
        )
    _check_distributions(edge_probs, "edge_probs", "edge")
    return edge_probs


def _check_distributions(p: Tensor, name: str, row: str) -> None:
    """Check that p[i] is not negative and sums to 1, for each i."""
    if p.dtype not in SUM_TOLERANCE:
        raise ValueError(f"Expected {name} to hold floating-point probabilities, but got dtype {p.dtype}.")
    bad = first_bad_row(p.flatten(1), SUM_TOLERANCE[p.dtype])
    if bad is not None:
        _refuse_row(p[bad].flatten().double(), f"{row} {bad} of {name}", row)


def first_bad_row(p: Tensor, tolerance: float) -> int | None:
    """Find a row that is no distribution; a chunk at a time, so that nothing large is made."""
    if worth_compiling(p):
        from edgewise.metrics.fused import first_bad_row_of_many

        return first_bad_row_of_many(p, tolerance)
    step = max(1, CHECK_ELEMENTS // max(1, p.shape[1]))
    for lo in range(0, len(p), step):
        part = p[lo : lo + step]
        # A comparison with NaN is false, so a NaN anywhere in a row fails it.
        good = ((part.sum(1, dtype=torch.float64) - 1.0).abs() <= tolerance) & (part.amin(1) >= 0)
        if not bool(good.all()):
            return lo + int((~good).nonzero()[0])
    return None


def _refuse_row(values: Tensor, place: str, row: str) -> None:
    if bool(values.isnan().any()):
        raise ValueError(f"Expected probabilities, but {place} holds NaN.")
    if float(values.min()) < 0:
        raise ValueError(
            f"Expected probabilities, but {place} holds {float(values.min()):.6g}. For logits pass logits.softmax(-1)."
        )
    total = float(values.sum())
    raise ValueError(
        f"Expected probabilities that sum to 1 in each {row}, but {place} sums to {total:.6g}. "
        f"{_way_to_sum_to_one(total, len(values))}"
    )


def _way_to_sum_to_one(total: float, num_values: int) -> str:
    if num_values == 1:
        return "If it is the probability of class 1, pass both columns: np.column_stack([1 - p, p])."
    if abs(total - 1.0) < 0.02:
        return "If they are rounded, divide each row by its sum: p / p.sum(1, keepdims=True)."
    if abs(total - 100.0) < 2.0:
        return "For percentages pass p / 100."
    return "For logits pass logits.softmax(-1); a column that is no class, such as an id, must be left out."
