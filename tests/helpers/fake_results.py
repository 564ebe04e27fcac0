"""Fake results of sweeps: random but reproducible, and close to the published numbers."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np

from edgewise.data.statistics import DatasetStatistics
from edgewise.paper.published import DATASETS, PUBLISHED_DATASETS, PUBLISHED_SCORES
from edgewise.paper.readings import MODELS, READINGS, UNCALIBRATED_PREDICTION, Source
from edgewise.paper.results import Results
from edgewise.sweep.runs import SAME_LABEL, Bins, Prediction, Run, RunKey, ViewResult
from edgewise.sweep.store import CommandRow, TaskRow

N_BINS = 15
HOSTILE = '</script><img src=x onerror="window.harmed = true"><b>&amp; "bold"</b>'
VERSIONS = {"edgewise": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "torch_geometric": "2.8.1", "numpy": "2.4.6"}
PREDICTIONS_OF = {
    "gcn": ("product",),
    "gat": ("product",),
    "gmnn": ("averaged_logits", "mixture_product", "mixture"),
    "epfgnn": (
        *("published_misplaced_evidence", "published_mean_field", "published_sum_product"),
        *("mean_field", "sum_product"),
    ),
    "jointgcn": ("joint",),
    "deepensemble": ("deepensemble_product", "deepensemble_mixture"),
    "mcdropout": ("mcdropout_product", "mcdropout_mixture"),
    "spn": ("spn_sum_product",),
}
ORDER = ("nodewise", "edgewise", "agree", "disagree", SAME_LABEL)
ROW_OF = {source: row for rows in READINGS.values() for row, source in rows.items()}  # the published row to imitate


def fake_results(
    datasets: Sequence[str] = DATASETS,
    models: Sequence[str] = MODELS,
    splits: int = 2,
    folds: int = 3,
    inits: int = 1,
    calibrators: Sequence[str] = (),
) -> Results:
    """Return fake results, with some empty views and an infinite NLL among them.

    All runs of GAT on Pubmed, and the first run of GCN on Cora, have no disagreeing edge. In the first run of GMNN on
    Citeseer, the prediction from averaged logits has an infinite NLL. Datasets without published numbers are like
    Cora, but on Texas no edge agrees, and the test nodes of its first split have no edges.
    """
    runs = [
        fake_run(dataset, model, split, fold, init, calibrators)
        for dataset in datasets
        for model in models
        for split in range(splits)
        for fold in range(folds)
        for init in range(inits)
    ]
    tasks = [_task(dataset, split) for dataset in datasets for split in range(splits)]
    seconds = sum(run.seconds for run in runs)
    command = CommandRow("2026-01-02T03:04:05+00:00", "bundled data, splits drawn with seed 0", "2", len(runs), seconds)
    return Results(runs, tasks, [command])


def with_hostile_text(results: Results) -> Results:
    """Replace all free text in the results, in versions, sources, workers and errors, by HTML."""
    runs = [replace(run, versions={**run.versions, "torch": HOSTILE, HOSTILE: "1"}) for run in results.runs]
    commands = [replace(command, sources=HOSTILE, workers=HOSTILE) for command in results.commands]
    failures = {RunKey("cora", "gat", "[{}]", 4, 2, 1): f"Traceback\n{HOSTILE}"}
    return replace(results, runs=runs, commands=commands, failures=failures)


def fake_run(
    dataset: str, model: str, split: int = 0, fold: int = 0, init: int = 0, calibrators: Sequence[str] = ()
) -> Run:
    """Return one run with all predictions of its model, and of calibrators if the model can be calibrated.

    Other models have the same predictions as a GCN.
    """
    own = PREDICTIONS_OF.get(model, (UNCALIBRATED_PREDICTION,))
    added = tuple(calibrators) if UNCALIBRATED_PREDICTION in own else ()
    described: list[dict[str, object]] = [{"hidden": 64}]
    described += [{"calibrators": {name: f"{name}()" for name in added}}] if added else []
    key = RunKey(dataset, model, json.dumps(described), split, fold, init)
    predictions = {name: _prediction(key, name, place) for place, name in enumerate((*own, *added))}
    epochs = 100 + key.seed % 97
    return Run(key, predictions, 0.02 * epochs, epochs, VERSIONS, f"2026-01-02T03:{split:02}:{fold:02}+00:00")


def _prediction(key: RunKey, name: str, place: int) -> Prediction:
    draw = np.random.default_rng(crc32(f"{key} {name}".encode()))
    row, like = ROW_OF.get(Source(key.model, name), key.model), _published_or_cora(key.dataset)
    published, homophily = PUBLISHED_SCORES[like], PUBLISHED_DATASETS[like].homophily.mean
    scores = published.get(row, published["gcn"])
    first = (key.split, key.fold, key.init) == (0, 0, 0)
    no_disagreement = key.cell == ("pubmed", "gat") or (first and key.cell == ("cora", "gcn"))
    num_agree = 0 if key.dataset == "texas" else 200 if no_disagreement else round(200 * homophily)
    sizes = {"nodewise": 150, "agree": num_agree, "disagree": 200 - num_agree}
    bins = {
        # Overconfident on disagreeing edges, underconfident elsewhere. The predictions of a model differ slightly.
        view: _bins(
            draw, size, scores["accuracy"][view].mean, (1 if view == "disagree" else -1) * scores["ece"][view].mean
        )
        for view, size in sizes.items()
    }
    bins["edgewise"] = _sum_bins(bins["agree"], bins["disagree"])
    bins[SAME_LABEL] = _bins(draw, 200, homophily, -0.05 - 0.01 * place)
    has_infinite_nll = first and key.cell == ("citeseer", "gmnn") and name == "averaged_logits"
    return {
        view: _result(of_view, draw, has_infinite_nll and view in ("edgewise", "disagree"))
        for view, of_view in sorted(bins.items(), key=lambda item: ORDER.index(item[0]))
    }


def _bins(draw: np.random.Generator, size: int, accuracy: float, gap: float) -> Bins:
    """Draw confidences with mean accuracy + gap, and whether each element is correct."""
    mean = min(max(accuracy + gap, 0.05), 0.95)
    confidence = draw.beta(6 * mean, 6 * (1 - mean), size)
    correct = draw.random(size) < confidence - mean + accuracy
    place = np.clip(np.ceil(confidence * N_BINS).astype(int) - 1, 0, N_BINS - 1)
    count, confidence_sum, correct_sum = (
        np.bincount(place, weights, N_BINS) for weights in (np.ones(size), confidence, correct.astype(float))
    )
    return Bins(_to_ints(count), confidence_sum.astype(float).tolist(), _to_ints(correct_sum))


def _to_ints(values: Iterable[float]) -> list[int]:
    return [round(value) for value in values]


def _sum_bins(one: Bins, other: Bins) -> Bins:
    return Bins(
        [a + b for a, b in zip(one.count, other.count, strict=True)],
        [a + b for a, b in zip(one.confidence_sum, other.confidence_sum, strict=True)],
        [a + b for a, b in zip(one.correct_sum, other.correct_sum, strict=True)],
    )


def _result(bins: Bins, draw: np.random.Generator, has_infinite_nll: bool) -> ViewResult:
    """Return scores that are consistent with the bins."""
    count = sum(bins.count)
    if not count:
        return ViewResult(0, math.nan, math.nan, math.nan, math.nan, bins)
    accuracy = sum(bins.correct_sum) / count
    gaps = (
        abs(correct - confidence) for correct, confidence in zip(bins.correct_sum, bins.confidence_sum, strict=True)
    )
    nll = math.inf if has_infinite_nll else (1.2 - accuracy) * 2 + 0.1 * draw.random()
    return ViewResult(count, accuracy, nll, (1.1 - accuracy) * 1.2, sum(gaps) / count, bins)


def _task(dataset: str, split: int) -> TaskRow:
    size: DatasetStatistics = PUBLISHED_DATASETS[_published_or_cora(dataset)]
    fractions = (size.homophily, size.k_edgewise, size.k_agree, size.k_disagree)
    shifted = [fraction.mean + (0.6 if split % 2 else -0.2) * fraction.std for fraction in fractions]
    if dataset == "texas":
        shifted = [math.nan, 0.0, 0.0, 0.0] if split == 0 else [0.0, 0.9, 0.0, 0.9]
    counts = size.nodes, size.directed_edges, size.features, size.classes
    return TaskRow(dataset, split, f"{split:016x}", *counts, *shifted, 0.1 * size.nodes, 0.72 * size.nodes)


def _published_or_cora(dataset: str) -> str:
    return dataset if dataset in PUBLISHED_DATASETS else "cora"
