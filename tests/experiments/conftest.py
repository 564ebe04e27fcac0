from pathlib import Path

import pytest
import torch

from edgewise.experiments.attempts import Job
from edgewise.experiments.sources import Sources
from experiments.tiny import write_planetoid


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny Cora in Planetoid's files."""
    return write_planetoid(tmp_path_factory.mktemp("planetoid"))


@pytest.fixture(scope="session")
def job(root: Path) -> Job:
    return Job(Sources(str(root)), n_splits=2)


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors are quicker in one thread: with several, threads mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
