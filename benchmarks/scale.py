"""Measure `ew.evaluate_tables` on a billion rows of edges against reading them, scoring in memory, and bare joins.

    python benchmarks/scale.py --quick           # part of `make bench-quick`: two million rows
    python benchmarks/scale.py --page docs/speed.md --data FOLDER

Tables are drawn below the folder of --data (22 GB, kept, so that another run does not draw them again), by default a
temporary one. Every measurement runs in a new process, after a call on tiny tables that loads the compiled loops. The
operating system is asked to forget the files before, so all measurements read them from the disk. Those that are
compared alternate.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import speed_page
import torch
from measure import GIB, environment
from pyarrow import compute, parquet
from scale_data import draw_cell, draw_nodes, write_tables

import edgewise as ew
from edgewise.metrics.elements import RECORD_COLUMNS
from edgewise.representation import format_duration
from edgewise.tables.node_ids import ENGINE_MEMORY, JoinedIds
from edgewise.tables.part_search import find_parts
from edgewise.tables.table_jobs import TableProgress

BYTES_PER_NODE = 8 * len(RECORD_COLUMNS) + 5
NUM_THREADS = 2
COLUMNS_INTEGER = ("integer ids", "seconds", "processor seconds", "peak memory")
ROWS_INTEGER = (
    "pyarrow reads both columns",
    "`ew.evaluate` in memory, nodes and edges",
    "sum of the two",
    "`ew.evaluate_tables`",
    "relative to the sum",
)
COLUMNS_TEXT = ("text ids", "seconds", "processor seconds", "peak memory")
ROWS_TEXT = ("DuckDB joins both ends, results discarded", "`ew.evaluate_tables`", "relative to the bare join")
COLUMNS_ENGINES = ("join of both ends, text ids", "seconds", "processor seconds", "peak memory")
ENGINES = (f"DuckDB, limited to {ENGINE_MEMORY}", "DuckDB", "Polars, streaming", "Arrow, Table.join")
COLUMNS_RAY = ("Ray workers on one machine", "seconds")
ROWS_RAY = ("one", "two", "speed-up")
COLUMNS_RATES = ("derived from these rates", "10⁹ rows", "10¹⁰ rows", "10¹¹ rows")
ROWS_RATES = ("integer ids, 2 cores", "integer ids, 64 cores of a cluster", "text ids, 2 cores")


class Sizes(NamedTuple):
    """Sizes of the tables. Rows of edges have both directions of each edge."""

    nodes: int
    rows: int
    parts: int
    rows_in_memory: int
    text_rows: int
    text_parts: int
    engine_parts: int
    ray_parts: int
    rounds: int


FULL = Sizes(10_000_000, 1_000_000_000, 100, 100_000_000, 100_000_000, 20, 4, 24, 1)
QUICK = Sizes(200_000, 2_000_000, 10, 2_000_000, 1_000_000, 4, 2, 0, 1)


class Result(NamedTuple):
    """Seconds, processor seconds of all threads, and peak resident memory of a measurement in its own process."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int

    def plus(self, other: "Result") -> "Result":
        """Add times; the larger peak counts."""
        return Result(
            self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds, max(self.peak_bytes, other.peak_bytes)
        )

    def cells(self) -> list[str]:
        """Return the cells of a table."""
        return [f"{self.seconds:,.1f}", f"{self.cpu_seconds:,.1f}", f"{self.peak_bytes / GIB:.2f} GiB"]


# --- what a child process measures ---


def timed(function: Callable[[], object]) -> Result:
    """Call a function once. The peak is that of the process, with libraries and mapped files."""
    begin, cpu = perf_counter(), process_time()
    function()
    seconds = perf_counter() - begin, process_time() - cpu
    lines = Path("/proc/self/status").read_text().splitlines()
    return Result(*seconds, next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))


def forget_files(folder: Path) -> None:
    """Ask the operating system to drop the files from its cache."""
    for file in folder.rglob("*.parquet"):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_columns(folder: Path) -> Result:
    """Read both columns of the edges, part by part, with pyarrow's threads."""
    pa.set_cpu_count(NUM_THREADS)
    forget_files(folder)

    def read() -> None:
        for file in sorted((folder / "edges").iterdir()):
            parquet.read_table(file, columns=["src", "dst"])

    return timed(read)


def evaluate_in_memory(num_nodes: int, num_rows: int) -> tuple[Result, Result]:
    """Score edges listed in both directions, and one edge alone, for the part of the time that nodes take."""
    probs, y = draw_all_nodes(num_nodes)
    edges = torch.from_numpy(draw_cell(0, 0, num_nodes, num_rows // 2))
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    ew.evaluate(probs, y, edges[:, : 1 << 18], same_label=False)
    nodes_alone = timed(lambda: ew.evaluate(probs, y, edges[:, :1], same_label=False))
    return nodes_alone, timed(lambda: ew.evaluate(probs, y, edges, same_label=False))


def draw_all_nodes(num_nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the probabilities and labels that are in the tables."""
    chunks = [np.arange(first, min(first + 10**6, num_nodes)) for first in range(0, num_nodes, 10**6)]
    parts = [draw_nodes(ids) for ids in chunks]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def evaluate_from_disk(folder: Path) -> Result:
    """Score the tables."""
    warm_up()
    forget_files(folder)
    return timed(lambda: ew.evaluate_tables(*(folder / name for name in ("probs", "labels", "edges"))))


def warm_up() -> None:
    """Load compiled loops and libraries."""
    ids = np.arange(1 << 10)
    probs = pa.table({"nid": ids, "pred": [[0.5, 0.5]] * len(ids)})
    edges = pa.table({"src": ids[:-1], "dst": ids[1:]})
    ew.evaluate_tables(probs, pa.table({"nid": ids, "label": 0 * ids}), edges)


def write_ids(folder: Path) -> Path:
    """Write the ids of the predictions with their rows, as the node table has them."""
    file, count = folder / "ids.parquet", 0
    if not file.exists():
        with parquet.ParquetWriter(file, pa.schema([("id", pa.string()), ("row", pa.int64())])) as writer:
            for part in sorted((folder / "probs").iterdir()):
                ids = parquet.read_table(part, columns=["nid"]).column("nid")
                writer.write_table(pa.table({"id": ids, "row": np.arange(count, count + len(ids))}))
                count += len(ids)
    return file


def join_alone(folder: Path, num_nodes: int) -> Result:
    """Run the query of `evaluate_tables` for all edges at once, with its limit of memory, and drop the results."""
    ids = JoinedIds("text", num_nodes, str(write_ids(folder)))
    forget_files(folder)

    def join() -> None:
        with TemporaryDirectory(dir=folder) as temporary:
            for _ in ids.joined(find_parts(folder / "edges", "edges"), ("src", "dst"), (), Path(temporary)):
                pass

    return timed(join)


def join_with(engine: str, folder: Path, num_parts: int) -> tuple[Result, int]:
    """Join both ends of some parts with an engine, and return the sum of all rows of the node table."""
    ids, files = str(write_ids(folder)), [str(file) for file in sorted((folder / "edges").iterdir())[:num_parts]]
    forget_files(folder)
    sums: list[int] = []

    def run_duckdb() -> None:
        with TemporaryDirectory(dir=folder) as temporary, duckdb.connect() as connection:
            connection.execute(f"SET threads = {NUM_THREADS}")
            connection.execute(f"SET temp_directory = '{temporary}'")
            if engine == ENGINES[0]:
                connection.execute(f"SET memory_limit = '{ENGINE_MEMORY}'")
            nodes = f"read_parquet('{ids}')"
            query = f"""SELECT sum(a.row + b.row) FROM read_parquet({files}) t
                LEFT JOIN {nodes} a ON t.src = a.id LEFT JOIN {nodes} b ON t.dst = b.id"""
            sums.append(int(connection.execute(query).fetchall()[0][0]))

    def run_polars() -> None:
        import polars  # of `make bench`, not of the tests that import this file

        nodes, edges = polars.scan_parquet(ids), polars.scan_parquet(files)
        joined = edges.join(nodes, left_on="src", right_on="id", how="left").join(
            nodes, left_on="dst", right_on="id", how="left", suffix="_dst"
        )
        total = joined.select((polars.col("row") + polars.col("row_dst")).sum()).collect(engine="streaming")
        sums.append(int(total.item()))

    def run_arrow() -> None:
        pa.set_cpu_count(NUM_THREADS)
        nodes = parquet.read_table(ids)
        edges = pa.concat_tables([parquet.read_table(file, columns=["src", "dst"]) for file in files])
        joined = edges.join(nodes, "src", "id").join(nodes, "dst", "id", right_suffix="_dst")
        sums.append(int(compute.sum(compute.add(joined["row"], joined["row_dst"])).as_py()))

    run = {ENGINES[2]: run_polars, ENGINES[3]: run_arrow}.get(engine, run_duckdb)
    return timed(run), sums[0]


def evaluate_with_ray(folder: Path, num_parts: int, num_workers: int) -> float:
    """Return the seconds from the finished node table to the scores of some parts, on a local cluster that runs."""
    from edgewise.workers.cluster import LOCAL_CLUSTER_VARIABLES

    os.environ.update(LOCAL_CLUSTER_VARIABLES)
    import ray

    parts = [str(part) for part in sorted((folder / "edges").iterdir())[:num_parts]]
    ray.init("local", num_cpus=num_workers, log_to_driver=False, include_dashboard=False)
    try:
        begins: dict[str, float] = {}

        def note_begin(progress: TableProgress) -> None:
            begins.setdefault(progress.what, perf_counter())

        ew.evaluate_tables(
            *(folder / "probs", folder / "labels", parts),
            listed="once",  # these parts alone do not have both directions of all edges
            ray="local",
            progress=note_begin,
        )
        return perf_counter() - begins["edges"]
    finally:
        ray.shutdown()


# --- the parent process ---


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of this file in a new process."""
    message = json.dumps([function.__name__, [str(arg) if isinstance(arg, Path) else arg for arg in arguments]])
    environment = os.environ | {
        "OMP_NUM_THREADS": str(NUM_THREADS),
        "POLARS_MAX_THREADS": str(NUM_THREADS),
        "PYTHONWARNINGS": "ignore",
    }
    call = [sys.executable, __file__, "--child", message]
    lines = subprocess.run(call, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    result = json.loads(lines[-1])
    print(f"  {function.__name__} {arguments}: {result}", flush=True)
    return result


def run_child(message: str) -> None:
    """Call a function by its name, and print the result as the last line."""
    name, arguments = json.loads(message)
    torch.set_num_threads(NUM_THREADS)
    print(json.dumps(globals()[name](*(Path(arg) if str(arg).startswith("/") else arg for arg in arguments))))


def best(results: Sequence[Result]) -> Result:
    """Return the smallest times, and the highest peak."""
    seconds, cpu_seconds, peaks = zip(*results, strict=True)
    return Result(min(seconds), min(cpu_seconds), max(peaks))


def check_equal_sums(folder: Path) -> None:
    """Exit unless the tables of a small graph give the sums of `ew.evaluate`, to the last bit."""
    num_nodes, num_rows, num_parts = 50_000, 1_000_000, 4
    half = num_parts // 2
    edges = [draw_cell(k, m, num_nodes, num_rows // (2 * half * half)) for k in range(half) for m in range(half)]
    forward = torch.from_numpy(np.concatenate(edges, axis=1))
    expected = ew.evaluate(*draw_all_nodes(num_nodes), torch.cat([forward, forward.flip(0)], dim=1), same_label=False)
    for text in (False, True):
        small = folder / ("small-text" if text else "small-integer")
        write_tables(small, num_nodes, num_rows, num_parts, text)
        found = ew.evaluate_tables(*(small / name for name in ("probs", "labels", "edges")))
        for view, sums in expected._sums.items():
            if not torch.equal(sums.table, found._sums[view].table):
                raise SystemExit(f"Expected equal sums of {view}, but tables and arrays give different ones.")


def measure_integer(folder: Path, sizes: Sizes) -> tuple[Result, Result, Result]:
    """Return the costs of reading, of scoring in memory, for the same number of edges, and of both from disk."""
    reads, memories, tables = list[Result](), list[Result](), list[Result]()
    for _ in range(sizes.rounds):
        reads.append(Result(*in_child(read_columns, folder)))
        alone, scored = (Result(*one) for one in in_child(evaluate_in_memory, sizes.nodes, sizes.rows_in_memory))
        memories.append(scaled(alone, scored, sizes.rows / sizes.rows_in_memory))
        tables.append(Result(*in_child(evaluate_from_disk, folder)))
    return best(reads), best(memories), best(tables)


def scaled(alone: Result, scored: Result, times: float) -> Result:
    """Return the cost of more edges: that of the nodes, and the rest in proportion."""
    seconds, cpu_seconds = (
        nodes + times * max(both - nodes, 0.0)
        for nodes, both in ((alone.seconds, scored.seconds), (alone.cpu_seconds, scored.cpu_seconds))
    )
    return Result(seconds, cpu_seconds, scored.peak_bytes)


def measure_text(folder: Path, sizes: Sizes) -> tuple[Result, Result]:
    """Return the costs of the bare join and of the evaluation."""
    joins, tables = list[Result](), list[Result]()
    for _ in range(sizes.rounds):
        joins.append(Result(*in_child(join_alone, folder, sizes.nodes)))
        tables.append(Result(*in_child(evaluate_from_disk, folder)))
    return best(joins), best(tables)


def measure_engines(folder: Path, sizes: Sizes) -> list[Result]:
    """Return the costs of each engine, after comparing their results."""
    found = {
        name: [in_child(join_with, name, folder, sizes.engine_parts) for _ in range(sizes.rounds)] for name in ENGINES
    }
    if len({total for runs in found.values() for _, total in runs}) != 1:
        raise SystemExit("Expected equal rows from all engines, but they differ.")
    return [best([Result(*cost) for cost, _ in runs]) for runs in found.values()]


def measure_ray(folder: Path, sizes: Sizes) -> tuple[float, float]:
    """Return the seconds with one and with two workers."""
    runs = [[in_child(evaluate_with_ray, folder, sizes.ray_parts, num) for num in (1, 2)] for _ in range(sizes.rounds)]
    one, two = (min(times) for times in zip(*runs, strict=True))
    return one, two


def relative(ours: Result, theirs: Result, limit_bytes: int) -> list[str]:
    """Return the cells of a last row: ratios, and the memory that is allowed."""
    return [
        f"**{ours.seconds / theirs.seconds:.2f} ×**",
        f"{ours.cpu_seconds / theirs.cpu_seconds:.2f} ×",
        f"records + 1 GiB: {limit_bytes / GIB:.2f} GiB",
    ]


def integer_table(read: Result, memory: Result, tables: Result, num_nodes: int) -> str:
    """Return the table of integer ids."""
    total = read.plus(memory)
    last = relative(tables, total, BYTES_PER_NODE * num_nodes + GIB)
    cells = [*(result.cells() for result in (read, memory)), [*total.cells()[:2], ""], tables.cells(), last]
    return speed_page.table(COLUMNS_INTEGER, [[name, *row] for name, row in zip(ROWS_INTEGER, cells, strict=True)])


def text_table(join: Result, tables: Result, num_nodes: int) -> str:
    """Return the table of text ids."""
    cells = [join.cells(), tables.cells(), relative(tables, join, BYTES_PER_NODE * num_nodes + GIB)]
    return speed_page.table(COLUMNS_TEXT, [[name, *row] for name, row in zip(ROWS_TEXT, cells, strict=True)])


def engines_table(results: Sequence[Result]) -> str:
    """Return the table of engines."""
    return speed_page.table(
        COLUMNS_ENGINES, [[name, *result.cells()] for name, result in zip(ENGINES, results, strict=True)]
    )


def ray_table(one: float, two: float) -> str:
    """Return the table of Ray workers."""
    cells = f"{one:,.1f}", f"{two:,.1f}", f"**{one / two:.2f} ×**"
    return speed_page.table(COLUMNS_RAY, list(zip(ROWS_RAY, cells, strict=True)))


def rates_table(integer_rate: float, text_rate: float, efficiency: float) -> str:
    """Return what to expect of more rows, in proportion. A cluster has the efficiency of two workers against one."""
    rates = integer_rate, integer_rate * 32 * efficiency, text_rate
    rows = [
        [name, *(format_duration(rows / rate) for rows in (1e9, 1e10, 1e11))]
        for name, rate in zip(ROWS_RATES, rates, strict=True)
    ]
    return speed_page.table(COLUMNS_RATES, rows)


def measure_all(folder: Path, sizes: Sizes) -> str:
    """Draw the tables, measure, and return the section of the page."""
    check_equal_sums(folder)
    integer, text = folder / f"integer-{sizes.rows}", folder / f"text-{sizes.text_rows}"
    write_tables(integer, sizes.nodes, sizes.rows, sizes.parts, text=False)
    write_tables(text, sizes.nodes, sizes.text_rows, sizes.text_parts, text=True)
    of_integer, of_text = measure_integer(integer, sizes), measure_text(text, sizes)
    of_engines = measure_engines(text, sizes)
    of_ray = measure_ray(integer, sizes) if sizes.ray_parts else None  # fewer rows are a single job
    engine_rows = sizes.text_rows * sizes.engine_parts // sizes.text_parts
    ray_rows = sizes.rows * sizes.ray_parts // sizes.parts
    rates = sizes.rows / of_integer[2].seconds, sizes.text_rows / of_text[1].seconds
    parts = [
        f"{sizes.rows:,} rows of edges:",
        integer_table(*of_integer, sizes.nodes),
        f"{sizes.text_rows:,} rows of edges:",
        text_table(*of_text, sizes.nodes),
        f"{engine_rows:,} rows of edges:",
        engines_table(of_engines),
    ]
    if of_ray is not None:
        efficiency = of_ray[0] / of_ray[1] / 2
        parts += [f"{ray_rows:,} rows of edges, with integer ids:", ray_table(*of_ray), rates_table(*rates, efficiency)]
    versions = environment("edgewise", "pyarrow", "duckdb", "polars", "ray", "torch", "numba")
    counts = f"{sizes.nodes:,} nodes, 10 classes; {sizes.rows_in_memory:,} rows in memory"
    return "\n\n".join([*parts, f"{counts}; {versions}."])


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speed_page.add_options(parser)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder of the tables, which are kept")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        run_child(options.child)
        return
    torch.set_num_threads(NUM_THREADS)
    with TemporaryDirectory() as temporary:
        folder = (options.data or Path(temporary)).resolve()
        text = measure_all(folder, QUICK if options.quick else FULL)
    print(text)
    speed_page.replace_section(options.page, "scale", text)


if __name__ == "__main__":
    main()
