"""Evaluate ten million edges from a file, with little memory.

python examples/stream_edges.py [--edges 10000000] [--folder FOLDER]

Edges are a (2, edges) array in edges.npy. Each undirected edge is listed in both directions, far apart. `np.load` maps
the file into memory. `ew.evaluate` processes it in slices, finds the second occurrence of each edge without sorting,
and never creates (edges, classes, classes) joints. It takes two bytes per edge, and pages of the file that the
operating system may drop again. Without --folder, the files are written to a temporary folder.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

import edgewise as ew

NUM_NODES, NUM_CLASSES, EDGES_PER_CHUNK = 200_000, 40, 1_000_000


def write_graph(folder: Path, num_edges: int) -> None:
    """Write edges.npy in chunks, labels.npy, and overconfident probs.npy."""
    rng = np.random.default_rng(0)
    labels = np.arange(NUM_NODES) % NUM_CLASSES
    np.save(folder / "labels.npy", labels)
    signal = rng.standard_normal((NUM_NODES, NUM_CLASSES), dtype=np.float32)
    signal[np.arange(NUM_NODES), labels] += 3.0
    odds = np.exp(1.5 * 3.0 * signal)  # calibrated would be exp(3 · signal)
    np.save(folder / "probs.npy", odds / odds.sum(1, keepdims=True))

    half = num_edges // 2
    edges = open_memmap(folder / "edges.npy", "w+", np.int64, (2, 2 * half))
    for lo in range(0, half, EDGES_PER_CHUNK):
        hi = min(lo + EDGES_PER_CHUNK, half)
        start = rng.integers(NUM_NODES, size=hi - lo)
        same = (start + NUM_CLASSES * rng.integers(NUM_NODES, size=hi - lo)) % NUM_NODES
        end = np.where(rng.random(hi - lo) < 0.7, same, rng.integers(NUM_NODES, size=hi - lo))
        edges[:, lo:hi] = start, end
        edges[:, half + lo : half + hi] = end[::-1], start[::-1]


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux, ru_maxrss would include the parent process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Write the files, evaluate them, and print time and memory."""
    parser = argparse.ArgumentParser(description="Evaluate edges from a file.")
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_graph(folder, options.edges)
        probs, labels, edges = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("probs", "labels", "edges"))

        ew.evaluate(probs, labels, edges[:, :200_000])  # the first call compiles or loads the kernels
        begin = time.perf_counter()
        ev = ew.evaluate(probs, labels, edges)
        seconds = time.perf_counter() - begin

    print(f"{ev}\n")
    listed = edges.shape[1]
    loops = listed // 2 - ev.edgewise.count
    peak = peak_memory()
    print(f"listed   {listed:,} edges in {edges.nbytes / 1e6:,.0f} MB on disk")
    print(f"scored   {ev.edgewise.count:,}: both directions count once, and {loops:,} self-loops are not scored")
    print(f"time     {seconds:.1f} s")
    print(f"memory   {peak / 1e9:.2f} GB at peak, including Python, torch and the mapped files")
    print(f"joints   {4e-9 * listed * NUM_CLASSES**2:,.0f} GB for the joints of all listed edges in float32")
    print("\nThe same from the command line, in the folder of the files (--folder keeps them):\n")
    print("  edgewise evaluate --probs probs.npy --labels labels.npy --edges edges.npy")


if __name__ == "__main__":
    main()
