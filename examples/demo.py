"""Score label propagation, a baseline that takes seconds, on bundled Cora: the table, JSON and reliability diagrams.

python examples/demo.py [FOLDER]        # writes to out/demo by default
"""

import os
import sys
import warnings
from pathlib import Path

import numpy as np
from torch import Tensor

import edgewise as ew
from edgewise.report.output import write_json

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch_geometric 2.8 with torch 2.13
    from torch_geometric.data import Data
    from torch_geometric.nn import LabelPropagation


def propagate_labels(data: Data, split: ew.Split) -> Tensor:
    """Spread the training labels over the graph; a node that no label reaches takes all classes for equally likely."""
    spread: Tensor = LabelPropagation(num_layers=10, alpha=0.9)(data.y, data.edge_index, mask=split.train)
    spread = spread + 1e-3  # nothing is impossible, or one surprise makes the NLL infinite
    return spread / spread.sum(1, keepdim=True)


def main() -> None:
    """Run the demo."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out/demo")
    folder.mkdir(parents=True, exist_ok=True)
    data = ew.load_dataset("cora")
    splits = ew.make_splits(data.y)
    runs = []
    for split in splits:
        probs = propagate_labels(data, split)
        runs.append(ew.evaluate(probs, data.y, data.edge_index, mask=split.test, same_label=True, n_resamples=200))
    print(f"Label propagation on Cora, split {splits[-1].split}, fold {splits[-1].fold}; intervals of 95%:\n")
    print(runs[-1])
    mean, std = (float(f([run.edgewise.ece for run in runs])) for f in (np.mean, np.std))
    print(f"\nEdgewise ECE over {len(runs)} splits and folds: {mean:.4f} ± {std:.4f}")

    write_json(folder / "scores.json", runs[-1].to_dict())
    figure, _ = ew.plot_reliability(runs, title="Label propagation on Cora")
    figure.savefig(folder / "reliability.png", dpi=200)
    arrays = {"probs": probs, "labels": data.y, "edges": data.edge_index, "mask": splits[-1].test}
    for name, tensor in arrays.items():
        np.save(folder / f"{name}.npy", tensor.numpy())
    print(f"\nWrote scores.json, reliability.png and the arrays to {folder}. The same from the command line:\n")
    options = " ".join(f"--{name} {folder / name}.npy" for name in arrays)
    command = os.path.relpath(Path(sys.executable).with_name("edgewise"))
    print(f"  {command} evaluate {options} --resamples 200")


if __name__ == "__main__":
    main()
