"""Jobs over the edges: their sums are saved when they end, and added to sums in which each edge counts once."""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from edgewise.files.output import replace_file
from edgewise.tables.edge_scorer import EdgeScorer
from edgewise.tables.edge_sums import DirectionSums, EdgeSums
from edgewise.tables.node_table import NodeArrays
from edgewise.tables.parts import Part
from edgewise.tables.table_jobs import Progress, RowCounter, TableJob, run_on_cluster

EDGES_PER_PARTITION = 1 << 22


def sum_jobs(
    scorer: EdgeScorer,
    jobs: Sequence[TableJob],
    nodes: NodeArrays,
    folder: Path,
    ray: str | None,
    progress: Progress | None,
) -> EdgeSums:
    """Return the sums of all jobs, of which there is at least one. Those that are saved in the folder are loaded."""
    folder.mkdir(exist_ok=True)
    files = {job.number: folder / f"job-{job.number:05d}.npz" for job in jobs}
    finished = {number for number, file in files.items() if file.exists()}
    done = [job for job in jobs if job.number in finished]
    left = [job for job in jobs if job.number not in finished]
    total = None
    for job in done:
        total = _added(total, EdgeSums.load(files[job.number]))
    num_parts = sum(len(job.parts) for job in done)
    counter = RowCounter(
        progress,
        "edges",
        [part for job in jobs for part in job.parts],
        finished_rows=0 if total is None else total.counts.listed,
        finished_parts=num_parts,
    )
    outcomes = _local(scorer, left, nodes, counter) if ray is None else _on_cluster(scorer, left, nodes, ray)
    with closing(outcomes):
        for job, sums in outcomes:
            replace_file(files[job.number], sums.save)
            total = _added(total, sums)
            num_parts += len(job.parts)
            counter.add(0 if ray is None else sums.counts.listed, num_parts)
    assert total is not None
    return total


def _added(total: EdgeSums | None, sums: EdgeSums) -> EdgeSums:
    return sums if total is None else total + sums


def _local(
    scorer: EdgeScorer, jobs: Sequence[TableJob], nodes: NodeArrays, counter: RowCounter
) -> Generator[tuple[TableJob, EdgeSums], None, None]:
    for job in jobs:
        yield job, scorer.sum_parts(job.parts, nodes, counter.add)


def _on_cluster(
    scorer: EdgeScorer, jobs: Sequence[TableJob], nodes: NodeArrays, ray: str
) -> Generator[tuple[TableJob, EdgeSums], None, None]:
    shared = nodes._replace(ids=scorer.ids.table())._asdict()
    return run_on_cluster(replace(scorer, folder=None), jobs, ray, shared)


def count_edges_once(
    scorer: EdgeScorer,
    total: EdgeSums,
    parts: Sequence[Part],
    nodes: NodeArrays,
    folder: Path,
    progress: Progress | None,
) -> DirectionSums:
    """Return the sums in which each edge counts once."""
    forward, backward = total.counts.forward, total.counts.backward
    if scorer.listed == "both" and forward != backward:
        raise ValueError(
            f"Expected each edge in both directions, as listed='both' (--listed both) says, but {forward:,} rows "
            f"have the end with the lower row number first, and {backward:,} the other one. Omit listed."
        )
    if scorer.listed != "check" or total.case == "both directions":
        return total.forward
    if total.case == "one direction":
        return total.forward if total.backward is None else total.backward
    file = folder / "resolved.npz"
    if file.exists():
        return EdgeSums.load(file).forward
    counter = RowCounter(progress, "edges again", parts, num_rows=total.counts.listed)
    found = scorer.resolve(parts, nodes, total, folder / "partitions", EDGES_PER_PARTITION, counter.add)
    replace_file(file, EdgeSums(found, None, total.checksums, total.counts).save)
    return found
