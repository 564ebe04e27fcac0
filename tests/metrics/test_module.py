"""GraphCalibration gives the same bits for all batches, processes and dtypes."""

import copy
import pickle
import time

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics import MetricCollection

import edgewise as ew
from helpers.random_predictions import random_case


def batches(num, dtype=torch.float32):
    return [random_case(seed, num_nodes=20 + seed, num_edges=60, dtype=dtype) for seed in range(num)]


def merge_graphs(parts):
    offsets = np.cumsum([0] + [len(part[1]) for part in parts])
    return (
        torch.cat([part[0] for part in parts]),
        torch.cat([part[1] for part in parts]),
        torch.cat([part[2] + int(offset) for part, offset in zip(parts, offsets, strict=False)], dim=1),
        torch.cat([part[3] for part in parts]),
    )


def evaluate_merged(parts, **options):
    probs, y, edge_index, mask = merge_graphs(parts)
    return ew.evaluate(probs, y, edge_index, mask=mask, **options).to_dict()


@given(st.permutations(range(6)), st.integers(0, 6))
def test_batches_in_any_order_give_the_same_bits_as_one_graph(order, cut):
    parts = batches(6)
    metric = ew.GraphCalibration()
    for group in (order[:cut], order[cut:]):
        if group:
            metric.update(*merge_graphs([parts[k] for k in group]))
    assert metric.compute().to_dict() == evaluate_merged(parts)


def test_update_uses_the_joints_of_a_posterior():
    probs, y, edge_index, mask = random_case(0, num_nodes=20, num_edges=60)
    belief = ew.MixturePosterior(torch.stack([probs, probs.flip(1)]))
    metric = ew.GraphCalibration()
    metric.update(belief, y, edge_index, mask)
    assert metric.compute().to_dict() == ew.evaluate(belief, y, edge_index, mask=mask).to_dict()
    assert metric.compute().to_dict() != ew.evaluate(belief.node, y, edge_index, mask=mask).to_dict()


def test_merge_state_of_metrics_and_of_dicts():
    parts = batches(4)
    first, second, third = (ew.GraphCalibration() for _ in range(3))
    first.update(*parts[0])
    second.update(*parts[1])
    second.update(*parts[2])
    third.update(*parts[3])
    first.merge_state(second)
    first.merge_state(third.metric_state)
    assert first.compute().to_dict() == evaluate_merged(parts)


def test_forward_returns_the_batch_scores_and_accumulates():
    parts = batches(3)
    metric = ew.GraphCalibration()
    for part in parts:
        assert metric(*part).to_dict() == evaluate_merged([part])
    assert metric.compute().to_dict() == evaluate_merged(parts)
    metric.reset()
    metric.update(*parts[0])
    assert metric.compute().to_dict() == evaluate_merged(parts[:1])


def test_dtype_copy_pickle_and_state_dict_keep_the_sums():
    parts = batches(2)
    metric = ew.GraphCalibration(n_bins=9, norm="l2", closed="left", edge_choice="any")
    metric.update(*parts[0])
    metric = metric.to("cpu").set_dtype(torch.float16).half().double()
    metric = pickle.loads(pickle.dumps(copy.deepcopy(metric)))
    metric.persistent(True)
    fresh = ew.GraphCalibration(n_bins=9, norm="l2", closed="left", edge_choice="any")
    fresh.persistent(True)
    fresh.load_state_dict(metric.state_dict())
    for module in (metric, fresh):
        module.update(*parts[1])
        assert module.tables.dtype == torch.int64
    expected = evaluate_merged(parts, n_bins=9, norm="l2", closed="left", edge_choice="any")
    assert metric.compute().to_dict() == expected
    # torchmetrics does not save whether a metric was updated, so the sums are compared instead of compute().
    assert torch.equal(fresh.tables, metric.tables)


def test_metric_collection_with_edge_probs():
    probs, y, edge_index, mask = random_case(0)
    joints = torch.full((edge_index.shape[1], 3, 3), 1 / 9)
    collection = MetricCollection({"graph": ew.GraphCalibration()})
    collection.update(probs, y, edge_index, mask=mask, edge_probs=joints)
    ev = collection.compute()["graph"]
    assert ev.to_dict() == ew.evaluate(probs, y, edge_index, mask=mask, edge_probs=joints).to_dict()


def test_modules_with_different_options_do_not_share_state():
    """torchmetrics shares the state of metrics whose states are equal after the first batch."""
    probs, y, edge_index, mask = random_case(0, num_nodes=40, num_edges=90)
    options = {
        "both": {},
        "all": {"edge_choice": "all"},
        "left": {"closed": "left"},
        "l2": {"norm": "l2"},
        "event": {"same_label": False},
    }
    collection = MetricCollection({name: ew.GraphCalibration(**chosen) for name, chosen in options.items()})
    collection.update(probs, y, edge_index)
    collection.update(probs, y, edge_index, mask=mask)
    together = collection.compute()
    for name, chosen in options.items():
        alone = ew.GraphCalibration(**chosen)
        alone.update(probs, y, edge_index)
        alone.update(probs, y, edge_index, mask=mask)
        assert together[name].to_dict() == alone.compute().to_dict(), name


@pytest.mark.parametrize("other", [{"edge_choice": "all"}, {"closed": "left"}, {"n_bins": 7}, {"same_label": False}])
def test_sums_with_other_options_are_neither_merged_nor_loaded(other):
    ours, theirs = ew.GraphCalibration(), ew.GraphCalibration(**other)
    for metric in (ours, theirs):
        metric.update(*random_case(0))
        metric.persistent(True)
    with pytest.raises(ValueError, match="same options"):
        ours.merge_state(theirs)
    with pytest.raises(RuntimeError, match="tables"):
        ours.load_state_dict(theirs.state_dict())


def test_invalid_batch_keeps_the_sums():
    probs, y, edge_index, mask = random_case(0)
    metric = ew.GraphCalibration()
    metric(probs, y, edge_index, mask)
    expected = metric.compute().to_dict()
    with pytest.raises(ValueError, match="sums to 2"):
        metric(2 * probs, y, edge_index, mask)
    assert metric.compute().to_dict() == expected


def test_scalars_have_every_view_and_the_event():
    metric = ew.GraphCalibration()
    ev = metric(*random_case(0))
    scalars = metric.compute().scalars()
    assert {name.partition("/")[0] for name in scalars} == {*ew.VIEWS, "same_label"}
    assert scalars["edgewise/ece"] == ev.edgewise.ece
    assert scalars["same_label/probability"] == ev.same_label.probability
    assert all(isinstance(number, float) for number in scalars.values())
    without = ew.GraphCalibration(same_label=False)
    assert len(without(*random_case(0)).scalars()) == 4 * len(ew.METRICS)


def test_plot_draws_the_views_of_all_batches_or_of_one():
    metric = ew.GraphCalibration()
    first = metric(*random_case(0))
    metric.update(*random_case(1))
    for val, expected in ((None, metric.compute()), (first, first)):
        figure, axes = metric.plot(val)
        assert len(axes.flat) == len(ew.VIEWS)
        np.testing.assert_equal(_drawn_lines(axes), _drawn_lines(expected.plot()[1]))
        plt.close("all")
    collection = MetricCollection([ew.GraphCalibration()])
    collection.update(*random_case(0))
    ((figure, _),) = collection.plot()
    assert figure.axes
    plt.close("all")


def _drawn_lines(axes):
    return [line.get_xydata().tolist() for panel in axes.flat for line in panel.lines]


def test_empty_masks_and_no_batches_have_nan_scores():
    probs, y, edge_index, _ = random_case(0)
    metric = ew.GraphCalibration()
    metric.update(probs, y, edge_index, torch.zeros(len(y), dtype=torch.bool))
    assert metric.compute().nodewise.count == 0
    with pytest.warns(UserWarning, match="before the ``update`` method"):
        ev = ew.GraphCalibration().compute()
    assert ev.same_label.count == 0 and np.isnan(ev.scalars()["same_label/ece"])


@pytest.mark.parametrize(
    ("misuse", "fact"),
    [
        (lambda metric, p, y, e: metric.update(y, p, e), "probs of shape"),
        (lambda metric, p, y, e: metric.update(10 * p - 1, y, e), "softmax"),
        (lambda metric, p, y, e: metric + metric, "first.merge_state"),
        (lambda metric, p, y, e: metric.merge_state(3), "but got int"),
        (lambda metric, p, y, e: ew.GraphCalibration(binning="mass"), "ew.evaluate"),
    ],
)
def test_misuse_raises_value_error(misuse, fact):
    with pytest.raises(ValueError, match=fact):
        misuse(ew.GraphCalibration(), *random_case(0)[:3])


@pytest.mark.parametrize("call", [ew.GraphCalibration.update, ew.GraphCalibration.forward])
def test_list_of_batches_raises_type_error_with_the_missing_argument(call):
    with pytest.raises(TypeError, match="'y'"):
        call(ew.GraphCalibration(), [random_case(0), random_case(1)])


def _worker(rank, world_size, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    metric = ew.GraphCalibration()
    for part in batches(7)[rank::world_size]:
        metric.update(*part)
    reductions, all_reduce = [], dist.all_reduce
    dist.all_reduce = lambda tensor, **options: (reductions.append(tensor.shape), all_reduce(tensor, **options))
    dist.all_gather = None  # a call would fail
    result = metric.compute().to_dict()
    assert len(reductions) == 1
    local_count = int(metric.tables[0, :-2, 0].sum())
    if rank == 0:
        (folder / "result").write_bytes(pickle.dumps((result, local_count)))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_several_processes_give_the_same_bits_as_one(world_size, tmp_path):
    processes = mp.spawn(_worker, (world_size, tmp_path), nprocs=world_size, join=False)
    _wait_for(processes, timeout_seconds=600)
    result, local_count = pickle.loads((tmp_path / "result").read_bytes())
    parts = batches(7)
    assert result == evaluate_merged(parts)
    assert local_count < result["nodewise"]["count"]  # the sums are distributed over the processes


def _wait_for(processes, timeout_seconds):
    """Wait for all processes, raise the error of a failed process, and kill the remaining ones."""
    end = time.monotonic() + timeout_seconds
    try:
        while not processes.join(timeout=1):
            assert time.monotonic() < end
    finally:
        for process in processes.processes:
            process.kill()
