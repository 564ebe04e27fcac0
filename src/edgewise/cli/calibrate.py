"""The command edgewise calibrate."""

from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.app import name_files_in_errors, new_command
from edgewise.cli.options import complete_from, convergence_warnings, names_in, progress_bar, read_belief
from edgewise.files.output import check_outputs, replace_file
from edgewise.suggestions import did_you_mean

if TYPE_CHECKING:
    from edgewise.calibration import Calibrated
    from edgewise.posterior import Posterior

SUFFIXES = (".safetensors", ".npy")
MAX_PRINTED_VALUES = 12  # of one learned parameter
CALIBRATORS = names_in("calibration")

CALIBRATE_HELP = f"""Calibrate node predictions on the labels of validation nodes.

A CALIBRATOR is {", ".join(CALIBRATORS[:-1])} or {CALIBRATORS[-1]}. The structured calibrator also learns the dependence
between neighbors. Its joint distributions are saved in a .safetensors file, which evaluate and predict read as --probs.
A .npy file has only the probabilities of single nodes.

Only labels of nodes in --val are used; the structured calibrator also uses those in --train. A FILE of numbers is .npy,
.npz (FILE.npz:NAME selects an array), .csv or .parquet. --probs also reads a .safetensors file of a posterior, a fitted
model or a fitted calibrator.
"""
CALIBRATE_EXAMPLES = """\b
Examples:
  edgewise calibrate --probs probs.npy --labels labels.npy --edges edges.npy \\
    --train train.npy --val val.npy --out calibrated.safetensors
  edgewise calibrate --logits logits.npy --labels labels.npy --edges edges.npy \\
    --train train.npy --val val.npy --calibrator temperature --out probs.npy
"""

app = new_command()


@app.command(help=CALIBRATE_HELP, short_help="Calibrate predictions.", epilog=CALIBRATE_EXAMPLES)
def calibrate(
    labels: Annotated[Path, typer.Option(metavar="FILE", help="True labels, one per node; -1 if unknown.")],
    edges: Annotated[Path, typer.Option(metavar="FILE", help="Edges (2, edges), in one or both directions.")],
    val: Annotated[Path, typer.Option(metavar="FILE", help="Validation nodes, one boolean or 0/1 per node.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Output file of the posterior: .safetensors or .npy.")],
    train: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Training nodes, one boolean or 0/1 per node. Default: none.")
    ] = None,
    probs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Probabilities (nodes, classes), or a .safetensors file.")
    ] = None,
    logits: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Logits (nodes, classes), instead of --probs.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Features (nodes, features), used by structured.")
    ] = None,
    calibrator: Annotated[
        str,
        typer.Option(
            metavar="CALIBRATOR", help="Name of the calibrator.", autocompletion=complete_from(lambda: CALIBRATORS)
        ),
    ] = "structured",
) -> None:
    """Read the files, calibrate, write the posterior, and print the learned parameters."""
    files = {"probs": probs, "logits": logits, "labels": labels, "edges": edges, "train": train, "val": val}
    check_outputs({"--out": out}, {**files, "features": features})
    if (probs is None) == (logits is None):
        raise ValueError(f"Expected --probs or --logits, but got {'both' if probs else 'none'}. Pass one of them.")
    if (calibrator := calibrator.lower()) not in CALIBRATORS:
        names, hint = ", ".join(CALIBRATORS), did_you_mean(calibrator, CALIBRATORS)
        raise ValueError(f"Expected --calibrator to be one of {names}, but got {calibrator!r}.{hint}")
    if out.suffix.lower() not in SUFFIXES:
        raise ValueError(f"Expected --out to end in {' or '.join(SUFFIXES)}, but got {out}.")
    with progress_bar("calibrating"):
        from edgewise.calibration import known_calibrators
        from edgewise.files import inputs

        predictions = read_belief(probs) if probs else inputs.read_rows(logits or Path(), "logits (nodes, classes)")
        y, edge_index = inputs.read_labels(labels), inputs.read_edges(edges)
        split = SimpleNamespace(train=inputs.read_mask(train) if train else None, val=inputs.read_mask(val))
        x = inputs.read_rows(features, "features (nodes, features)") if features else None
        data = SimpleNamespace(y=y, edge_index=edge_index, x=x)
        with name_files_in_errors(logits=logits or probs, y=labels, edge_index=edges, train=train, val=val, x=features):
            calibrated = known_calibrators()[calibrator]().fit(predictions, data, split)
    posterior = calibrated.posterior()
    try:
        _write(posterior, out)
    finally:  # print the result even if writing failed
        typer.echo("\n".join([_summary(calibrator, calibrated), *convergence_warnings(predictions, posterior)]))
    typer.echo(f"Wrote {posterior.num_nodes:,} nodes to {out}{_omission_note(posterior, out)}.")


def _write(posterior: "Posterior", path: Path) -> None:
    if path.suffix.lower() == ".safetensors":
        posterior.save(path)
        return
    import numpy as np

    buffer = BytesIO()  # np.save would seek in a pipe, and append a suffix to the path
    np.save(buffer, posterior.node.numpy())
    replace_file(path, lambda file: file.write_bytes(buffer.getvalue()))


def _omission_note(posterior: "Posterior", path: Path) -> str:
    from edgewise.posterior import IndependentPosterior

    if path.suffix.lower() == ".safetensors" or isinstance(posterior, IndependentPosterior):
        return ""
    return ", without the joint distributions of neighbors. Use a .safetensors file to keep them"


def _summary(calibrator: str, calibrated: "Calibrated") -> str:
    """Format the learned parameters that have few values, not those with one per node."""
    import torch

    parameters = {name: torch.as_tensor(value).flatten().tolist() for name, value in calibrated.parameters.items()}
    texts = [
        f"{name} {' '.join(f'{value:.4g}' for value in values)}"
        for name, values in parameters.items()
        if len(values) <= MAX_PRINTED_VALUES
    ]
    return f"{calibrator}: {', '.join(texts)}" if texts else f"Calibrated with {calibrator}."
