"""Features at the door: dense, or by rows of non-zeros if there are few."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.data.arrays import ArrayLike, as_tensor

DENSE = 0.3  # share of non-zeros from which on a dense product is quicker

Features = Any  # scipy's csr_array, which ships no types, or a dense tensor


def checked_features(x: ArrayLike) -> tuple[Features, torch.dtype]:
    """Give features as they are multiplied quickest: by rows of non-zeros if there are few."""
    from scipy.sparse import coo_array, csr_array

    if isinstance(x, Tensor) and x.layout != torch.strided:
        entries = x.detach().cpu().to_sparse_coo().coalesce()
        _check_feature_shape(tuple(entries.shape))
        values = _as_float(entries.values())
        matrix = csr_array(coo_array((values.numpy(), entries.indices().numpy()), shape=tuple(entries.shape)))
        matrix.eliminate_zeros()
        values = torch.from_numpy(matrix.data)
        _check_finite(values, torch.from_numpy(np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))))
        return matrix, values.dtype
    dense = as_tensor(x, "x").cpu()
    _check_feature_shape(tuple(dense.shape))
    dense = _as_float(dense).contiguous()
    _check_finite(dense, torch.arange(len(dense)))
    array = dense.numpy()
    filled = array != 0
    counts = filled.sum(1)
    if counts.sum() > DENSE * array.size:
        return dense, dense.dtype
    where = np.flatnonzero(filled)
    first = np.concatenate([np.zeros(1, dtype=np.int64), counts.cumsum()])
    return csr_array((array.ravel()[where], where % array.shape[1], first), shape=array.shape), dense.dtype


def _check_feature_shape(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or 0 in shape:
        raise ValueError(
            f"Expected x of shape (nodes, features) with at least one of each, but got shape {shape}. "
            "Nodes without features may take one-hot numbers: torch.eye(num_nodes)."
        )


def _as_float(values: Tensor) -> Tensor:
    if values.is_complex():
        raise ValueError(f"Expected real features, but got dtype {values.dtype}. Pass x.real, or x.abs().")
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _check_finite(values: Float[Tensor, "rows ..."], nodes: Int[Tensor, " rows"]) -> None:
    if bool(values.sum().isfinite()):  # it is not if some part of it is not, and a sum is quick
        return
    bad = ~values.isfinite()
    bad = bad.any(1) if bad.ndim == 2 else bad
    if bool(bad.any()):
        node = int(nodes[bad.nonzero()[0]])
        raise ValueError(
            f"Expected finite features, but x holds NaN or infinity in {int(bad.sum())} rows, first for node {node}. "
            "Fill them, say by x.nan_to_num(0.0), or leave these features out."
        )
