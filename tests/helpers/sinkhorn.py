"""Edge joints with given marginals and one coupling, from messages and from a reference loop."""

import numpy as np
import torch

from edgewise.inference.coupled_marginals import coupled_messages


def joints_from_messages(log_p, coupling):
    """Compute the joints q (edges, classes, classes) from the messages of `coupled_messages`."""
    start, end = log_p - coupled_messages(log_p, torch.tensor(coupling, dtype=torch.float64))
    log_q = start.unsqueeze(2) + end.unsqueeze(1) + coupling * torch.eye(log_p.shape[-1], dtype=log_p.dtype)
    return log_q.flatten(1).softmax(1).view(log_q.shape)


def sinkhorn_loop(p, r, coupling, max_iterations=20_000):
    """Scale rows and columns of one joint alternately until its marginals are p and r."""
    q = np.exp(coupling * np.eye(len(p)))
    for _ in range(max_iterations):
        q = q * (p / q.sum(1))[:, None]
        q = q * (r / q.sum(0))[None, :]
        if np.abs(q.sum(1) - p).max() < 1e-15:
            break
    return q
