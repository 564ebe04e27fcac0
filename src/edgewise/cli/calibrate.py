"""edgewise calibrate."""

from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.app import complaints_name, new_command
from edgewise.cli.options import completes, convergence_warnings, names_in, progress_bar, read_belief
from edgewise.files.output import check_outputs, replace_file

if TYPE_CHECKING:
    from edgewise.calibration import Calibrated
    from edgewise.posterior import Posterior

ENDINGS = (".safetensors", ".npy")
MAX_SHOWN = 12  # numbers of one name among those that were learned
CALIBRATORS = names_in("calibration")

CALIBRATE_HELP = f"""Calibrate predictions of nodes by the labels of validation nodes.

A CALIBRATOR is {", ".join(CALIBRATORS[:-1])} or {CALIBRATORS[-1]}. The structured one also learns how far neighbors
go together: its joints are kept in a .safetensors file, which evaluate and predict take as --probs. A .npy file has the
probabilities of single nodes alone.

Only labels of nodes in --val are looked at, by the structured one those of nodes in --train too. A FILE of numbers is
.npy, .npz (FILE.npz:NAME picks one array), .csv or .parquet; --probs also takes the .safetensors of a posterior, of a
fitted model or of a fitted calibrator.
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
    labels: Annotated[Path, typer.Option(metavar="FILE", help="True labels, one a node; -1 for unknown.")],
    edges: Annotated[Path, typer.Option(metavar="FILE", help="Edges (2, edges), one or both directions.")],
    val: Annotated[Path, typer.Option(metavar="FILE", help="Validation nodes, one boolean or 0/1 each.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the posterior, .safetensors, or .npy.")],
    train: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Training nodes, one boolean or 0/1 each; else none.")
    ] = None,
    probs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Probabilities (nodes, classes); or a .safetensors file.")
    ] = None,
    logits: Annotated[Path | None, typer.Option(metavar="FILE", help="Instead: logits (nodes, classes).")] = None,
    features: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Features (nodes, features), which help structured.")
    ] = None,
    calibrator: Annotated[
        str,
        typer.Option(metavar="CALIBRATOR", help="What to calibrate by.", autocompletion=completes(lambda: CALIBRATORS)),
    ] = "structured",
) -> None:
    """Read the files, calibrate, write the posterior, print what was learned."""
    named = {"probs": probs, "logits": logits, "labels": labels, "edges": edges, "train": train, "val": val}
    check_outputs({"--out": out}, {**named, "features": features})
    if (probs is None) == (logits is None):
        raise ValueError("Expected either --probs or --logits: what to calibrate.")
    if (calibrator := calibrator.lower()) not in CALIBRATORS:
        raise ValueError(f"Expected --calibrator to be one of {', '.join(CALIBRATORS)}, but got {calibrator}.")
    if out.suffix.lower() not in ENDINGS:
        raise ValueError(f"Expected --out to end in {' or '.join(ENDINGS)}, but got {out}.")
    with progress_bar("calibrating"):
        from edgewise.calibration import known_calibrators
        from edgewise.files import inputs

        given = read_belief(probs) if probs else inputs.read_rows(logits or Path(), "logits (nodes, classes)")
        y, edge_index = inputs.read_labels(labels), inputs.read_edges(edges)
        split = SimpleNamespace(train=inputs.read_mask(train) if train else None, val=inputs.read_mask(val))
        x = inputs.read_rows(features, "features (nodes, features)") if features else None
        data = SimpleNamespace(y=y, edge_index=edge_index, x=x)
        with complaints_name(logits=logits or probs, y=labels, edge_index=edges, train=train, val=val, x=features):
            found = known_calibrators()[calibrator]().fit(given, data, split)
    posterior = found.posterior()
    try:
        _write(posterior, out)
    finally:  # a full disk must not cost the answer
        typer.echo("\n".join([_words(calibrator, found), *convergence_warnings(given, posterior)]))
    typer.echo(f"Wrote {posterior.num_nodes:,} nodes to {out}{_what_is_lost(posterior, out)}.")


def _write(posterior: "Posterior", path: Path) -> None:
    if path.suffix.lower() == ".safetensors":
        posterior.save(path)
        return
    import numpy as np

    whole = BytesIO()  # np.save would look for a place in a pipe, and add an ending to a name
    np.save(whole, posterior.node.numpy())
    replace_file(path, lambda file: file.write_bytes(whole.getvalue()))


def _what_is_lost(posterior: "Posterior", path: Path) -> str:
    from edgewise.posterior import IndependentPosterior

    if path.suffix.lower() == ".safetensors" or isinstance(posterior, IndependentPosterior):
        return ""
    return ", without the joints of neighbors, which a .safetensors file would keep"


def _words(calibrator: str, found: "Calibrated") -> str:
    """Say what was learned, if that is a few numbers and not one for each node."""
    import torch

    numbers = {name: torch.as_tensor(value).flatten().tolist() for name, value in found.parameters.items()}
    said = [
        f"{name} {' '.join(f'{number:.4g}' for number in of_name)}"
        for name, of_name in numbers.items()
        if len(of_name) <= MAX_SHOWN
    ]
    return f"{calibrator}: {', '.join(said)}" if said else f"Calibrated by {calibrator}."
