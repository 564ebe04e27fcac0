"""Bundled datasets, and Planetoid's files with untrusted pickles."""

import os
import pickle
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from edgewise.data import load_dataset, row_normalize

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # PyG uses torch.jit.script when it is imported
    from torch_geometric.data import Data
    from torch_geometric.datasets import Planetoid
    from torch_geometric.io import read_planetoid_data
    from torch_geometric.utils import degree

SHARED = Path(__file__).parents[3] / "shared" / "planetoid"
SIZES = {"cora": (2708, 10556, 1433, 7), "citeseer": (3327, 9104, 3703, 6), "pubmed": (19717, 88648, 500, 3)}

needs_planetoid = pytest.mark.skipif(not SHARED.exists(), reason="needs Planetoid's files in ../shared/planetoid")


@pytest.mark.parametrize("name", SIZES)
def test_bundled_datasets_are_coalesced_undirected_graphs(name: str) -> None:
    data = load_dataset(name)
    assert (data.num_nodes, data.num_edges, data.num_features, int(data.y.max()) + 1) == SIZES[name]
    assert (data.x.dtype, data.edge_index.dtype, data.y.dtype) == (torch.float32, torch.int64, torch.int64)
    assert data.is_coalesced()  # sorted, without duplicates
    assert data.is_undirected()
    assert not data.has_self_loops()
    assert data.y.unique().numel() == SIZES[name][3]
    data.validate(raise_on_error=True)


@pytest.mark.parametrize(
    ("name", "num_zero_rows", "num_isolated"), [("cora", 0, 0), ("citeseer", 15, 48), ("pubmed", 0, 0)]
)
def test_rows_sum_to_one_or_are_zero(name: str, num_zero_rows: int, num_isolated: int) -> None:
    data = load_dataset(name)
    zero = (data.x == 0).all(dim=1)
    assert int(zero.sum()) == num_zero_rows
    torch.testing.assert_close(data.x[~zero].sum(dim=1), torch.ones(data.num_nodes - num_zero_rows))
    assert int((degree(data.edge_index[0], data.num_nodes) == 0).sum()) == num_isolated


def test_names_ignore_case_and_unknown_names_are_rejected() -> None:
    assert torch.equal(load_dataset("CiteSeer").y, load_dataset("citeseer").y)
    with pytest.raises(ValueError, match=r"cora, citeseer, pubmed, .*, but got 'Karate'.*Data"):
        load_dataset("Karate")
    with pytest.raises(ValueError, match="but got None"):
        load_dataset(None)


def test_row_normalize_keeps_zero_rows_and_its_argument() -> None:
    x = torch.tensor([[2.0, 6.0], [0.0, 0.0], [0.1, 0.1]])
    assert row_normalize(x).tolist() == [[0.25, 0.75], [0.0, 0.0], [0.5, 0.5]]
    assert x[0].tolist() == [2.0, 6.0]


# --- Planetoid's files ---


def write_planetoid(raw: Path, data: Data) -> None:
    """Write a graph in Planetoid's format: the last 100 nodes are the test nodes, in a shuffled order."""
    num_known = data.num_nodes - 100
    test_index = np.random.default_rng(0).permutation(np.arange(num_known, data.num_nodes))
    x, y = sp.csr_matrix(data.x.numpy()), np.eye(7, dtype=np.int32)[data.y.numpy()]
    graph = {node: data.edge_index[1, data.edge_index[0] == node].tolist() for node in range(data.num_nodes)}
    parts = {"x": x[:140], "y": y[:140], "allx": x[:num_known], "ally": y[:num_known]}
    parts |= {"tx": x[test_index], "ty": y[test_index], "graph": graph}
    raw.mkdir(parents=True)
    for part, content in parts.items():
        (raw / f"ind.cora.{part}").write_bytes(pickle.dumps(content))
    (raw / "ind.cora.test.index").write_text("".join(f"{node}\n" for node in test_index))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_planetoid(tmp_path / "Cora" / "raw", load_dataset("cora"))
    return tmp_path


def test_planetoid_files_are_read_and_no_file_is_written(root: Path) -> None:
    files = sorted(root.rglob("*"))
    filters = list(warnings.filters)
    data, bundled = load_dataset("Cora", root=root), load_dataset("cora")
    torch.testing.assert_close(data.x, bundled.x)  # the features are normalized twice
    assert torch.equal(data.edge_index, bundled.edge_index)
    assert torch.equal(data.y, bundled.y)
    assert sorted(data.keys()) == sorted(bundled.keys())
    assert sorted(root.rglob("*")) == files
    assert warnings.filters == filters


def test_failed_download_lists_missing_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(self: Planetoid) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(Planetoid, "download", no_network)
    (root / "Cora" / "raw" / "ind.cora.tx").unlink()
    with pytest.raises(FileNotFoundError, match=r"Planetoid files ind\.cora\.tx in .*raw, .*no network.* bundled copy"):
        load_dataset("cora", root=str(root))


def test_missing_files_are_downloaded(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(self: Planetoid) -> None:
        for path in self.raw_paths:
            Path(path).write_bytes((root / "Cora" / "raw" / Path(path).name).read_bytes())

    monkeypatch.setattr(Planetoid, "download", fetch)
    assert load_dataset("cora", root=tmp_path / "elsewhere").num_edges == 10556


def test_damaged_planetoid_file_is_rejected(root: Path) -> None:
    (root / "Cora" / "raw" / "ind.cora.allx").write_bytes(b"")
    with pytest.raises(ValueError, match=r"cora in .*raw, but they cannot be read"):
        load_dataset("cora", root=root)


class Executed:
    """Object whose pickle executes os.mkdir when it is loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("executed",)


def test_pickle_with_code_is_rejected_and_not_executed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (root / "Cora" / "raw" / "ind.cora.graph").write_bytes(pickle.dumps(Executed()))
    with pytest.raises(ValueError, match=r"cannot be read \(UnpicklingError: it refers to \w+\.mkdir"):
        load_dataset("cora", root=root)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("part", ["allx", "tx", "ally", "ty", "graph"])
def test_downloaded_pickle_with_code_is_not_executed(
    part: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(self: Planetoid) -> None:
        for path in map(Path, self.raw_paths):
            path.write_bytes((root / "Cora" / "raw" / path.name).read_bytes())
        (Path(self.raw_dir) / f"ind.cora.{part}").write_bytes(pickle.dumps(Executed()))

    monkeypatch.setattr(Planetoid, "download", fetch)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be read \(UnpicklingError: it refers to \w+\.mkdir"):
        load_dataset("cora", root=tmp_path / "elsewhere")
    assert not (tmp_path / "executed").exists()


def test_each_pickle_is_read_once_so_that_checked_bytes_are_loaded(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_bytes, read = Path.read_bytes, []

    def read_and_overwrite(path: Path) -> bytes:
        content = read_bytes(path)
        read.append(path.name)
        path.write_bytes(pickle.dumps(Executed()))
        return content

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", read_and_overwrite)
    assert load_dataset("cora", root=root).num_edges == 10556
    assert sorted(read) == ["ind.cora.allx", "ind.cora.ally", "ind.cora.graph", "ind.cora.tx", "ind.cora.ty"]
    assert not (tmp_path / "executed").exists()


def test_isolated_nodes_of_citeseer_are_added(tmp_path: Path) -> None:
    raw = tmp_path / "CiteSeer" / "raw"
    raw.mkdir(parents=True)
    x, y = sp.csr_matrix(np.eye(5, dtype=np.float32)), np.eye(2, dtype=np.int32)[[0, 1, 0, 1, 1]]
    parts = {"x": x[:2], "y": y[:2], "allx": x[:3], "ally": y[:3], "tx": x[3:], "ty": y[3:]}
    parts["graph"] = {0: [1, 2, 2, 0], 3: [5], 4: [], 5: [3, 0]}
    for part, content in parts.items():
        (raw / f"ind.citeseer.{part}").write_bytes(pickle.dumps(content))
    (raw / "ind.citeseer.test.index").write_text("5\n3\n")  # node 4 is isolated
    data = load_dataset("citeseer", root=tmp_path)
    assert data.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert data.x.nonzero().tolist() == [[0, 0], [1, 1], [2, 2], [3, 4], [5, 3]]
    assert data.edge_index.tolist() == [[0, 0, 0, 1, 2, 3, 5, 5], [1, 2, 5, 0, 0, 5, 0, 3]]


@pytest.mark.parametrize("wrong", ["indices", "indptr", "shape"])
def test_sparse_matrix_with_invalid_indices_is_rejected(root: Path, wrong: str) -> None:
    matrix = pickle.loads((root / "Cora" / "raw" / "ind.cora.allx").read_bytes())
    if wrong == "shape":
        matrix = sp.csr_matrix((10**5, 10**9), dtype=np.float32)
    else:
        getattr(matrix, wrong)[-1] = 10**8
    (root / "Cora" / "raw" / "ind.cora.allx").write_bytes(pickle.dumps(matrix))
    with pytest.raises(ValueError, match="cannot be read"):
        load_dataset("cora", root=root)


@needs_planetoid
@pytest.mark.parametrize(("name", "folder"), [("citeseer", "CiteSeer"), ("pubmed", "PubMed")])
def test_bundled_graph_equals_planetoid(name: str, folder: str) -> None:
    with warnings.catch_warnings():
        theirs = read_planetoid_data(str(SHARED / folder / "raw"), folder)
    bundled, ours = load_dataset(name), load_dataset(name, root=SHARED)
    for data in (bundled, ours):
        assert torch.equal(data.x, row_normalize(theirs.x))
        assert torch.equal(data.y, theirs.y)
        assert torch.equal(data.edge_index, theirs.coalesce().edge_index)


@needs_planetoid
def test_bundled_cora_is_a_permutation_of_planetoid() -> None:
    bundled, theirs = load_dataset("cora"), load_dataset("cora", root=SHARED)
    assert Counter(descriptions(bundled)) == Counter(descriptions(theirs))
    order = match_nodes(bundled, theirs)
    assert torch.equal(order.sort().values, torch.arange(2708))
    assert torch.equal(bundled.x, theirs.x[order])
    assert torch.equal(bundled.y, theirs.y[order])
    renamed = Data(edge_index=order[bundled.edge_index], num_nodes=2708).coalesce()
    assert torch.equal(renamed.edge_index, theirs.edge_index)


def descriptions(data: Data) -> list[tuple[bytes, int, int]]:
    """Features, label and degree of each node."""
    degrees = degree(data.edge_index[0], data.num_nodes, dtype=torch.long)
    return [(x.tobytes(), int(y), int(d)) for x, y, d in zip(data.x.numpy(), data.y, degrees, strict=True)]


def match_nodes(a: Data, b: Data) -> torch.Tensor:
    """Match each node of ``a`` to a node of ``b`` of the same color (Weisfeiler-Lehman refinement).

    While several nodes share a color, one pair of them gets a new color and colors are refined again. If such a choice
    is wrong, the caller sees it in the edges.
    """
    num = a.num_nodes
    both = torch.cat([a.edge_index, b.edge_index + num], dim=1)
    neighbors = [both[1, both[0] == node].tolist() for node in range(2 * num)]
    colors = refine(assign_ids(descriptions(a) + descriptions(b)), neighbors)
    while len(set(colors)) < num:
        shared = next(color for color, count in Counter(colors[:num]).items() if count > 1)
        for node in (colors.index(shared), colors.index(shared, num)):
            colors[node] = len(colors)
        colors = refine(colors, neighbors)
    node_of = {color: node for node, color in enumerate(colors[num:])}
    return torch.tensor([node_of[color] for color in colors[:num]])


def assign_ids(descriptions: list[object]) -> list[int]:
    ids: dict[object, int] = {}
    return [ids.setdefault(description, len(ids)) for description in descriptions]


def refine(colors: list[int], neighbors: list[list[int]]) -> list[int]:
    """Split colors by the colors of neighbors until the number of colors is constant."""
    while True:
        signatures = [(colors[node], tuple(sorted(colors[k] for k in near))) for node, near in enumerate(neighbors)]
        finer = assign_ids(signatures)
        if len(set(finer)) == len(set(colors)):
            return finer
        colors = finer
