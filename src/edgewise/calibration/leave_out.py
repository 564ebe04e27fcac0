"""Predictions of labeled nodes by a ridge regression that leaves out their own labels, in closed form."""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

HOPS = 2  # of the propagated features
MAX_FEATURES = 1024  # above it, features are hashed to so many columns
HASH_SEED = 0
CHUNK_COLUMNS = 64  # features that are propagated at once
CHUNK_PAIRS = 1 << 14  # pairs whose entries of the hat matrix are computed at once


class LeaveOutScores(NamedTuple):
    """Scores of each labeled node, fitted without its label, and of the ends of each pair, without both labels."""

    nodes: Float[Tensor, "labeled classes"]
    pairs: Float[Tensor, "2 pairs classes"]


def leave_out(
    features: Float[Tensor, "labeled features"],
    labels: Int[Tensor, " labeled"],
    num_classes: int,
    pairs: Int[Tensor, "2 pairs"],
    ridge: float,
) -> LeaveOutScores:
    """Compute leave-one-out and leave-two-out predictions of a ridge regression in closed form.

    The targets are one-hot labels minus the class proportions of all labeled nodes. Left-out labels count in these
    proportions, but do not enter their own prediction otherwise. With residuals e = (I - H) y of the
    hat matrix H, the prediction for node i is y_i - e_i / (1 - H_ii). For a pair S the predictions are
    y_S - (I - H_SS)⁻¹ e_S.
    """
    targets = one_hot(labels, num_classes).to(features.dtype)
    targets = targets - targets.mean(0)
    factor, identity = _factor_hat_matrix(features, ridge)
    sign = 1 - 2 * identity  # I - H = identity · I + sign · factor factorᵀ
    residuals = identity * targets + sign * (factor @ (factor.T @ targets))
    diagonal = identity + sign * factor.square().sum(1)  # 1 - H_ii
    start, end = pairs
    chunks = zip(start.split(CHUNK_PAIRS), end.split(CHUNK_PAIRS), strict=True)
    off_diagonal = sign * torch.cat([(factor[i] * factor[j]).sum(1) for i, j in chunks])  # -H_ij
    determinant = (diagonal[start] * diagonal[end] - off_diagonal.square()).unsqueeze(1)
    without_start = diagonal[end, None] * residuals[start] - off_diagonal[:, None] * residuals[end]
    without_end = diagonal[start, None] * residuals[end] - off_diagonal[:, None] * residuals[start]
    scores = [targets[start] - without_start / determinant, targets[end] - without_end / determinant]
    return LeaveOutScores(targets - residuals / diagonal.unsqueeze(1), torch.stack(scores))


def _factor_hat_matrix(
    features: Float[Tensor, "labeled features"], ridge: float
) -> tuple[Float[Tensor, "labeled rank"], int]:
    """Return (B, 1) with H = B Bᵀ; or (B, 0) with I - H = B Bᵀ, if there are more features than nodes.

    H = X (XᵀX + λI)⁻¹ Xᵀ = I - λ (XXᵀ + λI)⁻¹. With many features H is so close to I that computing I - H as a
    difference would lose precision.
    """
    num_nodes, num_features = features.shape
    if num_features <= num_nodes:
        gram = features.T @ features + ridge * torch.eye(num_features, dtype=features.dtype)
        root = torch.linalg.cholesky(gram)
        factor: Tensor = torch.linalg.solve_triangular(root, features.T, upper=False).T
        return factor, 1
    values, vectors = torch.linalg.eigh(features @ features.T)
    scale: Tensor = (ridge / (values.clamp(min=0) + ridge)).sqrt()
    return vectors * scale, 0


def propagate_features(x: Any, adjacency: Any, nodes: Bool[Tensor, " nodes"]) -> Float[Tensor, "selected features"]:
    """Compute the rows of Â² X of some nodes, scaled to length 1, for scipy matrices Â and X.

    More than 1024 features are hashed to 1024 first (Weinberger et al. 2009): X S, where each feature is added to one
    random column with a random sign. Inner products of rows stay the same in expectation. The time is then linear in
    the edges and in the non-zero features.
    """
    columns, rows = hash_features(x).tocsc(), nodes.numpy()
    propagated = np.empty((int(nodes.sum()), columns.shape[1]))
    for first in range(0, columns.shape[1], CHUNK_COLUMNS):
        chunk = slice(first, first + CHUNK_COLUMNS)
        values = columns[:, chunk].toarray()
        for _ in range(HOPS - 1):
            values = adjacency @ values
        propagated[:, chunk] = adjacency[rows] @ values
    length = np.linalg.norm(propagated, axis=1, keepdims=True)
    return torch.from_numpy(propagated / np.maximum(length, np.finfo(propagated.dtype).tiny))


def hash_features(x: Any) -> Any:
    """Return X S with 1024 columns, or X if it has no more. S does not depend on the data."""
    from scipy.sparse import csr_array

    num_features = x.shape[1]
    if num_features <= MAX_FEATURES:
        return x
    rng = np.random.default_rng(HASH_SEED)
    column, sign = rng.integers(MAX_FEATURES, size=num_features), rng.choice([-1.0, 1.0], num_features)
    return x @ csr_array((sign, (np.arange(num_features), column)), shape=(num_features, MAX_FEATURES))
