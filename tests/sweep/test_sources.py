"""Checks of a cluster node: package versions, graphs and splits."""

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgewise.sweep.plan import Plan
from edgewise.sweep.runs import RunKey
from edgewise.sweep.sources import EnvironmentCheck, Sources
from edgewise.sweep.store import Store
from edgewise.version import versions
from helpers.tiny_datasets import write_planetoid
from test_cli import run


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


# --- published splits ---


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two splits of two datasets, in folders of several levels as they are published."""
    folder = tmp_path_factory.mktemp("splits")
    for number, name in enumerate(("Cora", "CITESEER")):
        inner = folder / name / "5_3f_85"
        inner.mkdir(parents=True)
        for split in range(2):
            nodes = np.random.default_rng([number, split]).permutation(520)
            folds = nodes[:90].reshape(3, 30)
            np.savez(inner / f"{name.lower()}_split_{split}.npz", k_fold_indices=folds, test_indices=nodes[90:500])
    return folder


@pytest.fixture(scope="module")
def two_graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    for dataset in ("cora", "citeseer"):
        write_planetoid(folder, dataset)
    return folder


def test_each_dataset_has_the_splits_of_its_folder(two_graphs: Path, published: Path) -> None:
    sources = Sources(str(two_graphs), str(published))
    for number, dataset in enumerate(("cora", "citeseer")):
        graph = sources.load(dataset, 2)
        for split in range(2):
            nodes = np.random.default_rng([number, split]).permutation(520)
            for fold in range(3):
                val, test = graph.splits[split, fold].val, graph.splits[split, fold].test
                assert set(val.nonzero().flatten().tolist()) == set(nodes[30 * fold : 30 * fold + 30].tolist())
                assert set(test.nonzero().flatten().tolist()) == set(nodes[90:500].tolist())


def test_names_of_folders_ignore_case_hyphens_and_underscores(tmp_path: Path) -> None:
    for name in ("CoraFull", "Roman_Empire", "cora"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a_split_0.npz").touch()
    described = Sources(str(tmp_path), str(tmp_path)).describe_splits(["cora-full", "cora", "roman-empire"])
    assert [line.split() for line in described.splitlines()[1:]] == [
        ["cora-full", "1", "in", f"{tmp_path}/CoraFull"],
        ["cora", "1", "in", f"{tmp_path}/cora"],
        ["roman-empire", "1", "in", f"{tmp_path}/Roman_Empire"],
    ]


def dry_run(tmp_path: Path, *options: object) -> str:
    result = run("reproduce", "--out", tmp_path / "out", "--quick", "--dry-run", *options)
    return " ".join((result.stdout or result.stderr).split())


def test_dry_run_names_the_splits_of_each_dataset(two_graphs: Path, published: Path, tmp_path: Path) -> None:
    options = ("--data-root", two_graphs, "--splits-dir", published)
    shown = dry_run(tmp_path, *options, "--datasets", "cora", "citeseer")
    where = (f"cora 2 in {published}/Cora/5_3f_85", f"citeseer 2 in {published}/CITESEER/5_3f_85")
    assert shown.endswith(f"published splits: {' '.join(where)}")
    assert dry_run(tmp_path, "--datasets", "cora", "pubmed").endswith("splits: random, seed 0")


def test_datasets_without_published_splits_are_named_before_any_run(
    two_graphs: Path, published: Path, tmp_path: Path
) -> None:
    options = ("--data-root", two_graphs, "--splits-dir", published, "--datasets", "cora", "dblp", "synthetic-0.3")
    refused = dry_run(tmp_path, *options)
    assert "a folder dblp and a folder synthetic-0.3 in --splits-dir" in refused
    assert "has CITESEER, Cora" in refused and "without --splits-dir" in refused


def test_dry_run_needs_the_folder_that_the_run_needs(two_graphs: Path, tmp_path: Path) -> None:
    assert "Expected --data-root with photo, but got none" in dry_run(tmp_path, "--datasets", "cora", "photo")
    shown = dry_run(tmp_path, "--datasets", "cora", "photo", "--data-root", two_graphs)
    assert "photo 0/3" in shown and shown.endswith("splits: random, seed 0")


def test_published_and_random_splits_of_different_datasets_in_one_folder_of_results(
    two_graphs: Path, published: Path, tmp_path: Path
) -> None:
    with_splits, without = Sources(str(two_graphs), str(published)), Sources()
    with Store.writing(tmp_path) as store:
        store.check_tasks(with_splits.load("cora", 2).rows())
        store.check_tasks(without.load("synthetic-0.3", 2).rows())
        assert {task.dataset for task in store.tasks()} == {"cora", "synthetic-0.3"}
