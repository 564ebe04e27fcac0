"""Fits with the tensor implementation of all kernels, as on a GPU, against the compiled kernels."""

from types import SimpleNamespace

import pytest
import torch

import edgewise as ew
from edgewise.kernels import dispatch

MODELS = (
    ew.GCN(max_epochs=15, hidden=8),
    ew.GAT(max_epochs=15, hidden=8, heads=2),
    ew.GMNN(pretrain_epochs=8, round_epochs=6, samples=4, hidden=8),
    ew.EPFGNN(pretrain_epochs=8, rounds=2, steps=6, hidden=8, schedule="published"),
    ew.SPN(max_epochs=10, hidden=8),
    ew.MCDropout(ew.GAT(max_epochs=8, hidden=8, heads=2), samples=3),
)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_tensor_kernels_train_equally(model, dense, monkeypatch):
    generator = torch.Generator().manual_seed(3)
    y = torch.arange(60) % 3
    x = torch.rand(60, 12, generator=generator, dtype=torch.float64)
    x = x if dense else x * (x > 0.8)
    x[torch.arange(60), y] += 0.5
    edge_index = torch.randint(60, (2, 150), generator=generator)
    data = SimpleNamespace(x=x, edge_index=edge_index, y=y)
    split = ew.make_splits(y, labeled=0.5)[0]
    compiled = model.fit(data, split, seed=1, directed="undirected")
    monkeypatch.setattr(dispatch, "runs_compiled", lambda device: False)
    with_tensors = model.fit(data, split, seed=1, directed="undirected")
    assert with_tensors.history.loss == pytest.approx(compiled.history.loss, rel=1e-9)
    assert with_tensors.history.val_accuracy == compiled.history.val_accuracy
    torch.testing.assert_close(with_tensors.posterior().node, compiled.posterior().node, rtol=0, atol=1e-9)
