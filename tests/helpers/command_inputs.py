"""Small input files of the commands."""

from pathlib import Path

import numpy as np

PROBS = np.array([[0.9, 0.1], [0.75, 0.25], [0.25, 0.75], [0.5, 0.5], [0.0, 1.0]])
LABELS = np.array([0, 0, 1, 1, 0])
EDGES = np.array([[0, 1, 1, 2, 3, 4], [1, 0, 2, 3, 4, 0]])


def evaluate_args(folder: Path) -> list[object]:
    """Write the input files of evaluate, and return the arguments."""
    args: list[object] = ["evaluate"]
    for name, array in {"probs": PROBS, "labels": LABELS, "edges": EDGES}.items():
        np.save(folder / f"{name}.npy", array)
        args += [f"--{name}", folder / f"{name}.npy"]
    return args


def predict_args(folder: Path) -> list[object]:
    """Write the input files of predict, and return the arguments."""
    _, *options = evaluate_args(folder)
    return ["predict", *options[:2], *options[4:6]]


def calibrate_args(folder: Path) -> list[object]:
    """Write the input files of calibrate, and return the arguments."""
    _, *args = evaluate_args(folder)
    for name, nodes in {"train": [1, 0, 0, 1, 0], "val": [0, 1, 1, 0, 1]}.items():
        np.save(folder / f"{name}.npy", np.array(nodes, dtype=bool))
        args += [f"--{name}", folder / f"{name}.npy"]
    return ["calibrate", *args]
