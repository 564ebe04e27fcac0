"""Datasets that are not bundled, read from small files in the formats of PyG's loaders. Nothing is downloaded."""

import urllib.request
import warnings
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.data import load_dataset, make_splits
from edgewise.data.datasets import DATASET_NAMES
from edgewise.data.pyg_files import LOADERS
from helpers.tiny_datasets import write_planetoid

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # PyG uses torch.jit.script when it is imported
    from torch_geometric import datasets as pyg
    from torch_geometric.data import Data

# A path of four pages; 3 links to itself, 0 and 1 link to each other, one link is listed twice.
WORDS = [[1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 0, 1, 1]]
LINKS = [(1, 0), (0, 1), (2, 1), (2, 1), (3, 2), (3, 3)]
BOTH_DIRECTIONS = {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)}
LABELS = [2, 0, 1, 0]
NORMALIZED = [[0.5, 0, 0.5, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0.25, 0.25, 0, 0.25, 0.25]]
EMBEDDINGS = np.array([[0.5, -0.5, 2.0], [-1.0, -1.0, -2.0], [0.0, 0.0, 0.0], [3.0, 0.25, -0.125]], dtype=np.float32)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fail every download, and return the list of requested addresses."""
    requested: list[str] = []

    def fail(url: str, **_: object) -> NoReturn:
        requested.append(url)
        raise OSError("no network here")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    return requested


# --- files ---


def raw_folder(root: Path, name: str) -> Path:
    """Return the folder of the raw files of a loader."""
    class_name, pyg_name = LOADERS[name]
    if class_name == "WikipediaNetwork":
        return root / name / "geom_gcn" / "raw"
    if class_name in ("Amazon", "Coauthor"):
        return root / {"computers": "Computers", "photo": "Photo", "cs": "CS", "physics": "Physics"}[name] / "raw"
    return root / (pyg_name or name).replace("-", "_") / "raw"


def write_text_files(raw: Path, words: list[str], labels: list[int], links: list[tuple[int, int]], split: str) -> None:
    raw.mkdir(parents=True, exist_ok=True)
    nodes = (f"{node}\t{features}\t{labels[node]}\n" for node, features in enumerate(words))
    (raw / "out1_node_feature_label.txt").write_text("node_id\tfeature\tlabel\n" + "".join(nodes))
    edges = (f"{start}\t{end}\n" for start, end in links)
    (raw / "out1_graph_edges.txt").write_text("node_id\tnode_id\n" + "".join(edges))
    write_masks(raw, split, len(labels))


def write_masks(raw: Path, split: str, num_nodes: int) -> None:
    for number in range(10):
        masks = {name: np.ones(num_nodes, dtype=np.int64) for name in ("train_mask", "val_mask", "test_mask")}
        np.savez(raw / f"{split}_split_0.6_0.2_{number}.npz", **masks)


def write_webkb(root: Path, name: str = "texas") -> None:
    """Write bags of words as zeros and ones separated by commas, which is also the format of WikipediaNetwork."""
    words = [",".join(map(str, row)) for row in WORDS]
    write_text_files(raw_folder(root, name), words, LABELS, LINKS, name)


def write_actor(root: Path) -> None:
    """Write the indices of the words of each page, at least one."""
    words = ["0,2", "1", "4", "0,1,3,4"]
    write_text_files(raw_folder(root, "actor"), words, LABELS, LINKS, "film")


def write_arrays(root: Path, name: str = "roman-empire", **others: Any) -> Path:
    """Write an .npz file of a graph whose edges are listed once."""
    raw = raw_folder(root, name)
    raw.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {"node_features": EMBEDDINGS, "node_labels": np.array(LABELS)}
    arrays["edges"] = np.array([(0, 1), (1, 2), (2, 3)])
    arrays |= {f"{part}_masks": np.ones((10, 4), dtype=bool) for part in ("train", "val", "test")}
    path = raw / f"{name.replace('-', '_')}.npz"
    np.savez(path, **(arrays | others))
    return path


SPARSE_FILES = {
    "computers": "amazon_electronics_computers.npz",
    "photo": "amazon_electronics_photo.npz",
    "cs": "ms_academic_cs.npz",
    "physics": "ms_academic_phy.npz",
    "dblp": "dblp.npz",
    "cora-ml": "cora_ml.npz",
    "cora-full": "cora.npz",
    "citeseer-full": "citeseer.npz",
    "pubmed-full": "pubmed.npz",
}


def write_sparse_arrays(root: Path, name: str = "photo", **others: Any) -> Path:
    """Write an .npz file of two sparse matrices, the adjacency and the counts of words, for three PyG loaders."""
    raw = raw_folder(root, name)
    raw.mkdir(parents=True, exist_ok=True)
    start, end = np.array(LINKS).T
    adjacency = sp.csr_matrix((np.ones(len(LINKS), dtype=np.float32), (start, end)), shape=(4, 4))
    counts = sp.csr_matrix(3 * np.array(WORDS, dtype=np.float32))
    arrays: dict[str, Any] = {"labels": np.array(LABELS)}
    for prefix, matrix in (("adj", adjacency), ("attr", counts)):
        arrays |= {f"{prefix}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")}
    path = raw / SPARSE_FILES[name]
    np.savez(path, **(arrays | others))
    return path


def write(root: Path, name: str) -> None:
    if name == "actor":
        write_actor(root)
    elif name in SPARSE_FILES:
        write_sparse_arrays(root, name)
    elif LOADERS[name].class_name == "HeterophilousGraphDataset":
        write_arrays(root, name)
    else:
        write_webkb(root, name)


# --- graphs ---


def edges_of(data: Data) -> set[tuple[int, int]]:
    return {(int(start), int(end)) for start, end in data.edge_index.T}


@pytest.mark.parametrize("name", LOADERS)
def test_every_dataset_is_a_coalesced_undirected_graph(name: str, tmp_path: Path, no_network: list[str]) -> None:
    write(tmp_path, name)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    data = load_dataset(name, root=tmp_path)
    assert sorted(data.keys()) == ["edge_index", "x", "y"]
    assert (data.x.dtype, data.edge_index.dtype, data.y.dtype) == (torch.float32, torch.int64, torch.int64)
    assert data.y.tolist() == LABELS
    assert edges_of(data) == BOTH_DIRECTIONS
    assert data.is_coalesced()
    data.validate(raise_on_error=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert no_network == []


@pytest.mark.parametrize("name", ["texas", "wisconsin", "cornell", "chameleon", "squirrel", *SPARSE_FILES])
def test_bags_of_words_are_row_normalized(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    assert load_dataset(name, root=tmp_path).x.tolist() == NORMALIZED


def test_actor_word_indices_become_normalized_rows(tmp_path: Path) -> None:
    write_actor(tmp_path)
    expected = [[0.5, 0, 0.5, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0.25, 0.25, 0, 0.25, 0.25]]
    assert load_dataset("actor", root=tmp_path).x.tolist() == expected


@pytest.mark.parametrize("name", ["roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions"])
def test_features_other_than_words_are_unchanged(name: str, tmp_path: Path) -> None:
    write_arrays(tmp_path, name)
    assert np.array_equal(load_dataset(name, root=tmp_path).x.numpy(), EMBEDDINGS)  # row sums: 2, -4, 0, 3.125


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8])
def test_labels_and_edges_of_other_dtypes(dtype: type, tmp_path: Path) -> None:
    edges = np.array([(0, 1), (1, 2), (2, 3)], dtype=np.int32)
    write_arrays(
        tmp_path, node_labels=np.array(LABELS, dtype), edges=edges, node_features=EMBEDDINGS.astype(np.float64)
    )
    data = load_dataset("roman-empire", root=tmp_path)
    assert (data.x.dtype, data.edge_index.dtype, data.y.dtype) == (torch.float32, torch.int64, torch.int64)
    assert edges_of(data) == BOTH_DIRECTIONS and data.y.tolist() == LABELS


def test_graph_equals_that_of_the_pyg_loader(tmp_path: Path) -> None:
    """Except for the direction of edges and self-loops."""
    write_webkb(tmp_path, "squirrel")
    ours = load_dataset("squirrel", root=tmp_path)
    theirs = pyg.WikipediaNetwork(str(tmp_path), "squirrel", geom_gcn_preprocess=True)[0]
    assert torch.equal(ours.y, theirs.y)
    assert torch.equal(ours.x > 0, theirs.x > 0)
    both = {edge for start, end in theirs.edge_index.T.tolist() for edge in ((start, end), (end, start))}
    assert edges_of(ours) == {(start, end) for start, end in both if start != end}


@pytest.mark.parametrize("name", LOADERS)
def test_one_root_may_have_a_folder_per_loader(name: str, tmp_path: Path, no_network: list[str]) -> None:
    """As in ROOT/Amazon/Photo/raw, where scripts that pass "ROOT/Amazon" to PyG's Amazon leave the files."""
    class_name = LOADERS[name].class_name
    write(tmp_path / class_name, name)
    if name == "actor":  # its loader has no subfolder of its own
        (tmp_path / "Actor" / "actor" / "raw").rename(tmp_path / "Actor" / "raw")
    assert edges_of(load_dataset(name, root=tmp_path)) == BOTH_DIRECTIONS
    assert no_network == []


def test_planetoid_may_have_a_folder(tmp_path: Path) -> None:
    write_planetoid(tmp_path / "Planetoid")
    assert load_dataset("cora", root=tmp_path).num_nodes == 520


def test_files_directly_below_the_root_come_first(tmp_path: Path) -> None:
    write_sparse_arrays(tmp_path)
    write_sparse_arrays(tmp_path / "Amazon", labels=np.array([0, 1, 2, 3]))
    assert load_dataset("photo", root=tmp_path).y.tolist() == LABELS


@pytest.mark.parametrize("name", ["cora-ml", "cora_ml", "Cora_ML", "CORA-ML"])
def test_spellings_of_cora_ml(name: str, tmp_path: Path) -> None:
    write_sparse_arrays(tmp_path, "cora-ml")
    assert load_dataset(name, root=tmp_path).num_nodes == 4


REAL_FILES = Path(__file__).parents[3] / "shared" / "graphs"
REAL_SIZES = {  # nodes, undirected edges, features, classes
    "photo": (7_650, 119_081, 745, 8),
    "computers": (13_752, 245_861, 767, 10),
    "cs": (18_333, 81_894, 6_805, 15),
    "physics": (34_493, 247_962, 8_415, 5),
    "dblp": (17_716, 52_867, 1_639, 4),
    "cora_ml": (2_995, 8_158, 2_879, 7),
    "minesweeper": (10_000, 39_402, 7, 2),
    "tolokers": (11_758, 519_000, 10, 2),
    "actor": (7_600, 26_659, 932, 5),
}


@pytest.mark.skipif(not REAL_FILES.exists(), reason="needs raw files in ../shared/graphs, in the layout of PyG")
@pytest.mark.parametrize("name", REAL_SIZES)
def test_sizes_of_the_real_graphs(name: str, no_network: list[str]) -> None:
    data = load_dataset(name, root=REAL_FILES)
    assert (data.num_nodes, data.num_edges // 2, data.num_features, int(data.y.max()) + 1) == REAL_SIZES[name]
    assert data.is_coalesced() and data.is_undirected() and not data.has_self_loops()
    assert no_network == []


@pytest.mark.parametrize("name", ["Roman-empire", "roman_empire", "ROMAN_EMPIRE", "roman-Empire"])
def test_names_ignore_case_and_hyphens(name: str, tmp_path: Path) -> None:
    write_arrays(tmp_path)
    assert load_dataset(name, root=str(tmp_path)).num_nodes == 4


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    links=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30),
    words=st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=6, max_size=6),
)
def test_random_links_and_words_round_trip(
    links: list[tuple[int, int]], words: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("any")
    bags = [",".join(map(str, row)) for row in words]
    write_text_files(raw_folder(root, "cornell"), bags, [0, 1, 2, 3, 4, 0], links, "cornell")
    data = load_dataset("cornell", root=root)
    assert edges_of(data) == {(a, b) for link in links for a, b in (link, link[::-1]) if a != b}
    assert data.num_edges == len(edges_of(data))
    counts = np.array(words, dtype=np.float64)
    sums = counts.sum(1, keepdims=True)
    assert data.x.numpy() == pytest.approx(np.divide(counts, sums, out=np.zeros_like(counts), where=sums > 0))


def test_graph_with_only_a_self_loop_has_no_edges(tmp_path: Path) -> None:
    write_text_files(raw_folder(tmp_path, "texas"), ["1,0", "0,1"], [0, 1], [(1, 1)], "texas")
    data = load_dataset("texas", root=tmp_path)
    assert data.edge_index.shape == (2, 0)


def test_class_of_one_node_is_in_no_set(tmp_path: Path) -> None:
    """Texas has such a class."""
    sizes = [33, 1, 18, 101, 30]
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    links = [(node, (7 * node + 1) % 183) for node in range(183)]
    write_text_files(raw_folder(tmp_path, "texas"), ["1,0,1"] * 183, labels, links, "texas")
    data = load_dataset("texas", root=tmp_path)
    splits = make_splits(data.y)
    single = labels.index(1)
    assert len(splits) == 15
    assert not any((split.train | split.val | split.test)[single] for split in splits)
    assert all(split.train.any() and split.val.any() and split.test.any() for split in splits)


# --- errors ---


@pytest.mark.parametrize("name", LOADERS)
def test_datasets_that_are_not_bundled_need_a_root(name: str, no_network: list[str]) -> None:
    with pytest.raises(ValueError, match=rf"Expected root=DIR for {name}"):
        load_dataset(name)
    assert no_network == []


def test_unknown_name_lists_the_valid_names() -> None:
    with pytest.raises(ValueError, match=r"cora, citeseer, pubmed, texas, .*roman-empire, .*, but got 'crocodile'"):
        load_dataset("crocodile", root="anywhere")
    assert len(DATASET_NAMES) == 23


@pytest.mark.parametrize(
    ("name", "files", "address"),
    [
        ("texas", r"out1_node_feature_label.txt, .* and 9 more in .*texas.raw", "geom-gcn"),
        ("squirrel", r"out1_node_feature_label.txt, .* and 9 more in .*squirrel.geom_gcn.raw", "geom-gcn"),
        ("actor", r"out1_node_feature_label.txt, .* and 9 more in .*actor.raw", "geom-gcn"),
        ("photo", r"amazon_electronics_photo\.npz in .*Photo.raw", "gnn-benchmark"),
        ("physics", r"ms_academic_phy\.npz in .*Physics.raw", "gnn-benchmark"),
        ("dblp", r"dblp\.npz in .*dblp.raw", "graph2gauss"),
        ("roman-empire", r"roman_empire\.npz in .*roman_empire.raw", "heterophilous-graphs"),
    ],
)
def test_failed_download_lists_missing_files(
    name: str, files: str, address: str, tmp_path: Path, no_network: list[str]
) -> None:
    message = rf"Expected the files {files}, but .*{address}.* failed \(OSError: no network here\)"
    with pytest.raises(FileNotFoundError, match=message):
        load_dataset(name, root=tmp_path)
    assert len(no_network) == 1 and address in no_network[0]


def test_only_missing_files_are_requested(tmp_path: Path, no_network: list[str]) -> None:
    write_webkb(tmp_path)
    (raw_folder(tmp_path, "texas") / "out1_graph_edges.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"Expected the files out1_graph_edges.txt in"):
        load_dataset("texas", root=tmp_path)
    assert [url.rpartition("/")[2] for url in no_network] == ["out1_graph_edges.txt"]


def test_missing_files_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(self: pyg.HeterophilousGraphDataset) -> None:
        write_arrays(tmp_path)

    monkeypatch.setattr(pyg.HeterophilousGraphDataset, "download", fetch)
    assert edges_of(load_dataset("roman-empire", root=tmp_path)) == BOTH_DIRECTIONS


DAMAGES = {
    "incomplete line": ("out1_node_feature_label.txt", "node_id\tfeature\tlabel\n0\t1,0\t0\n1\t0,1\n"),
    "rows of different lengths": ("out1_node_feature_label.txt", "node_id\tfeature\tlabel\n0\t1,0\t0\n1\t0\t1\n"),
    "empty file": ("out1_node_feature_label.txt", ""),
    "truncated file": ("out1_node_feature_label.txt", "node_id\tfeature\tlabel\n0\t1,0\t0\n1\t0,1\t1\n"),
    "negative label": (
        "out1_node_feature_label.txt",
        "node_id\tfeature\tlabel\n" + "".join(f"{node}\t1,0\t-1\n" for node in range(4)),
    ),
    "NaN": (
        "out1_node_feature_label.txt",
        "node_id\tfeature\tlabel\n" + "".join(f"{node}\tnan,0\t1\n" for node in range(4)),
    ),
    "text among edges": ("out1_graph_edges.txt", "node_id\tnode_id\n0\tone\n"),
    "edge with one end": ("out1_graph_edges.txt", "node_id\tnode_id\n0\t1\n2\n"),
    "no edges": ("out1_graph_edges.txt", ""),
    "node out of range": ("out1_graph_edges.txt", "node_id\tnode_id\n0\t4\n"),
    "negative node": ("out1_graph_edges.txt", "node_id\tnode_id\n2\t-1\n"),
    "long text": ("out1_graph_edges.txt", "node_id\tnode_id\n0\t" + 10_000 * "9x" + "\n"),
    "no masks": ("texas_split_0.6_0.2_3.npz", "<html>not found</html>"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_text_file_is_rejected(damage: str, tmp_path: Path) -> None:
    write_webkb(tmp_path)
    file, text = DAMAGES[damage]
    (raw_folder(tmp_path, "texas") / file).write_text(text)
    message = r"Expected the files of texas in .*raw, but they cannot be read .{,300}Delete"
    with pytest.raises(ValueError, match=message):
        load_dataset("texas", root=tmp_path)


@pytest.mark.parametrize(
    "others",
    [
        {"node_labels": np.array([0, 1, 0])},
        {"node_labels": np.array([[0], [1], [0], [1]])},
        {"node_labels": np.array([0, 1, 0, 99])},
        {"edges": np.array([(0, 7)])},
        {"edges": np.array([(0, -1)])},
        {"edges": np.array([0, 1, 2])},
        {"node_features": np.full((4, 2), np.inf, dtype=np.float32)},
        {"node_features": np.zeros((4, 0), dtype=np.float32)},
        {"node_features": np.array([{}] * 4)},  # a pickle, which is not loaded
    ],
    ids=lambda others: next(iter(others)),
)
def test_inconsistent_arrays_are_rejected(others: dict[str, Any], tmp_path: Path) -> None:
    write_arrays(tmp_path, **others)
    with pytest.raises(ValueError, match=r"Expected the files of roman-empire in .*raw, but they cannot be read"):
        load_dataset("roman-empire", root=tmp_path)


def test_truncated_archive_is_rejected(tmp_path: Path) -> None:
    path = write_arrays(tmp_path)
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(ValueError, match=r"Expected the files of roman-empire in .*raw, but they cannot be read"):
        load_dataset("roman-empire", root=tmp_path)


@pytest.mark.parametrize(
    "others",
    [
        {"labels": np.array([0, 1, 0])},
        {"labels": np.array([0, 1, 0, 9])},
        {"labels": np.array([-1, 1, 0, 0])},
        {"adj_indices": np.array([1, 0, 1, 2, 7], dtype=np.int32)},
        {"attr_data": np.full(8, np.nan, dtype=np.float32)},
        {"attr_shape": np.array([4, 2])},
        {"attr_shape": np.array([4, 1 << 40])},
        {"attr_indptr": np.array([0, 2, 3, 9, 8], dtype=np.int32)},
        {"adj_shape": np.array([5, 5])},
        {"attr_data": np.array([{}] * 8)},  # a pickle, which is not loaded
    ],
    ids=lambda others: next(iter(others)),
)
def test_inconsistent_sparse_arrays_are_rejected(others: dict[str, Any], tmp_path: Path) -> None:
    write_sparse_arrays(tmp_path, **others)
    with pytest.raises(ValueError, match=r"Expected the files of photo in .*raw, but they cannot be read"):
        load_dataset("photo", root=tmp_path)
