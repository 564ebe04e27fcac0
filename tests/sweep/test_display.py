import io
import re
from dataclasses import replace

from rich.console import Console

from edgewise.sweep.estimates import TYPICAL_SECONDS, estimate_seconds
from edgewise.sweep.progress import Progress, SweepDisplay, plan_text
from edgewise.workers import Failure, Finished
from helpers.fake_results import fake_results, fake_run


def sweep(done: int = 2) -> tuple[Progress, list[object]]:
    runs = list(fake_results(("cora", "pubmed"), ("gcn", "gmnn"), splits=1).runs)
    return Progress([run.key for run in runs], runs[:done], workers=2), runs[done:]


def test_one_line_per_outcome_without_a_terminal() -> None:
    progress, (first, *_) = sweep()
    out = io.StringIO()
    with SweepDisplay(progress, Console(file=out, width=80)).shown() as display:
        progress.runs.append(first)
        display.show(Finished(first.key, first))
        failed = replace(first.key, init=7)
        progress.failures[failed] = "Traceback\n  x\nValueError: no luck"
        display.show(Failure(failed, progress.failures[failed]))
    lines = out.getvalue().splitlines()
    accuracy = first.predictions["product"]["nodewise"].accuracy
    assert lines[0].startswith(f"3/12 cora gcn split 0 fold 2 init 0: nodewise accuracy {100 * accuracy:.1f}, ")
    assert re.search(r"runs/min, .* left\)$", lines[0])
    assert lines[1].startswith("4/12 cora gcn split 0 fold 2 init 7 failed: ValueError: no luck (")
    assert len(lines) == 2


def test_terminal_shows_a_table_of_mean_scores() -> None:
    progress, _ = sweep(done=5)
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    display = SweepDisplay(progress, console)
    with console.capture() as captured:
        console.print(display.renderable())
    text = re.sub(r"\x1b\[[0-9;]*m", "", captured.get())
    gcn = [run.predictions["product"]["edgewise"].ece for run in progress.runs if run.key.model == "gcn"]
    (line,) = (line for line in text.splitlines() if line.startswith("cora gcn"))
    assert line.split()[2] == "3/3"
    assert f"{100 * sum(gcn) / 3:.1f}" in line.split()
    assert "pubmed gmnn" in text and "cora gat" not in text and "5/12" in text


def test_plan_text_has_counts_and_time_left() -> None:
    progress, _ = sweep(done=5)
    text = plan_text(progress)
    assert text.startswith("12 runs (1 split, 3 folds, 1 init for each cell), 5 done: about ")
    assert "compile" not in text
    assert "2 workers" in text.splitlines()[0]
    assert [line.split() for line in text.splitlines()[3:]] == [["cora", "3/3", "2/3"], ["pubmed", "0/3", "0/3"]]
    done = Progress([fake_run("cora", "gcn").key], [fake_run("cora", "gcn")], workers=1)
    assert "nothing left to do" in plan_text(done)


def test_time_left_uses_measured_runs_and_ignores_failed_ones() -> None:
    progress, _ = sweep(done=11)
    (key,) = progress.missing
    measured = {cell: [run.seconds for run in progress.runs if run.key.cell == cell] for cell in TYPICAL_SECONDS}
    assert progress.seconds_left == estimate_seconds([key], measured, workers=2) > 0
    progress.failures[key] = "no luck"
    assert progress.seconds_left == 0
