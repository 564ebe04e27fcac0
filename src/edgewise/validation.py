"""Input checks and conversions shared by the whole package: arrays, labels, masks, edges, distributions, options.

Each ``check_…`` raises a ValueError that says what was expected, what was passed and how to fix it. Those that take
an array return it in the form that the rest of the package uses.
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

ArrayLike = Tensor | NDArray[np.generic]

# Arrays


def as_tensor(array: ArrayLike, name: str) -> Tensor:
    """Look at an array as a tensor that no gradient flows to, without a copy where torch knows its dtype."""
    return dense_tensor(array, name).detach()


def dense_tensor(array: ArrayLike, name: str) -> Tensor:
    """Look at an array as a tensor; a tensor keeps its gradient."""
    if isinstance(array, Tensor):
        if array.layout != torch.strided or array.device.type == "meta":
            raise ValueError(f"Expected {name} to be a dense tensor with values. For a sparse one pass .to_dense().")
        return array
    if not isinstance(array, np.ndarray):
        way_out = "Of a list make one by np.asarray, of a torch_geometric Data take data.edge_index or data.y."
        if hasattr(array, "train") and hasattr(array, "test"):
            way_out = "Of a split take one of its masks, such as split.test."
        elif isinstance(array, torch.nn.Module):
            way_out = "Of a trained module make a posterior: ew.wrap(module, data)."
        raise ValueError(f"Expected {name} to be a tensor or a NumPy array, but got {type(array).__name__}. {way_out}")
    return _from_numpy(array, name)


def _from_numpy(array: NDArray[np.generic], name: str) -> Tensor:
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        way_out = f" Number them: np.unique({name}, return_inverse=True)[1]." if array.dtype.kind in "USO" else ""
        raise ValueError(
            f"Expected {name} to hold numbers of 64 bits at most, but got an array of dtype {array.dtype}.{way_out}"
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


def check_integers(tensor: Tensor, name: str) -> Tensor:
    """Check that a tensor holds integers, and make them signed."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(
            f"Expected {name} to hold integers, but got dtype {tensor.dtype}. If they are whole, pass {name}.long() "
            f"(NumPy: {name}.astype(int))."
        )
    return tensor if tensor.dtype.is_signed else tensor.long()


# Labels, masks, edges and sets of nodes


def check_labels(y: Tensor, num_nodes: int | None = None, rows: str = "nodes") -> Int[Tensor, " nodes"]:
    """Check that there is a label, or -1 for unknown, for each node; ``rows`` is what a message calls the nodes."""
    if y.ndim != 1 or num_nodes not in (None, len(y)):
        hint = " Both have an entry for each node of the graph, in one order." if y.ndim == 1 else ""
        if y.ndim == 2:
            hint = " For a column pass y.squeeze(1)." if y.shape[1] == 1 else " For one-hot labels pass y.argmax(-1)."
        each = "each node" if num_nodes is None else f"each of the {num_nodes} {rows}"
        raise ValueError(f"Expected y to hold one label for {each}, but got shape {tuple(y.shape)}.{hint}")
    y = check_integers(y, "y")
    if bool((y < -1).any()):
        node = int((y < -1).nonzero()[0])
        raise ValueError(
            f"Expected labels from 0 on, or -1 for unknown, but node {node} has label {int(y[node])}. If it stands for "
            "unknown, pass y.clamp(min=-1)."
        )
    return y


def check_mask(mask: Tensor, num_nodes: int, name: str) -> Bool[Tensor, " nodes"]:
    """Check that there is a boolean for each node."""
    if mask.dtype != torch.bool:
        raise ValueError(
            f"Expected {name} to hold booleans, one per node, but got dtype {mask.dtype}. "
            f"For 0/1 numbers pass {name}.bool() (NumPy: {name}.astype(bool)); for node indices pass "
            "torch_geometric.utils.index_to_mask(index, size)."
        )
    if mask.shape != (num_nodes,):
        hint = f" Of several masks choose one: {name}[:, k]." if mask.ndim == 2 and len(mask) == num_nodes else ""
        raise ValueError(
            f"Expected {name} of shape ({num_nodes},), one entry per node, but got {tuple(mask.shape)}.{hint}"
        )
    return mask


def check_edges(edge_index: Tensor, num_nodes: int) -> Int[Tensor, "2 edges"]:
    """Check that edges are pairs of existing nodes."""
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
            "If they are counted from 1, pass edge_index - 1."
            if (low, high) == (1, num_nodes)
            else "There must be a row for every node of the graph, in its order; choose nodes by mask=."
        )
        raise ValueError(
            f"Expected edge_index to hold nodes from 0 to {num_nodes - 1}, but edge {e} is "
            f"{edge_index[:, e].tolist()}. {hint}"
        )
    return edge_index


def check_node_sets(nodes: Tensor, num_nodes: int, name: str) -> Int[Tensor, "set sets"]:
    """Check that the columns of a (k, M) index are sets of existing, distinct nodes."""
    if nodes.ndim != 2 or nodes.shape[0] == 0:
        raise ValueError(f"Expected {name} of shape (nodes in a set, sets), but got shape {tuple(nodes.shape)}.")
    nodes = check_integers(nodes, name).long()
    outside = ((nodes < 0) | (nodes >= num_nodes)).any(0)
    if bool(outside.any()):
        s = int(outside.nonzero()[0])
        raise ValueError(f"Expected {name} to hold nodes from 0 to {num_nodes - 1}, but set {s} is {_few(nodes, s)}.")
    ordered = nodes.sort(0).values
    repeated = (ordered[1:] == ordered[:-1]).any(0)
    if bool(repeated.any()):
        s = int(repeated.nonzero()[0])
        size, num_sets = nodes.shape
        hint = f"Sets are columns: pass {name}.T." if size > num_sets > 1 else "Leave such sets out."
        raise ValueError(
            f"Expected distinct nodes in each of {num_sets} sets of {size} nodes, but set {s} is {_few(nodes, s)}. "
            f"{hint}"
        )
    return nodes


def _few(sets: Tensor, which: int) -> str:
    """Name the first nodes of a set."""
    nodes = sets[:, which].tolist()
    return str(nodes) if len(nodes) <= 6 else f"{str(nodes[:6])[:-1]}, …]"


# Distributions

# How far a row may be from 1: rounding to the dtype; and float64 often holds float32 numbers, or decimals.
SUM_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
CHECK_ELEMENTS = 1 << 22


def check_distributions(p: Tensor, name: str, row: str) -> None:
    """Check that p[i] is not negative and sums to 1, for each i; ``row`` is what a message calls p[i]."""
    if p.dtype not in SUM_TOLERANCE:
        raise ValueError(f"Expected {name} to hold floating-point probabilities, but got dtype {p.dtype}.")
    bad = first_bad_row(p.detach().flatten(1), SUM_TOLERANCE[p.dtype])
    if bad is not None:
        _refuse_row(p[bad].flatten().double(), f"{row} {bad} of {name}", row)


def first_bad_row(p: Tensor, tolerance: float) -> int | None:
    """Find a row that is no distribution; a chunk at a time, so that nothing large is made."""
    if worth_compiling(p):
        return kernels.distribution_rows.find_invalid_row(p, tolerance)
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
        raise ValueError(
            f"Expected probabilities, but {place} holds NaN. Train again if the model diverged; predict every {row} if "
            "some were left out."
        )
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


# Options


def check_option(name: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse an option that does not exist, and list those that do."""
    if value not in allowed:
        raise ValueError(f"Expected {name} to be one of {', '.join(allowed)}, but got {value!r}.")


def check_whole_number(name: str, value: object, low: int, high: int) -> None:
    """Refuse what is no whole number within limits; a NumPy integer is one, and True is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise ValueError(f"Expected {name} to be a whole number from {low} to {high}, but got {value!r}.")


MAX_SEED = (1 << 63) - 1  # the largest that a signed 64-bit column of a results store can hold


def check_seed(seed: object, name: str = "seed") -> None:
    """Refuse what is no seed; the limits are the same wherever something is drawn.

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
    """Refuse what is no finite number within limits; a NumPy number is one, and True is none.

    >>> check_number("learning_rate", 0.0, above=0)
    Traceback (most recent call last):
    ValueError: Expected learning_rate to be a number above 0, but got 0.0.
    """
    number = value if isinstance(value, int | float | np.integer | np.floating) else math.nan
    if isinstance(value, bool) or not (above < number < below and least <= number <= most):
        limits = {"above": above, "of at least": least, "below": below, "at most": most}
        words = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
        raise ValueError(f"Expected {name} to be a number {words}, but got {value!r}. {hint}".rstrip())
