"""Parsing, completion, progress bars and input files shared by several commands."""

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from edgewise.files.arrays import Array
    from edgewise.files.names import NameFile
    from edgewise.metrics.evaluation import Scored
    from edgewise.posterior import Posterior


NAME_PATTERN = re.compile(r'^    name(?:: ClassVar\[str\])? = "([^"]+)"$', re.MULTILINE)  # class attribute
MULTIPLE_VALUE_OPTIONS = ("--by", "--calibrators", "--columns", "--datasets", "--events", "--groups", "--models")
NOT_NAMES = ("network",)  # of classes that need an argument, so that they cannot be chosen by name
OPEN_OPTION_KEY = "edgewise.open_option"  # in the context: the option that a further value would belong to


class MultipleValues(TyperCommand):
    """Command whose options take several values, separated by commas or spaces."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its values."""
        out: list[str] = []
        open_option = ""
        for arg in args:
            if arg.startswith("-"):
                open_option = arg.split("=")[0] if arg.split("=")[0] in MULTIPLE_VALUE_OPTIONS else ""
            elif open_option and out[-1] != open_option:
                out.append(open_option)
            out.append(arg)
        context.meta[OPEN_OPTION_KEY] = open_option
        return super().parse_args(context, out)

    def shell_complete(self, context: Any, incomplete: str) -> Any:
        """Complete all values of such an option, not only the first."""
        if (option := context.meta.get(OPEN_OPTION_KEY)) and not incomplete.startswith("-"):
            return next(param.shell_complete(context, incomplete) for param in self.params if option in param.opts)
        return super().shell_complete(context, incomplete)


def complete_from(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a completion function for names, also after a comma. ``names`` is called only on completion."""

    def complete(incomplete: str) -> list[str]:
        before, comma, prefix = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(prefix.lower())]

    return complete


def names_in(package: str) -> tuple[str, ...]:
    """Return the sorted names of the classes in ``"models"`` or ``"calibration"`` that have defaults for all options.

    Files are searched as text, because importing them would import torch, and help must be fast.

    >>> {"gat", "gcn"} <= set(names_in("models"))
    True
    """
    files = (file for file in resources.files("edgewise").joinpath(package).iterdir() if file.name.endswith(".py"))
    names = {name for file in files for name in NAME_PATTERN.findall(file.read_text(encoding="utf-8"))}
    return tuple(sorted(names.difference(NOT_NAMES)))


def split_names(names: list[str] | None) -> tuple[str, ...]:
    """Split names at commas and spaces, in lower case. FILE.py:NAME keeps its case."""
    parts = [name for value in names or () for name in re.split(r"[,\s]+", value) if name]
    return tuple(name if is_place(name) else name.lower() for name in parts)


def is_place(name: str) -> bool:
    """Return whether a name of a model is FILE.py:NAME, or is meant to be.

    >>> is_place("my_models.py:GraphSAGE"), is_place("my_models.py"), is_place("GCN")
    (True, True, False)
    """
    return ":" in name or name.endswith(".py")


def paths_as_text(paths: Mapping[str, Path | None]) -> dict[str, str | None]:
    """Convert paths to text as they were typed."""
    return {name: str(path) if path else None for name, path in paths.items()}


ReportProgress = Callable[[int, int], None]  # called with the numbers of finished and of all elements
PROGRESS_DELAY_SECONDS = 1.0  # shorter work shows no bar


@contextmanager
def progress_bar(
    initial: str = "preparing", description: str = "scoring {:,} edges"
) -> Iterator[ReportProgress | None]:
    """Show a progress bar if stderr is a terminal. It restarts with every pass over the edges."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns, console = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()), Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task(initial, total=None)

    def report(done: int, total: int) -> None:
        # After a pass, the remaining work is unknown. Without a total, the bar pulses until the next pass.
        bar.tasks[0].total = total if done < total else None
        bar.update(task, description=description.format(total), completed=done)

    finished = Event()

    def show() -> None:
        if not finished.wait(PROGRESS_DELAY_SECONDS):
            with bar:
                finished.wait()

    thread = Thread(target=show, daemon=True)  # also removes the bar, so that none is left after Ctrl-C
    try:
        thread.start()
        yield report
    finally:
        finished.set()
        if thread.is_alive():  # false if its start was interrupted
            thread.join()


# Files of the commands that take predictions

FILES_HELP = """A FILE of numbers is .npy, .npz or .pt (FILE.npz:NAME and FILE.pt:NAME select an array), .csv, .tsv (a
header line is skipped) or .parquet. --probs also reads a .safetensors file of a posterior, a fitted model or a fitted
calibrator. A FILE of names is one of these, or .txt with one name per line.

Nodes are numbered from 0, in the order of the rows of --probs, and classes in the order of its columns. With --ids, a
file of edges may hold ids, and a file that selects nodes may list ids. With --classes, or if --probs is a table whose
header has the names of the classes, --labels may hold names. An empty label is unknown, like -1.
"""

ProbsOption = Annotated[
    Path | None,
    typer.Option("--probs", metavar="FILE", help="Probabilities (nodes, classes), or a .safetensors file."),
]
LogitsOption = Annotated[
    Path | None, typer.Option("--logits", metavar="FILE", help="Logits (nodes, classes), instead of --probs.")
]
NormalizeOption = Annotated[
    bool, typer.Option("--normalize", help="Divide rounded probabilities by their sums, which may differ from 1 by 2%.")
]
IdsOption = Annotated[Path | None, typer.Option("--ids", metavar="FILE", help="Ids of the nodes.")]
ClassesOption = Annotated[
    Path | None,
    typer.Option("--classes", metavar="FILE", help="Names of the classes, or a table with them in its header."),
]
LABELS_HELP = "True labels, one per node; -1 or empty if unknown."
NODES_HELP = "one boolean or 0/1 per node, or a list of ids"


@dataclass(frozen=True)
class NodeFiles:
    """Predictions, names of nodes and classes, and readers of files that refer to them.

    Every file is read when it is first needed.
    """

    probs: Path | None
    logits: Path | None
    normalize: bool
    ids: Path | None
    classes: Path | None

    def check(self) -> None:
        """Raise ValueError if options are missing or exclude each other."""
        if (self.probs is None) == (self.logits is None):
            got = "both" if self.probs else "none"
            raise ValueError(f"Expected --probs or --logits, but got {got}. Pass one of them.")
        if self.normalize and (self.probs is None or self.probs.suffix.lower() == ".safetensors"):
            got = "--logits" if self.probs is None else str(self.probs)
            raise ValueError(f"Expected --normalize with a file of probabilities, but got {got}. Omit --normalize.")

    @property
    def source(self) -> Path:
        """The file of probabilities or logits."""
        return self.probs or self.logits or Path()

    @cached_property
    def belief(self) -> "Posterior":
        """The posterior."""
        from edgewise.posterior import IndependentPosterior

        if self.logits is None:
            return read_belief(self.source, self.normalize)
        from edgewise.calibration.calibration_input import as_logits

        with name_files_in_errors(logits=self.logits):
            return IndependentPosterior(as_logits(self.raw_logits).double().softmax(-1))

    @cached_property
    def used(self) -> "Tensor | None":
        """The training and validation nodes in a file of a fitted model or calibrator, or None."""
        if self.source.suffix.lower() != ".safetensors":
            return None
        from safetensors import safe_open

        with safe_open(self.source, framework="pt") as file:
            return file.get_tensor("used") if "used" in [*file.keys()] else None

    @cached_property
    def raw_logits(self) -> "Array":
        """The content of --logits."""
        from edgewise.files.inputs import read_rows

        return read_rows(self.source, "logits (nodes, classes)")

    @property
    def num_nodes(self) -> int:
        """The number of rows of the predictions."""
        return self.belief.num_nodes if self.logits is None else len(self.raw_logits)

    @property
    def num_classes(self) -> int:
        """The number of columns of the predictions."""
        return self.belief.num_classes if self.logits is None else self.raw_logits.shape[1]

    @cached_property
    def node_ids(self) -> "NameFile | None":
        """The names of the nodes in --ids."""
        from edgewise.files.names import read_names

        return read_names(self.ids, self.num_nodes, "node") if self.ids else None

    @cached_property
    def class_names(self) -> "NameFile | None":
        """The names of the classes in --classes: a list, or the header of a table with a column per class."""
        from edgewise.files.names import read_header_names, read_names

        if self.classes is None:
            return None
        header = read_header_names(self.classes, self.num_classes) if self.num_classes > 1 else None
        return header or read_names(self.classes, self.num_classes, "class")

    @cached_property
    def header_names(self) -> "NameFile | None":
        """The names of the classes in the header of the predictions."""
        from edgewise.files.names import read_header_names

        return read_header_names(self.source, self.num_classes)

    @property
    def scored(self) -> "Scored":
        """What the file of predictions holds."""
        if self.source.suffix.lower() != ".safetensors":
            return "probs"
        return "calibrated" if "calibrator" in _metadata(self.source) else "model"

    def labels(self, path: Path) -> "NDArray[Any]":
        """Read labels: numbers, names of --classes, or names in the header of the predictions."""
        from edgewise.files.inputs import read_labels

        return read_labels(path, self.class_names or self.header_names, self.num_nodes)

    def edges(self, path: Path) -> "NDArray[Any]":
        """Read edges: numbers of nodes, or ids in --ids."""
        from edgewise.files.inputs import read_edges

        return read_edges(path, self.node_ids)

    @property
    def text_class_names(self) -> list[str] | None:
        """The names of the classes, if labels that are numbers can be told from them."""
        names = self.class_names or self.header_names
        texts = [] if names is None else names.values.tolist()
        return texts if texts and all(isinstance(text, str) and not text.isdecimal() for text in texts) else None

    def groups(self, path: Path) -> "NDArray[Any]":
        """Read the group of each node, integers or text."""
        from edgewise.files.inputs import read_groups

        return read_groups(path, self.num_nodes)

    def mask(self, path: Path) -> "NDArray[Any]":
        """Read a mask of nodes: booleans, 0 and 1, or a list of ids in --ids."""
        from edgewise.files.inputs import read_mask

        return read_mask(path, self.node_ids)


def read_belief(path: Path, normalize: bool = False) -> "Posterior":
    """Read a posterior from a file of probabilities, a posterior, a fitted model or a fitted calibrator."""
    from edgewise.files import inputs
    from edgewise.posterior import Posterior, as_posterior

    if path.suffix.lower() != ".safetensors":
        probs = inputs.read_probs(path)
        with name_files_in_errors(probs=path):
            return as_posterior(probs, normalize=normalize)
    with name_files_in_errors(probs=path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Inference of")  # printed by `convergence_warnings`
        if (format_name := _metadata(path).get("format", "")).startswith("edgewise fitted"):
            from edgewise.models import Fitted

            return Fitted.load(path).posterior()
        if format_name.startswith("edgewise calibrated"):
            from edgewise.calibration import Calibrated

            return Calibrated.load(path).posterior()
        return Posterior.load(path)


@contextmanager
def name_files_in_errors(**files: Path | None) -> Iterator[None]:
    """Append the names of the input files to a ValueError about their contents."""
    try:
        yield
    except ValueError as error:
        names = ", ".join(f"{name} is {file}" for name, file in files.items() if file and str(file) not in str(error))
        raise ValueError(f"{error} ({names})" if names else str(error)) from error


def convergence_warnings(*beliefs: object) -> list[str]:
    """Return one line per posterior whose inference did not converge."""
    reports = dict.fromkeys(getattr(belief, "convergence", None) for belief in beliefs)
    return [f"convergence: {report.advice}" for report in reports if report is not None and not report]


def _metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():  # reading a pipe would block
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError):  # `Posterior.load` reports it
        return {}
