"""Input checks and conversions shared by the whole package: arrays, labels, masks, edges, distributions, options.

Each ``check_…`` function raises a ValueError that states the expected value, the value passed and how to fix it.
Functions that take an array return it in the form that the rest of the package uses.
"""

import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise import kernels
from edgewise.kernels.dispatch import worth_compiling
from edgewise.suggestions import did_you_mean

ArrayLike = Tensor | NDArray[np.generic]

# Arrays


def as_tensor(array: ArrayLike, name: str) -> Tensor:
    """Convert an array to a detached tensor, without a copy if torch supports its dtype."""
    return dense_tensor(array, name).detach()


def dense_tensor(array: ArrayLike, name: str) -> Tensor:
    """Convert an array to a dense tensor. A tensor is returned as is, with its gradient."""
    if isinstance(array, Tensor):
        if array.layout != torch.strided or array.device.type == "meta":
            raise ValueError(
                f"Expected {name} to be a dense tensor with values, but got {array.layout} on {array.device}. "
                "Convert a sparse tensor with .to_dense()."
            )
        return array
    if not isinstance(array, np.ndarray):
        hint = "Convert a list with np.asarray. From a torch_geometric Data pass data.edge_index or data.y."
        if hasattr(array, "train") and hasattr(array, "test"):
            hint = "Pass one mask of the split, such as split.test."
        elif isinstance(array, torch.nn.Module):
            hint = "Convert a trained module to a posterior: ew.wrap(module, data)."
        raise ValueError(f"Expected {name} to be a tensor or a NumPy array, but got {type(array).__name__}. {hint}")
    return _from_numpy(array, name)


def _from_numpy(array: NDArray[np.generic], name: str) -> Tensor:
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        hint = (
            f" Encode text as integers: np.unique({name}, return_inverse=True)[1]." if array.dtype.kind in "USO" else ""
        )
        raise ValueError(
            f"Expected {name} to hold numbers of at most 64 bits, but got an array of dtype {array.dtype}.{hint}"
        )
    if array.dtype.kind == "u":  # torch wraps -1 around in comparisons with unsigned integers
        if array.dtype.itemsize == 8 and array.size and array.max() > np.iinfo(np.int64).max:
            raise ValueError(
                f"Expected {name} to hold numbers below 2^63, but got {array.max()}. Renumber them from 0."
            )
        array = array.astype(np.int64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        # The package never writes into an input, so a read-only array (a memory map) is safe.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def check_integers(tensor: Tensor, name: str) -> Tensor:
    """Check that a tensor holds integers, and convert unsigned to signed."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(
            f"Expected {name} to hold integers, but got dtype {tensor.dtype}. If the values are integers, pass "
            f"{name}.long() (NumPy: {name}.astype(int))."
        )
    return tensor if tensor.dtype.is_signed else tensor.long()


# Labels, masks, edges and node sets


def check_labels(y: Tensor, num_nodes: int | None = None, rows: str = "nodes") -> Int[Tensor, " nodes"]:
    """Check that each node has a label, or -1 for unknown. ``rows`` is the word for nodes in the message."""
    if y.ndim != 1 or num_nodes not in (None, len(y)):
        hint = " Pass one label for each node of the graph, in the same order." if y.ndim == 1 else ""
        if y.ndim == 2:
            hint = " For a column pass y.squeeze(1)." if y.shape[1] == 1 else " For one-hot labels pass y.argmax(-1)."
        target = "each node" if num_nodes is None else f"each of the {num_nodes} {rows}"
        raise ValueError(f"Expected y to hold one label for {target}, but got shape {tuple(y.shape)}.{hint}")
    y = check_integers(y, "y")
    if bool((y < -1).any()):
        node = int((y < -1).nonzero()[0])
        raise ValueError(
            f"Expected labels of at least 0, or -1 for unknown, but node {node} has label {int(y[node])}. If it means "
            "unknown, pass y.clamp(min=-1)."
        )
    return y


def check_mask(mask: Tensor, num_nodes: int, name: str) -> Bool[Tensor, " nodes"]:
    """Check that a mask holds one boolean per node."""
    if mask.dtype != torch.bool:
        raise ValueError(
            f"Expected {name} to hold booleans, one per node, but got dtype {mask.dtype}. "
            f"For 0/1 numbers pass {name}.bool() (NumPy: {name}.astype(bool)). For node indices pass "
            "torch_geometric.utils.index_to_mask(index, size)."
        )
    if mask.shape != (num_nodes,):
        hint = f" Choose one of the masks: {name}[:, k]." if mask.ndim == 2 and len(mask) == num_nodes else ""
        raise ValueError(
            f"Expected {name} of shape ({num_nodes},), one entry per node, but got {tuple(mask.shape)}.{hint}"
        )
    return mask


def check_edges(edge_index: Tensor, num_nodes: int) -> Int[Tensor, "2 edges"]:
    """Check that edges have shape (2, E) and connect nodes from 0 to num_nodes - 1."""
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        hint = " Pass edge_index.T." if edge_index.ndim == 2 and edge_index.shape[1] == 2 else ""
        raise ValueError(f"Expected edge_index of shape (2, edges), but got shape {tuple(edge_index.shape)}.{hint}")
    edge_index = check_integers(edge_index, "edge_index")
    if edge_index.shape[1] == 0:
        return edge_index
    low, high = (int(limit) for limit in edge_index.aminmax())
    if low < 0 or high >= num_nodes:
        outside = (edge_index < 0) | (edge_index >= num_nodes)
        e = int(outside.any(0).nonzero()[0])
        hint = (
            "If nodes are numbered from 1, pass edge_index - 1."
            if (low, high) == (1, num_nodes)
            else "Pass one row for each node of the graph, and select nodes with mask=."
        )
        raise ValueError(
            f"Expected edge_index to hold nodes from 0 to {num_nodes - 1}, but edge {e} is "
            f"{edge_index[:, e].tolist()}. {hint}"
        )
    return edge_index


def check_node_sets(nodes: Tensor, num_nodes: int, name: str) -> Int[Tensor, "set sets"]:
    """Check that each column of a (k, M) index is a set of distinct nodes from 0 to num_nodes - 1."""
    if nodes.ndim != 2 or nodes.shape[0] == 0:
        raise ValueError(f"Expected {name} of shape (nodes per set, sets), but got shape {tuple(nodes.shape)}.")
    nodes = check_integers(nodes, name).long()
    outside = ((nodes < 0) | (nodes >= num_nodes)).any(0)
    if bool(outside.any()):
        s = int(outside.nonzero()[0])
        raise ValueError(
            f"Expected {name} to hold nodes from 0 to {num_nodes - 1}, but set {s} is {_format_set(nodes, s)}."
        )
    ordered = nodes.sort(0).values
    repeated = (ordered[1:] == ordered[:-1]).any(0)
    if bool(repeated.any()):
        s = int(repeated.nonzero()[0])
        size, num_sets = nodes.shape
        hint = f"Sets are columns: pass {name}.T." if size > num_sets > 1 else "Remove sets with repeated nodes."
        raise ValueError(
            f"Expected distinct nodes in each of {num_sets} sets of {size} nodes, but set {s} is "
            f"{_format_set(nodes, s)}. {hint}"
        )
    return nodes


def _format_set(sets: Tensor, column: int) -> str:
    """Format the first six nodes of a set."""
    nodes = sets[:, column].tolist()
    return str(nodes) if len(nodes) <= 6 else f"{str(nodes[:6])[:-1]}, …]"


# Distributions

# Maximum |sum - 1| of a row. float64 arrays often hold values that were rounded to float32 or to a few decimals.
SUM_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
CHECK_ELEMENTS = 1 << 22


def check_distributions(p: Tensor, name: str, row: str) -> None:
    """Check that each p[i] is nonnegative and sums to 1. ``row`` is the word for p[i] in the message."""
    if p.dtype not in SUM_TOLERANCE:
        raise ValueError(f"Expected {name} to hold floating-point probabilities, but got dtype {p.dtype}.")
    bad = first_bad_row(p.detach().flatten(1), SUM_TOLERANCE[p.dtype])
    if bad is not None:
        _raise_bad_row(p[bad].flatten().double(), f"{row} {bad} of {name}", row)


def first_bad_row(p: Tensor, tolerance: float) -> int | None:
    """Return the index of a row that is not a distribution, or None. Rows are checked in chunks to bound memory."""
    if worth_compiling(p):
        return kernels.distribution_rows.find_invalid_row(p, tolerance)
    step = max(1, CHECK_ELEMENTS // max(1, p.shape[1]))
    for lo in range(0, len(p), step):
        part = p[lo : lo + step]
        # Comparisons with NaN are false, so a row with NaN fails.
        good = ((part.sum(1, dtype=torch.float64) - 1.0).abs() <= tolerance) & (part.amin(1) >= 0)
        if not bool(good.all()):
            return lo + int((~good).nonzero()[0])
    return None


def _raise_bad_row(values: Tensor, location: str, row: str) -> None:
    if bool(values.isnan().any()):
        raise ValueError(
            f"Expected probabilities, but {location} holds NaN. Retrain the model if it diverged, or predict the "
            f"missing {row}s."
        )
    if float(values.min()) < 0:
        raise ValueError(
            f"Expected probabilities, but {location} holds {float(values.min()):.6g}. For logits pass "
            "logits.softmax(-1)."
        )
    total = float(values.sum())
    raise ValueError(
        f"Expected probabilities that sum to 1 in each {row}, but {location} sums to {total:.6g}. "
        f"{_sum_hint(total, len(values))}"
    )


def _sum_hint(total: float, num_values: int) -> str:
    if num_values == 1:
        return "If this is the probability of class 1, pass both columns: np.column_stack([1 - p, p])."
    if abs(total - 1.0) < 0.02:
        return "If the values are rounded, divide each row by its sum: p / p.sum(1, keepdims=True)."
    if abs(total - 100.0) < 2.0:
        return "For percentages pass p / 100."
    return "For logits pass logits.softmax(-1). Remove columns that are not classes, such as ids."


# Options


def check_option(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise ValueError if an option is not one of the allowed values."""
    if value not in allowed:
        hint = did_you_mean(value, allowed)
        raise ValueError(f"Expected {name} to be one of {', '.join(allowed)}, but got {value!r}.{hint}")


def check_whole_number(name: str, value: object, low: int, high: int) -> None:
    """Raise ValueError unless a value is an integer from low to high. NumPy integers are valid, booleans are not."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise ValueError(f"Expected {name} to be a whole number from {low} to {high}, but got {value!r}.")


MAX_SEED = (1 << 63) - 1  # the largest value of a signed 64-bit column in a results store


def check_seed(seed: object, name: str = "seed") -> None:
    """Raise ValueError unless a seed is an integer from 0 to MAX_SEED. All random functions share these limits.

    >>> check_seed(-1)
    Traceback (most recent call last):
    ValueError: Expected seed to be a whole number from 0 to 9223372036854775807, but got -1.
    """
    check_whole_number(name, seed, 0, MAX_SEED)


def check_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
    hint: str = "",
) -> None:
    """Raise ValueError unless a value is a finite number within limits. NumPy numbers are valid, booleans are not.

    >>> check_number("learning_rate", 0.0, above=0)
    Traceback (most recent call last):
    ValueError: Expected learning_rate to be a number above 0, but got 0.0.
    """
    number = value if isinstance(value, int | float | np.integer | np.floating) else math.nan
    if isinstance(value, bool) or not (above < number < below and least <= number <= most):
        limits = {"above": above, "of at least": least, "below": below, "at most": most}
        description = " and ".join(f"{phrase} {limit:g}" for phrase, limit in limits.items() if math.isfinite(limit))
        raise ValueError(f"Expected {name} to be a number {description}, but got {value!r}. {hint}".rstrip())
