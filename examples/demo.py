"""Train GCN, GAT, GMNN and EPFGNN on bundled Cora, and print their scores next to the published ones."""

import argparse
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

import edgewise as ew
from edgewise.files.output import write_json
from edgewise.models.epfgnn import FittedEPFGNN
from edgewise.paper.comparison import scores_beside_published
from edgewise.paper.formatting import display_name
from edgewise.paper.published import PUBLISHED_SCORES

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch_geometric 2.8 with torch 2.13
    from torch_geometric.data import Data

MODELS = (ew.GCN(), ew.GAT(), ew.GMNN(), ew.EPFGNN())


def train(data: Data, split: ew.Split) -> dict[str, ew.Fitted]:
    """Fit the four models, with a progress bar for each."""
    columns = (
        TextColumn("{task.fields[model]:8}"),
        TextColumn("{task.description:13}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeElapsedColumn(),
    )
    fitted: dict[str, ew.Fitted] = {}
    with Progress(*columns) as progress:
        for model in MODELS:
            bar = progress.add_task("preparing", model=display_name(model.name), accuracy="", total=None)

            def show(epoch: ew.Epoch, bar: TaskID = bar) -> None:
                progress.update(
                    bar,
                    description=epoch.phase,
                    completed=epoch.epoch,
                    total=epoch.max_epochs,
                    accuracy=f"validation {epoch.val_accuracy:.3f}",
                )

            fitted[model.name] = result = model.fit(data, split, seed=0, on_epoch=show)
            correct = result.posterior().node[split.val].argmax(1) == data.y[split.val]
            epochs, accuracy = result.history.epochs, f"validation {float(correct.float().mean()):.3f}"
            progress.update(bar, description="done", completed=epochs, total=epochs, accuracy=accuracy)
            progress.stop_task(bar)
    return fitted


def draw(runs: Mapping[str, ew.Evaluation], path: Path) -> None:
    """Draw a reliability diagram per view, with a line per model."""
    mpl.use("Agg")
    named = {display_name(model): run for model, run in runs.items()}
    fig, _ = ew.plot_reliability(named, title="Reliability of four models on Cora, test nodes")
    fig.savefig(path, dpi=150)  # 1,200 pixels wide


def explain(runs: Mapping[str, ew.Evaluation]) -> str:
    """Say what the table shows."""
    by_ece = sorted(runs, key=lambda model: runs[model].edgewise.ece)
    best, worst = (f"{display_name(model)} ({100 * runs[model].edgewise.ece:.1f})" for model in (by_ece[0], by_ece[-1]))
    return f"""\
nodewise: single nodes. edgewise: pairs of neighbors, correct if both predicted labels are. agree
and disagree: the pairs whose true labels are equal, or differ. ECE: mean distance between confidence
and accuracy; lower is better, except for agree and disagree, where even perfect probabilities have
an error (docs/views.md). On pairs of neighbors, {best} is calibrated best and {worst} worst."""


def explain_differences(epfgnn: ew.Fitted) -> str:
    """Say why GMNN and EPFGNN differ from the published ones."""
    kept_backbone = isinstance(epfgnn, FittedEPFGNN) and not epfgnn.is_coupled
    here = ", as here" if kept_backbone else ""
    return f"""\
GMNN and EPFGNN differ from the published ones (docs/reproduction.md): GMNN predicts joint
probabilities of pairs, and EPFGNN keeps its pretrained GCN if EM does not improve on it{here}."""


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="out/demo", type=Path, help="output folder, by default out/demo")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    data = ew.load_dataset("cora")
    split = ew.make_splits(data.y)[0]
    runs, trained = {}, train(data, split)
    for model, fitted in trained.items():
        fitted.save(folder / f"{model}.safetensors")
        posterior = fitted.posterior()
        posterior.save(folder / f"{model}_posterior.safetensors")
        runs[model] = ew.evaluate(posterior, data.y, data.edge_index, mask=split.test)

    print("\nTest scores on Cora, in percent: one run, and in parentheses the published mean ± std of 75 runs.\n")
    print(scores_beside_published(runs, PUBLISHED_SCORES["cora"]))
    print(f"\n{explain(runs)}\n\n{explain_differences(trained['epfgnn'])}")

    write_json(folder / "scores.json", {model: run.to_dict() for model, run in runs.items()})
    draw(runs, folder / "reliability.png")
    for model, run in runs.items():
        run.report(folder / f"{model}.html", title=f"{display_name(model)} on Cora")
    arrays = {"labels": data.y, "edges": data.edge_index, "mask": split.test}
    for name, tensor in arrays.items():
        np.save(folder / f"{name}.npy", tensor.numpy())
    options = " ".join(f"--{name} {folder / name}.npy" for name in arrays)
    command = os.path.relpath(Path(sys.executable).with_name("edgewise"))
    print(f"""
Files in {folder}:
  reliability.png                   reliability diagrams of the four models
  gcn.html, …                       a page about each model, to open in a browser
  scores.json                       all scores
  gcn.safetensors, …                the trained models, for ew.Fitted.load
  gcn_posterior.safetensors, …      their predictions
  labels.npy, edges.npy, mask.npy   what the command needs to evaluate them again:

  {command} evaluate --probs {folder}/gmnn_posterior.safetensors {options}""")


if __name__ == "__main__":
    main()
