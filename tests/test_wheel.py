"""The wheel builds, and does what the README shows in an environment that has nothing but what it asks for."""

import os
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HOME = Path(__file__).parents[1]


def run(*command: object, **extra: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, check=False, **extra)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=HOME)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the wheel, and of what is installed here only what it asks for without extras."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    site = next(folder.glob("lib/python*/site-packages"))
    for distribution in asked_for(wheel):
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    return folder


def asked_for(wheel: Path) -> list[metadata.Distribution]:
    """Give the distributions that a wheel needs, and those that they need."""
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        waiting = wishes(message_from_bytes(archive.read(about)).get_all("Requires-Dist", []), set())
    found: dict[str, metadata.Distribution] = {}
    while waiting:
        wish = waiting.pop()
        if canonicalize_name(wish.name) not in found:
            needed = found[canonicalize_name(wish.name)] = metadata.distribution(wish.name)
            waiting += wishes(needed.requires or [], wish.extras)
    return list(found.values())


def wishes(texts: list[str], extras: set[str]) -> list[Requirement]:
    """Give the requirements that hold here with these extras."""
    cases = [{"extra": extra} for extra in extras or {""}]
    needed = map(Requirement, texts)
    return [wish for wish in needed if not wish.marker or any(map(wish.marker.evaluate, cases))]


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    here = {
        str(file.relative_to(HOME / "src"))
        for file in (HOME / "src" / "edgewise").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == here
    assert "edgewise/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_readme_runs_from_the_wheel_without_extras(environment: Path, tmp_path: Path) -> None:
    readme = (HOME / "README.md").read_text(encoding="utf-8")
    own_predictions, cora = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[:2]
    alone = {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "MPLBACKEND": "Agg"}
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG")}
    settings = {"cwd": tmp_path, "env": alone | kept}
    python = environment / "bin" / "python"

    where = run(python, "-c", "import edgewise; print(edgewise.__file__)", **settings)
    assert Path(where.strip()).is_relative_to(environment)
    import_ray = [python, "-c", "import ray"]
    missing = subprocess.run(import_ray, capture_output=True, text=True, **settings, check=False, timeout=300)
    assert "No module named 'ray'" in missing.stderr

    assert "edgewise        2,768" in run(python, "-c", own_predictions + cora, **settings)
    command = re.search(r"```bash\n(edgewise evaluate .*?)\n```", readme)[1]
    assert "nodewise" in run("bash", "-c", command, **settings)
    assert (tmp_path / "scores.json").exists()
    assert (tmp_path / "diagrams.png").exists()


def test_what_needs_an_extra_says_which(environment: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [environment / "bin" / "edgewise", "reproduce", "--out", "results", "--quick", "--ray", "local"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert "edgewise[ray]" in done.stderr


def test_import_is_quick_and_silent() -> None:
    """Nothing heavy is imported before it is used."""
    heavy = {"torch", "torch_geometric", "matplotlib", "pyarrow", "numba", "numpy", "scipy", "typer", "rich"}
    modules = run(sys.executable, "-W", "error", "-c", "import edgewise, sys; print(*sys.modules)").split()
    assert not heavy & set(modules)
