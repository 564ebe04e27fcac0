"""Measure the errors of inference on instances of the UAI inference competitions, against their published marginals.

    python benchmarks/uai.py FOLDER                                    # all instances and methods: about two hours
    python benchmarks/uai.py FOLDER --page docs/inference-errors.md    # also write the tables
    python benchmarks/uai.py FOLDER --redo sum_product infer           # measure these methods again
    python benchmarks/uai.py FOLDER --methods exact_marginals --instances Grids_12 Grids_16

FOLDER contains NAME.uai, NAME.uai.evid, NAME.uai.MAR (marginals) and NAME.uai.PR (log10 Z), as in the results of the
UAI 2014 competition (https://github.com/mroavi/uai-2014-inference-competition). Instances with factors of more than two
variables are skipped.

Each pair of instance and method runs in a process of its own, one at a time, with a limit of time and memory. Each
finished run is appended to a file of JSON lines, and a second call skips the runs that are in this file.

Seconds are those of inference, without reading the instance, and the limit is that of inference too. They are seconds
of processor time of one thread, so other programs hardly change them. Compiled functions are loaded before, by a call
on a small grid. A call that takes less than 5 seconds is repeated, and the second one is counted.
"""

import argparse
import json
import math
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
import uai_page
import uai_rivals
from measure import GIB
from numpy.typing import NDArray

import edgewise as ew
from edgewise.inference.elimination_order import NoExactInference, feasible_order

Array = NDArray[Any]

METHODS = ("exact_marginals", "tree_reweighted", "mean_field", "sum_product", "infer", "map_labels")
RIVALS = ("toulbar2", "aGrUM", "pyGMs", "pgmpy")
MAX_REPEATED_SECONDS = 5.0
SECONDS = 60.0  # limit of a run
PYTHON_SECONDS = 5.0  # limit of libraries in pure Python, which need minutes for most instances
MAX_WAIT = 3600.0  # seconds until a run that hangs is ended


@dataclass(frozen=True)
class Instance:
    """An instance of a competition and its published solution."""

    path: Path
    mrf: ew.PairwiseMRF
    marginals: Sequence[Array]  # one array per node
    log10_z: float

    @property
    def sizes(self) -> list[int]:
        """Number of labels of each node."""
        return [len(row) for row in self.marginals]

    @property
    def observed(self) -> dict[int, int]:
        """Observed labels by node."""
        words = [int(word) for word in Path(f"{self.path}.evid").read_text().split()]
        return dict(zip(words[1::2], words[2::2], strict=True))


def read_instance(path: Path) -> Instance:
    words = Path(f"{path}.MAR").read_text().split()[2:]
    marginals = []
    while words:
        size = int(words[0])
        marginals.append(np.array(words[1 : size + 1], dtype=np.float64))
        words = words[size + 1 :]
    log10_z = float(Path(f"{path}.PR").read_text().split()[-1])
    return Instance(path, ew.read_uai(path, evidence=f"{path}.evid"), marginals, log10_z)


def approximate(solver: Callable[..., Any], instance: Instance) -> dict[str, Any]:
    """Run a solver of edgewise. Return its marginals, its log Z or bound, and its convergence."""
    posterior, convergence = solver(instance.mrf)
    return {
        "marginals": [row[:size].numpy() for row, size in zip(posterior.node, instance.sizes, strict=True)],
        "log_z": _log_partition(instance.mrf, posterior),
        "solver": convergence.method,
        "converged": convergence.converged,
        "sweeps": convergence.sweeps,
        "disagreement": convergence.disagreement,
        "warns": bool(convergence.advice),
    }


def _log_partition(mrf: ew.PairwiseMRF, posterior: Any) -> float:
    """Return log Z, its bound, or its Bethe approximation."""
    if posterior.log_partition is not None:
        return float(posterior.log_partition)
    if isinstance(posterior, ew.PairwisePosterior):
        return -float(ew.bethe_free_energy(mrf, posterior))
    return mean_field_bound(mrf, posterior.node)


def mean_field_bound(mrf: ew.PairwiseMRF, q: torch.Tensor) -> float:
    """Return the lower bound E_q[score] + H(q) on log Z, for independent nodes."""
    start, end = mrf.edge_index
    score = torch.where(q > 0, q * mrf.unary, 0.0).sum() + torch.einsum(
        "ea,eab,eb->", q[start], mrf.coupling(slice(None)).expand(mrf.num_edges, -1, -1), q[end]
    )
    return float(score - torch.special.xlogy(q, q).sum())


def score(mrf: ew.PairwiseMRF, labels: torch.Tensor) -> float:
    """Return the unnormalized log-probability of a labeling."""
    start, end = labels[mrf.edge_index]
    couplings = mrf.coupling(slice(None)).expand(mrf.num_edges, -1, -1)
    unary = mrf.unary.gather(1, labels[:, None]).sum()
    return float(unary + couplings[torch.arange(mrf.num_edges), start, end].sum())


def find_labels(instance: Instance) -> dict[str, Any]:
    labels, convergence = ew.map_labels(instance.mrf)
    return {"score": score(instance.mrf, labels), "solver": convergence.method, "converged": convergence.converged}


def prepare(method: str, instance: Instance) -> Callable[[], dict[str, Any]]:
    """Return the function to measure."""
    solvers = {name: getattr(ew, name) for name in METHODS}
    solvers["sum_product"] = partial(ew.sum_product, check=True)
    if method == "map_labels":
        return partial(find_labels, instance)
    if method in METHODS:
        return partial(approximate, solvers[method], instance)
    if method == "toulbar2":
        network = uai_rivals.Toulbar2(instance.mrf, instance.sizes)
        return lambda: {"score": score(instance.mrf, torch.tensor(network.labels()))}
    rival: uai_rivals.Pgmpy | uai_rivals.Agrum | uai_rivals.Pygms
    if method == "pyGMs":
        rival = uai_rivals.Pygms(instance.path, instance.observed, instance.mrf.num_nodes)
    else:
        library = uai_rivals.Agrum if method == "aGrUM" else uai_rivals.Pgmpy
        rival = library(instance.mrf, instance.sizes)
    return lambda: dict(zip(("marginals", "log_z"), rival.marginals(), strict=True))


def small_grid(side: int = 12) -> ew.PairwiseMRF:
    """Return a grid without couplings, on which `exact_marginals` runs the compiled loops of elimination."""
    nodes = torch.arange(side * side).reshape(side, side)
    right, down = torch.stack([nodes[:, :-1], nodes[:, 1:]]), torch.stack([nodes[:-1], nodes[1:]])
    edges = torch.cat([right.flatten(1), down.flatten(1)], dim=1)
    return ew.PairwiseMRF(torch.zeros(side * side, 2).double(), edges, torch.zeros(2, 2).double())


def errors(instance: Instance, result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the errors of its marginals and of log10 Z in place of these."""
    values = {name: value for name, value in result.items() if name not in ("marginals", "log_z")}
    if "marginals" in result:
        difference = np.abs(np.concatenate(result["marginals"]) - np.concatenate(instance.marginals))
        if np.isfinite(difference).all():
            values |= {"mean_error": float(difference.mean()), "max_error": float(difference.max())}
        else:
            values["status"] = "not a number"
    log_z = result.get("log_z")
    if log_z is not None and math.isfinite(log_z):
        values["log10_z_error"] = log_z / math.log(10) - instance.log10_z
    return values


def run(method: str, path: Path, seconds: float) -> dict[str, Any]:
    """Measure one method on one instance in this process, which ends if it takes too long."""
    warnings.simplefilter("ignore")
    instance = read_instance(path)
    mrf = instance.mrf
    facts = {"nodes": mrf.num_nodes, "edges": mrf.num_edges, "labels": mrf.num_classes}
    if method == "exact_marginals":
        try:
            order = feasible_order(mrf)
        except NoExactInference as error:
            return {**facts, "status": "refused", "reason": error.reason}
        facts |= {"width": order.width, "message_bytes": 8 * order.total}
    function = prepare(method, instance)
    if method in METHODS:
        getattr(ew, method)(small_grid())
    # By default the signal ends the process, also inside of compiled code.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    for _ in range(2):
        start = process_time()
        result = function()
        elapsed = process_time() - start
        if elapsed > min(MAX_REPEATED_SECONDS, seconds / 4) or method not in METHODS:
            break
    signal.setitimer(signal.ITIMER_PROF, 0)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"status": "ok", **facts, "seconds": elapsed, "peak_bytes": peak, **errors(instance, result)}


def run_in_process(method: str, path: Path, seconds: float, memory: int) -> dict[str, Any]:
    """Measure one method on one instance in a process of its own."""
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    limits = ["--seconds", str(seconds), "--memory", str(memory)]
    command = [sys.executable, __file__, str(path.parent), "--only", method, path.stem, *limits]
    try:
        process = subprocess.run(command, env=one_thread, capture_output=True, text=True, timeout=MAX_WAIT, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "time", "seconds": seconds}
    if process.returncode == 0:
        result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
        return result
    if process.returncode == -signal.SIGPROF:
        return {"status": "time", "seconds": seconds}
    if process.returncode in (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP):
        return {"status": "interrupted"}
    if any(name in process.stderr for name in ("MemoryError", "bad_alloc", "out of memory", "OutOfMemory")):
        return {"status": "memory", "memory": memory}
    lines = process.stderr.strip().splitlines()
    return {"status": "error", "reason": lines[-1][:200] if lines else f"exit code {process.returncode}"}


def is_pairwise(path: Path) -> bool:
    try:
        ew.read_uai(path)
    except ValueError:
        return False
    return True


def read_results(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Read the finished runs by instance and method. A later line replaces an earlier one."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.endswith("}")]
    return {(line["instance"], line["method"]): line for line in lines}


def run_all(options: argparse.Namespace) -> dict[tuple[str, str], dict[str, Any]]:
    """Measure what is not in the file of results, and append it."""
    rivals = [name for name in RIVALS if uai_rivals.is_installed(name)]
    methods = options.redo or options.methods or [*METHODS, *rivals]
    paths = sorted(path for path in options.folder.glob("*.uai") if Path(f"{path}.MAR").exists() and is_pairwise(path))
    names = options.instances or [path.stem for path in paths]
    if not paths:
        raise SystemExit(f"Expected instances NAME.uai with NAME.uai.MAR in {options.folder}, but found none.")
    options.results.parent.mkdir(parents=True, exist_ok=True)
    known: Mapping[tuple[str, str], Any] = {} if options.redo else read_results(options.results)
    for method in methods:
        for path in paths:
            if path.stem not in names or (path.stem, method) in known:
                continue
            exact = read_results(options.results).get((path.stem, "exact_marginals"), {})
            if method == "infer" and exact.get("status") == "ok":
                continue  # it is the same computation
            seconds = options.seconds or (PYTHON_SECONDS if method in ("pyGMs", "pgmpy") else SECONDS)
            result = run_in_process(method, path, seconds, options.memory)
            if result["status"] != "interrupted":  # that one is not finished
                line = {"instance": path.stem, "method": method, **result}
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            shown = " ".join(f"{name}={value:.3g}" for name, value in result.items() if isinstance(value, float))
            print(f"{path.stem:20} {method:16} {result['status']:8} {shown}", flush=True)
    return read_results(options.results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = [*METHODS, *RIVALS]
    parser.add_argument("folder", type=Path, help="folder with NAME.uai, NAME.uai.evid, NAME.uai.MAR and NAME.uai.PR")
    parser.add_argument("--methods", nargs="+", choices=choices, help="measure only these")
    parser.add_argument("--redo", nargs="+", choices=choices, help="measure only these, also if they are finished")
    parser.add_argument("--instances", nargs="+", metavar="NAME", help="measure only these")
    parser.add_argument("--seconds", type=float, help="time limit of a run")
    parser.add_argument("--memory", type=int, default=12, metavar="GIB", help="memory limit of a run")
    parser.add_argument("--results", type=Path, default=Path("out/uai.jsonl"), help="file of finished runs")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the tables to this page")
    parser.add_argument("--only", nargs=2, metavar=("METHOD", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        method, name = options.only
        resource.setrlimit(resource.RLIMIT_AS, (options.memory * GIB, options.memory * GIB))
        print(json.dumps(run(method, options.folder / f"{name}.uai", options.seconds)))
        return
    results = run_all(options)
    if options.page:
        uai_page.write(options.page, results.values())


if __name__ == "__main__":
    main()
