"""Joints with given marginals and one coupling, by our messages and by a loop."""

import numpy as np
import torch

from edgewise.inference.coupled_marginals import sinkhorn_messages


def joints_from_messages(log_p, strength):
    """Give q (edges, classes, classes) of messages."""
    start, end = log_p - sinkhorn_messages(log_p, torch.tensor(strength, dtype=torch.float64))
    raised = start.unsqueeze(2) + end.unsqueeze(1) + strength * torch.eye(log_p.shape[-1], dtype=log_p.dtype)
    return raised.flatten(1).softmax(1).view(raised.shape)


def sinkhorn_loop(p, r, strength, turns=20_000):
    """Scale rows, then columns, until both sums are right, for one pair."""
    q = np.exp(strength * np.eye(len(p)))
    for _ in range(turns):
        q = q * (p / q.sum(1))[:, None]
        q = q * (r / q.sum(0))[None, :]
        if np.abs(q.sum(1) - p).max() < 1e-15:
            break
    return q
