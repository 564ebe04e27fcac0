"""The command edgewise calibrate."""

from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.app import new_command
from edgewise.cli.options import (
    FILES_HELP,
    LABELS_HELP,
    NODES_HELP,
    ClassesOption,
    IdsOption,
    LogitsOption,
    NodeFiles,
    NormalizeOption,
    ProbsOption,
    complete_from,
    convergence_warnings,
    name_files_in_errors,
    names_in,
    progress_bar,
)
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

Only labels of nodes in --val are used; the structured calibrator also uses those in --train.

{FILES_HELP}"""
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
    *,
    probs: ProbsOption = None,
    logits: LogitsOption = None,
    normalize: NormalizeOption = False,
    labels: Annotated[Path, typer.Option(metavar="FILE", help=LABELS_HELP)],
    edges: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Edges (2, edges) or two columns. Only some calibrators need them."),
    ] = None,
    train: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Training nodes: {NODES_HELP}. Default: none.")
    ] = None,
    val: Annotated[Path, typer.Option(metavar="FILE", help=f"Validation nodes: {NODES_HELP}.")],
    ids: IdsOption = None,
    classes: ClassesOption = None,
    features: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Features (nodes, features), used by structured.")
    ] = None,
    calibrator: Annotated[
        str,
        typer.Option(
            metavar="CALIBRATOR", help="Name of the calibrator.", autocompletion=complete_from(lambda: CALIBRATORS)
        ),
    ] = "structured",
    out: Annotated[Path, typer.Option(metavar="FILE", help="Output file of the posterior: .safetensors or .npy.")],
) -> None:
    """Read the files, calibrate, write the posterior, and print the learned parameters."""
    files = {"probs": probs, "logits": logits, "labels": labels, "edges": edges, "train": train, "val": val}
    check_outputs({"--out": out}, {**files, "features": features, "ids": ids, "classes": classes})
    nodes = NodeFiles(probs, logits, normalize, ids, classes)
    nodes.check()
    if (calibrator := calibrator.lower()) not in CALIBRATORS:
        names, hint = ", ".join(CALIBRATORS), did_you_mean(calibrator, CALIBRATORS)
        raise ValueError(f"Expected --calibrator to be one of {names}, but got {calibrator!r}.{hint}")
    if out.suffix.lower() not in SUFFIXES:
        raise ValueError(f"Expected --out to end in {' or '.join(SUFFIXES)}, but got {out}.")
    with progress_bar("calibrating"):
        from edgewise.calibration import known_calibrators
        from edgewise.files.inputs import read_rows

        predictions = nodes.belief if probs else nodes.raw_logits
        y, edge_index = nodes.labels(labels), nodes.edges(edges) if edges else None
        split = SimpleNamespace(train=nodes.mask(train) if train else None, val=nodes.mask(val))
        x = read_rows(features, "features (nodes, features)") if features else None
        data = SimpleNamespace(y=y, edge_index=edge_index, x=x)
        with name_files_in_errors(logits=nodes.source, y=labels, edge_index=edges, train=train, val=val, x=features):
            calibrated = known_calibrators()[calibrator]().fit(predictions, data, split)
    posterior = calibrated.posterior()
    try:
        _write(posterior, calibrator, out)
    finally:  # print the result even if writing failed
        typer.echo("\n".join([_summary(calibrator, calibrated), *convergence_warnings(predictions, posterior)]))
    typer.echo(f"Wrote {posterior.num_nodes:,} nodes to {out}{_omission_note(posterior, out)}.")


def _write(posterior: "Posterior", calibrator: str, path: Path) -> None:
    if path.suffix.lower() == ".safetensors":
        posterior.save(path, calibrator=calibrator)
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
