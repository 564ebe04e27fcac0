"""Input checks and conversions shared by the whole package: arrays, labels, masks, edges, distributions, options.

Each ``check_…`` function raises a ValueError that states the expected value, the value passed and how to fix it.
Functions that take an array return it in the form that the rest of the package uses.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise import kernels
from edgewise.kernels.dispatch import worth_compiling
from edgewise.suggestions import did_you_mean


class SupportsToNumpy(Protocol):
    """A column or a table of pandas or polars."""

    def to_numpy(self) -> NDArray[Any]:
        """Return the values."""


ArrayLike = Tensor | NDArray[Any] | Sequence[Any] | SupportsToNumpy

# Arrays


def as_tensor(array: ArrayLike, name: str) -> Tensor:
    """Convert an array to a detached tensor, without a copy if torch supports its dtype."""
    return dense_tensor(array, name).detach()


def dense_tensor(array: ArrayLike, name: str) -> Tensor:
    """Convert an array, nested lists or a pandas column to a dense tensor. A tensor is returned with its gradient."""
    if isinstance(array, Tensor):
        if array.layout != torch.strided or array.device.type == "meta":
            raise ValueError(
                f"Expected {name} to be a dense tensor with values, but got {array.layout} on {array.device}. "
                "Convert a sparse tensor with .to_dense()."
            )
        return array
    if isinstance(array, list | tuple) and array and all(isinstance(row, Tensor) for row in array):
        if len({(row.shape, row.dtype, row.device) for row in array}) == 1:
            return torch.stack(list(array))
        raise ValueError(
            f"Expected {name} as tensors of one shape, dtype and device, but got shapes "
            f"{', '.join(str(tuple(row.shape)) for row in array[:3])}. Pass one tensor."
        )
    return _from_numpy(as_numpy(array, name), name)


def as_numpy(array: object, name: str) -> NDArray[Any]:
    """Convert nested lists or a pandas or polars column or table to an array. Values may be of any type."""
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, Tensor):
        return as_tensor(array, name).cpu().numpy()
    if isinstance(array, list | tuple | range):
        try:
            values = np.asarray(array)
        except ValueError as error:
            raise ValueError(
                f"Expected {name} as nested lists of one length, but got lists of different lengths. Pad or correct "
                "them."
            ) from error
        return values if values.size else values.astype(np.int64)  # an empty list has no type
    if callable(getattr(array, "to_numpy", None)):
        return np.asarray(array.to_numpy())  # type: ignore[attr-defined]
    if callable(getattr(array, "toarray", None)):
        raise ValueError(f"Expected {name} to be dense, but got a sparse array. Pass {name}.toarray().")
    raise ValueError(
        f"Expected {name} to be an array, a tensor, lists or a pandas column, but got {type(array).__name__}."
        f"{_type_hint(array)}"
    )


def _type_hint(value: object) -> str:
    if hasattr(value, "train") and hasattr(value, "test"):
        return " Pass one mask of the split, such as split.test."
    if isinstance(value, torch.nn.Module):
        return " Convert a trained module to a posterior: ew.wrap(module, data)."
    if hasattr(value, "predict_proba"):
        return " Pass the probabilities: model.predict_proba(x)."
    if hasattr(value, "edge_index"):
        return " The graph is the second argument: ew.evaluate(probs, data)."
    if isinstance(value, str):
        return " Load a file first, for example with np.load, or use the command edgewise evaluate."
    if isinstance(value, Mapping):
        return " Pass its values as a list in the order of nodes. For neighbors pass networkx.Graph(…)."
    if isinstance(value, Iterable):
        return " Pass a list: list(…)."
    return ""


def _from_numpy(array: NDArray[Any], name: str) -> Tensor:
    if array.dtype.kind == "O" and array.size:  # such as the nullable integers of pandas
        inferred = np.asarray(array.tolist())
        array = inferred if inferred.shape == array.shape else array
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        is_text = array.dtype.kind in "USO" and array.size > 0
        found = f"{array.flat[0:1].tolist()[0]!r}" if is_text else f"an array of dtype {array.dtype}"
        hint = TEXT_HINTS.get(name, "") if is_text else ""
        raise ValueError(f"Expected {name} to hold numbers of at most 64 bits, but got {found}.{hint}")
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


MASK_HINT = " For a column such as ['train', 'test', …] pass np.asarray(column) == 'test'."
CLASS_NAMES_HINT = (
    " For ew.evaluate pass the class of each column of probs in order as class_names=, such as clf.classes_ of a "
    "scikit-learn classifier."
)
TEXT_HINTS = {
    "y": f"{CLASS_NAMES_HINT} Elsewhere number the labels: [list(classes).index(label) for label in y].",
    "predictions": CLASS_NAMES_HINT,
    **dict.fromkeys(("mask", "train", "val", "test"), MASK_HINT),
}


def check_integers(tensor: Tensor, name: str) -> Tensor:
    """Check that a tensor holds integers, and convert unsigned to signed. An empty tensor may have any dtype."""
    if tensor.numel() == 0:
        return tensor.long()
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        hint = f"If the values are integers, pass {name}.long() (NumPy: {name}.astype(int))."
        if name in ("y", "predictions") and tensor.dtype.is_floating_point and bool(tensor.isnan().any()):
            hint = f"If NaN means unknown, pass np.nan_to_num(np.asarray({name}, float), nan=-1).astype(int)."
        raise ValueError(f"Expected {name} to hold integers, but got dtype {tensor.dtype}. {hint}")
    return tensor if tensor.dtype.is_signed else tensor.long()


# Labels, masks, edges and node sets


def check_labels(
    y: Tensor, num_nodes: int | None = None, rows: str = "nodes", name: str = "y"
) -> Int[Tensor, " nodes"]:
    """Check that each node has a label, or -1 for unknown. ``rows`` is the word for nodes in the message."""
    if y.ndim == 2 and y.shape[1] == 1:  # a column, as in OGB
        y = y.squeeze(1)
    if y.ndim != 1 or num_nodes not in (None, len(y)):
        hint = " Pass one label for each node of the graph, in the same order." if y.ndim == 1 else ""
        if y.ndim == 2:
            is_rows = y.shape[1] == num_nodes != len(y)
            hint = f" For the first row pass {name}[0]." if is_rows else f" For one-hot labels pass {name}.argmax(-1)."
        target = "each node" if num_nodes is None else f"each of the {num_nodes} {rows}"
        raise ValueError(f"Expected {name} to hold one label for {target}, but got shape {tuple(y.shape)}.{hint}")
    y = check_integers(y, name)
    if bool((y < -1).any()):
        node = int((y < -1).nonzero()[0])
        raise ValueError(
            f"Expected {name} to hold labels of at least 0, or -1 for unknown, but node {node} has label "
            f"{int(y[node])}. If it means unknown, pass {name}.clamp(min=-1)."
        )
    return y


def check_mask(mask: Tensor, num_nodes: int, name: str) -> Bool[Tensor, " nodes"]:
    """Check that a mask holds one boolean per node, and convert numbers if all are 0 or 1."""
    if mask.ndim == 2 and mask.shape[1] == 1 and len(mask) == num_nodes:
        mask = mask.squeeze(1)
    is_boolean = mask.dtype == torch.bool
    if mask.shape == (num_nodes,) and (is_boolean or bool(((mask == 0) | (mask == 1)).all())):
        return mask if is_boolean else mask.bool()
    if not is_boolean and mask.ndim == 1:
        raise ValueError(
            f"Expected {name} to hold one boolean (or 0 or 1) for each of the {num_nodes} nodes, but got numbers of "
            f"shape {tuple(mask.shape)} and dtype {mask.dtype}. For node indices pass "
            f"np.isin(np.arange({num_nodes}), {name})."
        )
    hint = f" Choose one of the masks: {name}[:, k]." if mask.ndim == 2 and len(mask) == num_nodes else ""
    raise ValueError(f"Expected {name} of shape ({num_nodes},), one entry per node, but got {tuple(mask.shape)}.{hint}")


def check_edges(edge_index: Tensor, num_nodes: int) -> Int[Tensor, "2 edges"]:
    """Check that edges have shape (2, E) and connect nodes from 0 to num_nodes - 1."""
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        hint = " Pass edge_index.T." if edge_index.ndim == 2 and edge_index.shape[1] == 2 else ""
        if edge_index.shape == (num_nodes, num_nodes):
            hint = " For a dense adjacency pass scipy.sparse.csr_array(edge_index) (a tensor: edge_index.to_sparse())."
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
ROUNDING_TOLERANCE = 0.02  # of probabilities that are rounded and normalized on request
SUM_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
CHECK_ELEMENTS = 1 << 22
LOGITS_HINT = "For logits pass logits.softmax(-1), or scipy.special.softmax(logits, -1) if it is an array."


def check_distributions(p: Tensor, name: str, row: str) -> None:
    """Check that each p[i] is nonnegative and sums to 1. ``row`` is the word for p[i] in the message."""
    if p.dtype not in SUM_TOLERANCE:
        hint = f"For predictions of 0 and 1 pass np.asarray({name}, float)."
        raise ValueError(f"Expected {name} to hold floating-point probabilities, but got dtype {p.dtype}. {hint}")
    _check_rows(p, name, row, SUM_TOLERANCE[p.dtype])


def normalize_distributions(p: Tensor, name: str, row: str) -> Tensor:
    """Divide each p[i] by its sum, which rounding to a few decimals may have moved from 1, by at most 2%."""
    if p.dtype not in SUM_TOLERANCE:
        check_distributions(p, name, row)
    _check_rows(p, name, row, max(ROUNDING_TOLERANCE, SUM_TOLERANCE[p.dtype]))
    total = p.sum(tuple(range(1, p.ndim)), keepdim=True, dtype=torch.float64)
    return (p / total).to(p.dtype)


def _check_rows(p: Tensor, name: str, row: str, tolerance: float) -> None:
    bad = first_bad_row(p.detach().flatten(1), tolerance)
    if bad is None:
        return
    if name == "probs" and len(p) > 1 and first_bad_row(p.detach().T, tolerance) is None:
        raise ValueError(
            f"Expected probabilities that sum to 1 in each {row}, but in {name} of shape {tuple(p.shape)} each column "
            f"does. Pass {name}.T."
        )
    _raise_bad_row(p[bad].flatten().double(), bad, name, row)


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


def _raise_bad_row(values: Tensor, index: int, name: str, row: str) -> None:
    location = f"{row} {index} of {name}"
    if bool(values.isnan().any()):
        raise ValueError(
            f"Expected probabilities, but {location} holds NaN. Retrain the model if it diverged, or predict the "
            f"missing {row}s."
        )
    if float(values.min()) < 0:
        raise ValueError(f"Expected probabilities, but {location} holds {float(values.min()):.6g}. {LOGITS_HINT}")
    total = float(values.sum())
    raise ValueError(
        f"Expected probabilities that sum to 1 in each {row}, but {location} sums to {total:.6g}. "
        f"{_sum_hint(total, len(values), name)}"
    )


def _sum_hint(total: float, num_values: int, name: str) -> str:
    if num_values == 1:
        return "If this is the probability of class 1, pass both columns: np.column_stack([1 - p, p])."
    if abs(total - 1.0) <= ROUNDING_TOLERANCE:
        if name not in ("probs", "edge_probs"):
            return "If the values are rounded, divide them by their sum."
        return (
            "If the values are rounded, pass normalize=True to ew.evaluate or ew.wrap (--normalize on the command "
            "line), which divides them by their sum."
        )
    if abs(total - 100.0) < 2.0:
        return "For percentages pass np.asarray(p) / 100."
    return f"{LOGITS_HINT} Remove columns that are not classes, such as ids."


# Options


def check_option(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise ValueError if an option is not one of the allowed values.

    >>> check_option("binning", "widht", ("width", "mass"))
    Traceback (most recent call last):
    ValueError: Expected binning to be one of width, mass, but got 'widht'. Did you mean 'width'?
    """
    if value not in allowed:
        hint = did_you_mean(value, allowed)
        raise ValueError(f"Expected {name} to be one of {', '.join(allowed)}, but got {value!r}.{hint}")


def check_flag(name: str, value: object) -> None:
    """Raise ValueError unless a value is True or False.

    >>> check_flag("smooth", 0.1)
    Traceback (most recent call last):
    ValueError: Expected smooth to be True or False, but got 0.1.
    """
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"Expected {name} to be True or False, but got {value!r}.")


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
