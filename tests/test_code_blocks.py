"""Every code block of the README and of the site runs, and prints what is shown beneath it."""

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

from edgewise.cli import app

HOME = Path(__file__).parents[1]
MADE = {"reproduction/tables.md", "calibration/tables.md", "study/study.md"}  # by commands, without code
PAGES = [HOME / "README.md", *(page for page in sorted((HOME / "docs").rglob("*.md")))]
PAGES = [page for page in PAGES if str(page.relative_to(HOME)).removeprefix("docs/") not in MADE]
RUN, SHOWN = {"python", "bash"}, {"text", "bibtex"}

# Commands that no test can run on one machine in some seconds, and what runs them instead.
ELSEWHERE = {
    r"make (install|check|docs|test)": ".ci/run, which runs this test too",
    r"make demo": "tests/test_examples.py runs its script",
    r"make (bench|data)": "takes many minutes, or a network",
    r"(python -m )?pip install .*": "tests/test_wheel.py installs the wheel",
    r"ray (start|stop).*": "tests/sweep/test_ray.py starts and kills nodes of a cluster",
    r"edgewise study --out docs/study": "minutes; tests/paper/test_study.py does a small one",
    r"edgewise report docs/.*": "test_reproduction.py and test_calibration_docs.py make the tables of the docs again",
}
ONE_RUN = "--datasets cora --models gcn --splits 1 --folds 1 --inits 1"  # of the hundreds of a sweep


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line it begins on."""

    language: str
    text: str
    line: int


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Do the smallest sweep, once for all pages."""
    out = tmp_path_factory.mktemp("sweep") / "results"
    done = CliRunner().invoke(app, ["reproduce", "--out", str(out), *ONE_RUN.split()])
    assert done.exit_code == 0, done.output
    return out


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(match[1], match[2], text[: match.start()].count("\n") + 1) for match in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_every_block_runs_and_prints_what_is_shown(page, sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DGLBACKEND", "pytorch")  # else it asks, and keeps the answer at home
    mpl.use("Agg")
    names: dict[str, object] = {"__name__": "__main__"}
    blocks, has_trained = blocks_of(page), False
    for block, after in zip(blocks, [*blocks[1:], Block("", "", 0)], strict=False):
        if block.language not in RUN:
            continue
        if "import dgl" in block.text and not find_spec("dgl"):
            continue  # no DGL for this Python or system
        place = f"{page.name}:{block.line}"
        is_python = block.language == "python"
        printed = run_python(block.text, names, place) if is_python else run_bash(block.text, place, sweep)
        has_trained = has_trained or any(word in block.text for word in ("fit(", "optimizer"))
        if after.language == "text":
            assert_same(printed, after.text, has_trained, place)


def run_python(code: str, names: dict[str, object], place: str) -> str:
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore", DeprecationWarning)  # torch_geometric 2.8 with torch 2.13
        exec(compile(code, place, "exec"), names)
    return printed.getvalue()


def run_bash(text: str, place: str, sweep: Path) -> str:
    """Run each command: edgewise in this process, anything else in a shell."""
    printed = []
    for command in re.sub(r"\\\n\s*", "", text).splitlines():
        words = shlex.split(command, comments=True)
        plain = " ".join(words)
        if not words or any(re.fullmatch(pattern, plain) for pattern in ELSEWHERE):
            continue
        if words[0] == "edgewise" and not {"|", ">", "&&"} & set(words):
            printed.append(run_edgewise(words[1:], place, sweep))
        else:
            done = subprocess.run(["bash", "-euc", command], capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, f"{place}: {command}\n{done.stderr}"
            printed.append(done.stdout)
    return "".join(printed)


def run_edgewise(words: list[str], place: str, sweep: Path) -> str:
    """Run a command; a sweep finds one of its runs done, and only plans the others."""
    if words[0] == "reproduce" and "--help" not in words:
        out = Path(words[words.index("--out") + 1])
        if not out.exists():
            shutil.copytree(sweep, out)
        words = [*words, "--dry-run"]
    done = CliRunner().invoke(app, words, prog_name="edgewise")
    assert done.exit_code == 0, f"{place}: edgewise {shlex.join(words)}\n{done.output}"
    return done.stdout


def assert_same(printed: str, shown: str, is_trained: bool, place: str) -> None:
    """Compare word by word; numbers that come from training may differ a little on another kind of processor."""
    relative, absolute = (0.03, 0.01) if is_trained else (0.0, 0.0)
    number = re.compile(r"\d+\.\d+(?:e-?\d+)?")
    assert number.sub("#", printed).split() == number.sub("#", shown).split(), place
    numbers = [[float(part) for part in number.findall(text)] for text in (printed, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=relative, abs=absolute), place


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_every_block_says_what_it_is(page):
    """A block without a language, or an indented one, would be shown and not run."""
    text = page.read_text(encoding="utf-8")
    for block in blocks_of(page):
        tree = page.name == "README.md" and block.text.startswith("src/edgewise/")
        assert tree or block.language in RUN | SHOWN, f"{page.name}:{block.line}"
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"(?:^|\n\n)    [^\s*\d-][^\n]*", outside), "an indented block of code"
