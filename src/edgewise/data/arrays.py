"""Arrays at the door: what they must be before anything looks at their values."""

import warnings

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

ArrayLike = Tensor | NDArray[np.generic]


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
        if hasattr(array, "posterior"):
            way_out = "Of a fitted model take fitted.posterior()."
        elif hasattr(array, "train") and hasattr(array, "test"):
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


def integers(tensor: Tensor, name: str) -> Tensor:
    """Check that a tensor holds integers, and give it signed."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(
            f"Expected {name} to hold integers, but got dtype {tensor.dtype}. If they are whole, pass {name}.long() "
            f"(NumPy: {name}.astype(int))."
        )
    return tensor if tensor.dtype.is_signed else tensor.long()


def checked_labels(y: Tensor, num_nodes: int | None = None, rows: str = "nodes") -> Int[Tensor, " nodes"]:
    """Check that there is a label, or -1 for unknown, for each node; ``rows`` are what there is one a node of."""
    if y.ndim != 1 or num_nodes not in (None, len(y)):
        hint = " Both have an entry for each node of the graph, in one order." if y.ndim == 1 else ""
        if y.ndim == 2:
            hint = " For a column pass y.squeeze(1)." if y.shape[1] == 1 else " For one-hot labels pass y.argmax(-1)."
        each = "each node" if num_nodes is None else f"each of the {num_nodes} {rows}"
        raise ValueError(f"Expected y to hold one label for {each}, but got shape {tuple(y.shape)}.{hint}")
    y = integers(y, "y")
    if bool((y < -1).any()):
        node = int((y < -1).nonzero()[0])
        raise ValueError(
            f"Expected labels from 0 on, or -1 for unknown, but node {node} has label {int(y[node])}. If it stands for "
            "unknown, pass y.clamp(min=-1)."
        )
    return y


def checked_mask(mask: Tensor, num_nodes: int, name: str) -> Bool[Tensor, " nodes"]:
    """Check that there is a boolean for each node."""
    if mask.dtype != torch.bool:
        raise ValueError(
            f"Expected {name} to hold booleans, one a node, but got dtype {mask.dtype}. "
            f"For 0/1 numbers pass {name}.bool() (NumPy: {name}.astype(bool)); for node indices pass "
            "torch_geometric.utils.index_to_mask(index, size)."
        )
    if mask.shape != (num_nodes,):
        hint = f" Of several masks choose one: {name}[:, k]." if mask.ndim == 2 and len(mask) == num_nodes else ""
        raise ValueError(
            f"Expected {name} of shape ({num_nodes},), one entry a node, but got {tuple(mask.shape)}.{hint}"
        )
    return mask


def checked_edges(edge_index: Tensor, num_nodes: int) -> Int[Tensor, "2 edges"]:
    """Check that edges are pairs of existing nodes."""
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        hint = " Pass edge_index.T." if edge_index.ndim == 2 and edge_index.shape[1] == 2 else ""
        raise ValueError(f"Expected edge_index of shape (2, edges), but got shape {tuple(edge_index.shape)}.{hint}")
    edge_index = integers(edge_index, "edge_index")
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


def checked_sets(nodes: Tensor, num_nodes: int, name: str) -> Int[Tensor, "set sets"]:
    """Check that the columns of a (k, M) index are sets of existing, distinct nodes."""
    if nodes.ndim != 2 or nodes.shape[0] == 0:
        raise ValueError(f"Expected {name} of shape (nodes in a set, sets), but got shape {tuple(nodes.shape)}.")
    nodes = integers(nodes, name).long()
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
