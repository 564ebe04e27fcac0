"""The script that makes the bundled datasets from the source archive."""

import hashlib
import importlib.util
import io
import os
import pickle
import re
import sys
import tarfile
from collections import OrderedDict, defaultdict
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.sparse as sp

ROOT = Path(__file__).parents[2]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_bundled_data", ROOT / "scripts" / "make_bundled_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


script = load_script()

# Node 3 has no words and no links and is missing in the files. Nodes 2 and 4 are listed in the order 4, 2.
X = np.array([[1, 0, 0], [0, 1, 1], [0.5, 0, 0], [0, 0, 0], [0, 0, 1]])
Y = np.array([1, 0, 1, 0, 1])
GRAPH = {0: [1, 1, 2], 1: [0, 0], 2: [0, 2, 4], 4: [2]}
ONE_HOT = np.eye(2, dtype=np.int32)
PLANETOID = {
    "allx": sp.csr_matrix(X[:2]),
    "tx": sp.csr_matrix(X[[4, 2]]),
    "ally": ONE_HOT[Y[:2]],
    "ty": ONE_HOT[Y[[4, 2]]],
    "graph": defaultdict(list, GRAPH),
}
CONTENT = b"31 1 0 Theory\n7 0 1 Rule_Learning\n12 1 1 Theory\n"
CITES = b"31 7\n7 31\n12 12\n12 7\n"


def make_archive(path: Path) -> Path:
    files = {"cora/cora.content": CONTENT, "cora/cora.cites": CITES}
    for name in ("citeseer", "pubmed"):
        files |= {f"{name}/ind.{name}.{part}": pickle.dumps(content) for part, content in PLANETOID.items()}
        files[f"{name}/ind.{name}.test.index"] = b"4\n2\n"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {**files, "README": b"not needed"}.items():
            member = tarfile.TarInfo(script.INSIDE + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_planetoid_files_with_a_missing_node_and_shuffled_test_nodes(tmp_path: Path) -> None:
    graph = script.read_graphs(script.read_archive(make_archive(tmp_path / "a.tar.gz")))["citeseer"]
    assert graph.x.toarray().tolist() == X.tolist()
    assert graph.x.dtype == np.float32
    assert graph.y.tolist() == Y.tolist()
    assert graph.edges.T.tolist() == [[0, 1], [0, 2], [2, 4]]
    assert graph.counts == (5, 3, 3, 2)


def test_linqs_files_keep_the_order_of_the_nodes() -> None:
    graph = script.read_cora(CONTENT, CITES)
    assert graph.x.toarray().tolist() == [[1, 0], [0, 1], [1, 1]]
    assert graph.y.tolist() == [0, 6, 0]
    assert graph.edges.T.tolist() == [[0, 1], [1, 2]]


def test_output_is_deterministic_and_has_no_pickles(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a.tar.gz")
    for folder in ("once", "twice"):
        (tmp_path / folder).mkdir()
        for name, graph in script.read_graphs(script.read_archive(archive)).items():
            script.save(script.to_arrays(graph), tmp_path / folder / f"{name}.npz")
    for name in ("cora", "citeseer", "pubmed"):
        once = tmp_path / "once" / f"{name}.npz"
        assert once.read_bytes() == (tmp_path / "twice" / f"{name}.npz").read_bytes()
        with np.load(once, allow_pickle=False) as arrays:
            assert set(arrays) >= {"shape", "indptr", "indices", "edges", "y"}
            assert ("values" in arrays) == (name != "cora")  # Cora's are all 1


def test_archive_with_wrong_checksum_is_rejected(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a.tar.gz")
    with pytest.raises(ValueError, match=script.SHA256):
        script.check_digest(archive)
    script.check_digest(archive, hashlib.sha256(archive.read_bytes()).hexdigest())


def test_archive_with_missing_files_is_rejected(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz"):
        pass
    with pytest.raises(ValueError, match=r"citeseer/ind[.]citeseer[.]allx, "):
        script.read_archive(tmp_path / "empty.tar.gz")


class Malicious:
    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickle_with_code_is_rejected_and_not_executed(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "executed"
    for function, args in [
        (os.system, (f"touch {mark}",)),
        (eval, (f"open({str(mark)!r}, 'w')",)),
        (os.mkdir, (str(mark),)),
    ]:
        for content in (Malicious(function, *args), [Malicious(function, *args)], {"a": Malicious(function, *args)}):
            with pytest.raises(pickle.UnpicklingError, match="pickle of arrays"):
                script.unpickle(pickle.dumps(content, protocol))
    assert not mark.exists()


@pytest.mark.parametrize("content", [OrderedDict(), np.save, sp.coo_matrix(X), sp.csr_array(X), Path("a")])
def test_pickles_of_other_types_are_rejected(content: object) -> None:
    with pytest.raises(pickle.UnpicklingError, match="pickle of arrays"):
        script.unpickle(pickle.dumps(content))


def test_pickles_of_python_2_are_read() -> None:
    python_2 = b"ccollections\ndefaultdict\n(c__builtin__\nlist\ntRI0\n(lI1\nas."
    assert script.unpickle(python_2) == {0: [1]}
    old = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02\x85cnumpy\n"
    old += b"dtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\x05\xfftb."
    assert script.unpickle(old).tolist() == [5, 255]


@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed"])
def test_data_md_lists_the_checksums_of_the_bundled_files(name: str) -> None:
    digest = hashlib.sha256((script.BUNDLED / f"{name}.npz").read_bytes()).hexdigest()
    assert re.search(rf"{name}\.npz.*{digest}", (ROOT / "DATA.md").read_text())
    assert script.SHA256 in (ROOT / "DATA.md").read_text()
