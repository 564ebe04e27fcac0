"""What a node of a cluster says of itself."""

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


def test_a_node_like_this_one_has_no_objection(check: EnvironmentCheck, keys: list[RunKey]) -> None:
    assert check(keys) == ""
    assert pickle.loads(pickle.dumps(check))(keys) == ""


def test_a_node_without_the_data_says_so_and_writes_nothing(
    check: EnvironmentCheck, keys: list[RunKey], root: Path, tmp_path: Path
) -> None:
    there = tmp_path / "not" / "there"
    there.mkdir(parents=True)  # it is where the command is given
    without_data, without_splits = Sources(str(there)), Sources(str(root), str(there))
    shutil.rmtree(there.parent)  # but not here
    objection = replace(check, sources=without_data)(keys)
    assert f"Expected the folder {there} of --data-root on every node, but node" in objection
    assert not there.parent.exists()
    assert f"the folder {there} of --splits-dir" in replace(check, sources=without_splits)(keys)


def test_other_data_or_package_versions_on_a_node_are_reported(
    check: EnvironmentCheck, keys: list[RunKey], tmp_path: Path
) -> None:
    other = Sources(str(write_planetoid(tmp_path, seed=1)))
    assert "Expected cora split 0" in replace(check, sources=other)(keys)
    for name in ("torch", "scipy"):
        newer = replace(check, versions={**check.versions, name: "99.0"})
        assert f"Expected {name} 99.0 on every node, but node" in newer(keys)
    assert set(check.versions) == set(versions()) - {"python"}  # whose last digit changes no number


def test_data_that_cannot_be_loaded_is_told(check: EnvironmentCheck, keys: list[RunKey], tmp_path: Path) -> None:
    root = write_planetoid(tmp_path)
    (root / "Cora" / "raw" / "ind.cora.graph").write_bytes(b"no pickle")
    assert "Expected to load cora on node" in replace(check, sources=Sources(str(root)))(keys)


def test_folders_are_named_in_full_for_workers_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert Sources("data").with_absolute_paths() == Sources(str(tmp_path / "data"))
    assert Sources().with_absolute_paths() == Sources()
