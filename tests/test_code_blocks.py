"""Code blocks of the README and of the documentation run, and print the output shown below them."""

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import pytest
from typer.testing import CliRunner

import edgewise as ew
from edgewise.cli import app

HOME = Path(__file__).parents[1]
FOLDERS = ("reproduction/tables", "reproduction/own/tables", "benchmark/tables", "study/study")
GENERATED = {f"docs/{name}.md" for name in FOLDERS}  # without code
PAGES = ["README.md", *(str(page.relative_to(HOME)) for page in sorted((HOME / "docs").rglob("*.md")))]
PAGES = [page for page in PAGES if page not in GENERATED]
QUICK_PAGES = ["README.md", "docs/index.md", "docs/start.md"]
EXECUTED, SHOWN = {"python", "bash"}, {"text", "bibtex"}

# Commands that take too long here, or need a network or a cluster, and what runs them instead.
NOT_RUN = {
    r"make (install|check|docs|test|test-slow)": "continuous integration",
    r"make demo": "tests/test_examples.py runs its script",
    r"make (bench|bench-quick|data)": "takes many minutes, or files from a network",
    r"make (bench-scale DATA=folder|bench-uai UAI=folder)": "takes many minutes, and needs disk or files",
    r"(python -m )?pip install .*": "tests/test_wheel.py installs the wheel",
    r"ray (start|stop).*": "tests/sweep/test_ray.py starts and kills nodes of a cluster",
    r"edgewise study --out docs/study": "takes minutes; tests/paper/test_study.py runs a small one",
    r"python scripts/conformal_sizes.py .*": "takes minutes; tests/decisions/test_conformal_pairs.py runs its parts",
    r"python scripts/compare_joint_nll.py": "takes minutes; tests/test_joint_nll_page.py computes a part of its table",
    r"python scripts/compare_labelings.py": "takes minutes; tests/test_labelings_page.py computes its table",
    r"python scripts/difference_coverage.py": "takes minutes; tests/metrics/test_compare.py runs a small one",
    r"(mkdir planetoid|git clone .*)": "needs a network",
    r"edgewise reproduce .*--splits-dir .*": "needs files that are not part of the project",
    r"edgewise reproduce .*examples/graph_sage.*": "tests/sweep/test_own_models.py runs it",
    r"python scripts/gmnn_pretraining.py .*": "needs such files; test_reproduction.py runs it on other splits",
    r"(COMMON|PUBLISHED|CORE|MIXED|SAGE)=.*": "settings of the next commands",
    r"edgewise (reproduce \$COMMON|report bench) .*": "takes hours, and needs such files",
    r"python scripts/benchmark_tables.py": "test_benchmark_docs.py compares its tables with the pages",
    r"edgewise report docs/.*": "test_reproduction.py and test_benchmark_docs.py compute these tables",
}
SMALLEST_SWEEP = "--datasets cora --models gcn --splits 1 --folds 1 --inits 1"


NUMBER = re.compile(r"\d+\.\d+(?:e-?\d+)?")
INTERVAL = re.compile(r"\[[+-]?\d+\.\d+, [+-]?\d+\.\d+\]")


class Block(NamedTuple):
    """A fenced block: its language, its text, and the number of its first line."""

    language: str
    text: str
    line: int


def blocks_of(page: str) -> list[Block]:
    text = (HOME / page).read_text(encoding="utf-8")
    matches = re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(match[1], match[2], text[: match.start()].count("\n") + 1) for match in matches]


@pytest.fixture(scope="session")
def fit_once():
    """Return a replacement of `GCN.fit` that trains equal models on equal graphs and splits once."""
    fit, fitted = ew.GCN.fit, {}

    def fit_or_reuse(self, data, split, *, seed=0):
        masks = tuple(mask.numpy().tobytes() for mask in (split.train, split.val))
        key = (self, data.x.shape, data.edge_index.numpy().tobytes(), masks, seed)
        if key not in fitted:
            fitted[key] = fit(self, data, split, seed=seed)
        return fitted[key]

    return fit_or_reuse


@pytest.fixture(scope="session")
def sweep_of_one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results of a sweep with one finished run."""
    out = tmp_path_factory.mktemp("sweep") / "results"
    result = CliRunner().invoke(app, ["reproduce", "--out", str(out), *SMALLEST_SWEEP.split()])
    assert result.exit_code == 0, result.output
    return out


@pytest.mark.parametrize("page", QUICK_PAGES)
def test_blocks_run_and_print_the_shown_output(page, fit_once, tmp_path, monkeypatch):
    """Without sweeps and reports, which the next test also runs."""
    run_page(page, None, fit_once, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page not in QUICK_PAGES[1:] and blocks_of(page)])
def test_blocks_and_sweeps_run_and_print_the_shown_output(page, sweep_of_one_run, fit_once, tmp_path, monkeypatch):
    run_page(page, sweep_of_one_run, fit_once, tmp_path, monkeypatch)


def run_page(page, sweep, fit_once, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DGLBACKEND", "pytorch")  # otherwise DGL writes a configuration file to the home directory
    monkeypatch.setattr(ew.GCN, "fit", fit_once)
    mpl.use("Agg")
    names: dict[str, object] = {"__name__": "__main__"}
    blocks, has_trained = blocks_of(page), False
    for block, following in zip(blocks, [*blocks[1:], Block("", "", 0)], strict=True):
        if block.language not in EXECUTED:
            continue
        if "import dgl" in block.text and not find_spec("dgl"):
            continue  # DGL has no release for this version of Python, or for this system
        place = f"{page}:{block.line}"
        is_python = block.language == "python"
        printed = run_python(block.text, names, place) if is_python else run_bash(block.text, place, sweep)
        has_trained = has_trained or any(word in block.text for word in ("fit(", "optimizer"))
        if following.language == "text":
            assert_same_output(printed, following.text, has_trained, place)


def run_python(code: str, names: dict[str, object], place: str) -> str:
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore", DeprecationWarning)  # torch_geometric 2.8 with torch 2.13
        exec(compile(code, place, "exec"), names)
    return printed.getvalue()


def run_bash(text: str, place: str, sweep: Path | None) -> str:
    """Run each command: edgewise in this process, any other in a shell."""
    printed = []
    for command in re.sub(r"\\\n\s*", "", text).splitlines():
        words = shlex.split(command, comments=True)
        if not words or any(re.fullmatch(pattern, " ".join(words)) for pattern in NOT_RUN):
            continue
        if words[0] == "edgewise" and not {"|", ">", "&&"} & set(words):
            printed.append(run_edgewise(words[1:], place, sweep))
        else:
            result = subprocess.run(["bash", "-euc", command], capture_output=True, text=True, timeout=600, check=False)
            assert result.returncode == 0, f"{place}: {command}\n{result.stderr}"
            printed.append(result.stdout)
    return "".join(printed)


def run_edgewise(words: list[str], place: str, sweep: Path | None) -> str:
    """Run a command. Of a sweep, one run is already finished, and the others are only planned."""
    if words[0] in ("reproduce", "report") and "--help" not in words:
        if sweep is None:
            return ""
        if words[0] == "reproduce":
            out = Path(words[words.index("--out") + 1])
            if not out.exists():
                shutil.copytree(sweep, out)
            words = [*words, "--dry-run"]
    result = CliRunner().invoke(app, words, prog_name="edgewise")
    assert result.exit_code == 0, f"{place}: edgewise {shlex.join(words)}\n{result.output}"
    return result.stdout


def assert_same_output(printed: str, shown: str, is_trained: bool, place: str) -> None:
    """Compare word by word. Numbers after training may differ slightly on a different processor.

    Ends of intervals, in brackets, are quantiles of resampled errors and differ more than the errors.
    """
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split(), place
    for select, absolute in ((INTERVAL.findall, 0.02), (lambda text: [INTERVAL.sub("", text)], 0.01)):
        ours, expected = ([float(part) for part in NUMBER.findall(" ".join(select(text)))] for text in (printed, shown))
        tolerance = {"rel": 0.03, "abs": absolute} if is_trained else {"rel": 0.0, "abs": 0.0}
        assert ours == pytest.approx(expected, **tolerance), place


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_language(page):
    """Blocks without a language and indented blocks would be shown without being run."""
    text = (HOME / page).read_text(encoding="utf-8")
    for block in blocks_of(page):
        assert block.language in EXECUTED | SHOWN, f"{page}:{block.line}"
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"(?:^|\n\n)    [^\s*\d-][^\n]*", outside), "an indented block of code"
