"""The command edgewise datasets."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from edgewise.cli.app import new_command
from edgewise.cli.options import paths_as_text, progress_bar
from edgewise.files.output import check_outputs, write_json

DATASETS_EXAMPLES = """\b
Examples:
  edgewise datasets
  edgewise datasets --data-root planetoid --splits-dir published_splits
"""


app = new_command()


@app.command(short_help="Compare the datasets with the published table.", epilog=DATASETS_EXAMPLES)
def datasets(
    data_root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with Planetoid's Cora/raw/ind.cora.*. Default: bundled data."),
    ] = None,
    splits_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with published splits cora/*.npz. Default: random.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of random splits.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the table as JSON.")] = None,
) -> None:
    """Print sizes, homophily and K indices of cora, citeseer and pubmed, each with the published row below."""
    check_outputs({"--json": json_file}, {})
    folders = paths_as_text({"data_root": data_root, "splits_dir": splits_dir})
    with progress_bar():
        from edgewise.data import dataset_statistics, load_dataset
        from edgewise.paper.comparison import DATASETS_FOOTER, DATASETS_HEADER, dataset_line
        from edgewise.paper.published import PUBLISHED_DATASETS
        from edgewise.sweep.sources import Sources

        sources = Sources(folders["data_root"], folders["splits_dir"], seed)
        lines, document = [DATASETS_HEADER], {}
        for name, published in PUBLISHED_DATASETS.items():
            data = load_dataset(name, data_root)
            ours = dataset_statistics(data, sources.splits(name, data))
            lines += ["", dataset_line(name, ours), dataset_line("  published", published)]
            document[name] = {"computed": asdict(ours), "published": asdict(published)}
    if json_file:
        settings = {"seed": seed, **folders}
        write_json(json_file, {"settings": settings, "datasets": document})
    typer.echo("\n".join([*lines, "", DATASETS_FOOTER]))
