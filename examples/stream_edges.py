"""Score ten million edges that lie on disk, in little memory.

python examples/stream_edges.py [--edges 10000000] [--folder FOLDER]

Edges are a (2, edges) array in edges.npy, each undirected edge listed in both directions, far apart. `np.load` with a
memory map looks at the file where it lies; `ew.evaluate` goes through it in slices, finds the second mention of each
edge without sorting, and makes no (edges, classes, classes) joints. It takes two bytes an edge, and pages of the file
that the system may drop again. Files go to a temporary folder unless you name one.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

import edgewise as ew

NODES, CLASSES, CHUNK = 200_000, 40, 1_000_000


def write_graph(folder: Path, num_edges: int) -> None:
    """Write edges.npy in chunks, labels.npy, and probabilities that are too sure of themselves."""
    rng = np.random.default_rng(0)
    labels = np.arange(NODES) % CLASSES
    np.save(folder / "labels.npy", labels)
    signal = rng.standard_normal((NODES, CLASSES), dtype=np.float32)
    signal[np.arange(NODES), labels] += 3.0
    odds = np.exp(1.5 * 3.0 * signal)  # right would be exp(3 · signal)
    np.save(folder / "probs.npy", odds / odds.sum(1, keepdims=True))

    half = num_edges // 2
    edges = open_memmap(folder / "edges.npy", "w+", np.int64, (2, 2 * half))
    for lo in range(0, half, CHUNK):
        hi = min(lo + CHUNK, half)
        start = rng.integers(NODES, size=hi - lo)
        same = (start + CLASSES * rng.integers(NODES, size=hi - lo)) % NODES
        end = np.where(rng.random(hi - lo) < 0.7, same, rng.integers(NODES, size=hi - lo))
        edges[:, lo:hi] = start, end
        edges[:, half + lo : half + hi] = end[::-1], start[::-1]


def peak_memory() -> int:
    """Give the bytes that this process had in memory at the most."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux, where ru_maxrss would also know of the process that started this one
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Write files, score them, tell time and memory."""
    parser = argparse.ArgumentParser(description="Score edges that lie on disk.")
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_graph(folder, options.edges)
        probs, labels, edges = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("probs", "labels", "edges"))

        ew.evaluate(probs, labels, edges[:, :200_000])  # the first call compiles the loops, or loads them
        begin = time.perf_counter()
        ev = ew.evaluate(probs, labels, edges)
        seconds = time.perf_counter() - begin

    print(f"{ev}\n")
    listed = edges.shape[1]
    loops = listed // 2 - ev.edgewise.count
    peak = peak_memory()
    print(f"listed   {listed:,} edges in {edges.nbytes / 1e6:,.0f} MB on disk")
    print(f"scored   {ev.edgewise.count:,}: both directions count once, and {loops:,} self-loops do not")
    print(f"time     {seconds:.1f} s")
    print(f"memory   {peak / 1e9:.2f} GB at the most, with Python, torch and the files that are mapped")
    print(f"instead  {4e-9 * listed * CLASSES**2:,.0f} GB for joints of all listed edges as float32")
    print("\nThe same from the command line, in the folder of the files (--folder keeps them):\n")
    print("  edgewise evaluate --probs probs.npy --labels labels.npy --edges edges.npy --no-same-label")


if __name__ == "__main__":
    main()
