"""Checks of a cluster node: package versions, graphs and splits."""

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from edgewise.sweep.plan import Plan
from edgewise.sweep.runs import RunKey
from edgewise.sweep.sources import EnvironmentCheck, Sources
from edgewise.version import versions
from helpers.tiny_datasets import write_planetoid


@pytest.fixture(scope="module")
def keys(plan: Plan) -> list[RunKey]:
    return plan.runs()[:2]


@pytest.fixture(scope="module")
def check(root: Path) -> EnvironmentCheck:
    sources = Sources(str(root))
    return EnvironmentCheck.of_this_machine(sources, 2, sources.load("cora", 2).rows())


def test_same_environment_passes(check: EnvironmentCheck, keys: list[RunKey]) -> None:
    assert check(keys) == ""
    assert pickle.loads(pickle.dumps(check))(keys) == ""


def test_missing_folder_on_a_node_is_reported_and_not_created(
    check: EnvironmentCheck, keys: list[RunKey], root: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "not" / "there"
    folder.mkdir(parents=True)  # exists where the command starts
    without_data, without_splits = Sources(str(folder)), Sources(str(root), str(folder))
    shutil.rmtree(folder.parent)  # but not on the node
    assert f"{folder} of --data-root" in replace(check, sources=without_data)(keys)
    assert not folder.parent.exists()
    assert f"{folder} of --splits-dir" in replace(check, sources=without_splits)(keys)


def test_other_data_or_package_versions_on_a_node_are_reported(
    check: EnvironmentCheck, keys: list[RunKey], tmp_path: Path
) -> None:
    other = Sources(str(write_planetoid(tmp_path, seed=1)))
    assert "cora split 0" in replace(check, sources=other)(keys)
    for name in ("torch", "scipy"):
        newer = replace(check, versions={**check.versions, name: "99.0"})
        assert f"{name} 99.0" in newer(keys)
    assert set(check.versions) == set(versions()) - {"python"}  # which changes no numbers


def test_data_that_cannot_be_loaded_is_reported(check: EnvironmentCheck, keys: list[RunKey], tmp_path: Path) -> None:
    root = write_planetoid(tmp_path)
    (root / "Cora" / "raw" / "ind.cora.graph").write_bytes(b"no pickle")
    assert "load cora" in replace(check, sources=Sources(str(root)))(keys)


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert Sources("data").with_absolute_paths() == Sources(str(tmp_path / "data"))
    assert Sources().with_absolute_paths() == Sources()
