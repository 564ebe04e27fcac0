"""All functions with a seed accept the same range."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import edgewise as ew
from edgewise.validation import MAX_SEED, check_seed
from test_cli import assert_refused, options, run, save_npy

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose

Y = torch.tensor([0, 1] * 6)
EDGE_INDEX = torch.tensor([[*range(11)], [*range(1, 12)]])
DATA = Data(x=torch.eye(12), edge_index=torch.cat([EDGE_INDEX, EDGE_INDEX.flip(0)], 1), y=Y)
SPLIT = ew.Split(torch.arange(12) < 4, (torch.arange(12) >= 4) & (torch.arange(12) < 8), torch.arange(12) >= 8, 0, 0)
PROBS = torch.tensor([[0.6, 0.4]]).repeat(12, 1)


def fit_calibrator(calibrator: Callable[..., ew.Calibrator]) -> Callable[[object], object]:
    return lambda seed: calibrator(epochs=2, seed=seed).fit(PROBS.log(), DATA, SPLIT)


SEEDED_CALLS: dict[str, Callable[[object], object]] = {
    "make_splits": lambda seed: ew.make_splits(Y, n_splits=1, labeled=0.5, seed=seed),
    "GCN": lambda seed: ew.GCN(max_epochs=2).fit(DATA, SPLIT, seed=seed),
    "GMNN": lambda seed: ew.GMNN(pretrain_epochs=2, round_epochs=2, samples=2).fit(DATA, SPLIT, seed=seed),
    "Seeds": lambda seed: ew.GCN(max_epochs=2).fit(DATA, SPLIT, seed=ew.Seeds(seed, seed, seed)),
    "CaGCN": fit_calibrator(ew.CaGCN),
    "GATS": fit_calibrator(ew.GATS),
    "evaluate": lambda seed: ew.evaluate(PROBS, Y, DATA.edge_index, n_resamples=40, seed=seed),
    "joint_nll": lambda seed: ew.joint_nll(PROBS, Y, DATA.edge_index, sizes=(2,), num_sets=5, seed=seed),
    "ConformalNodes": lambda seed: ew.ConformalNodes(alpha=0.5).fit(PROBS, DATA, calibration=SPLIT.val, seed=seed),
    "ConformalPairs": lambda seed: ew.ConformalPairs(alpha=0.5).fit(
        PROBS, DATA, calibration=~SPLIT.test, test=SPLIT.test, seed=seed
    ),
    "synthetic": lambda seed: ew.synthetic(num_nodes=50, seed=seed),
    "truth": lambda seed: ew.synthetic(num_nodes=100, average_degree=8, seed=0).truth(burn_in=2, sweeps=20, seed=seed),
}


@pytest.mark.parametrize("name", SEEDED_CALLS)
def test_largest_seed_is_accepted_and_others_raise(name: str) -> None:
    SEEDED_CALLS[name](MAX_SEED)
    for seed in (MAX_SEED + 1, -1, True, 1.0):
        with pytest.raises(ValueError, match=rf"seed.* to be a whole number from 0 to {MAX_SEED}, but got {seed}"):
            SEEDED_CALLS[name](seed)


def test_commands_accept_the_same_seeds(tmp_path: Path) -> None:
    arrays = {"probs": PROBS.numpy(), "labels": Y.numpy(), "edges": EDGE_INDEX.numpy()}
    args = ["evaluate", *options({name: save_npy(tmp_path / name, array) for name, array in arrays.items()})]
    result = run(*args, "--resamples", 40, "--seed", MAX_SEED)
    assert result.exit_code == 0, result.stderr
    assert run("datasets", "--seed", MAX_SEED).exit_code == 0
    for command in (args, ["datasets"]):
        assert_refused(
            run(*command, "--seed", MAX_SEED + 1), f"Expected seed to be a whole number from 0 to {MAX_SEED}"
        )


def test_torch_and_numpy_generators_accept_the_largest_seed() -> None:
    torch.Generator().manual_seed(MAX_SEED)
    np.random.default_rng([MAX_SEED, 0])
    check_seed(np.int64(MAX_SEED))
