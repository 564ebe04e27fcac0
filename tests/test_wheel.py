"""The wheel builds, and the README runs in an environment with only its required dependencies."""

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
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, check=False, **extra)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=HOME)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with the wheel and its required dependencies, linked from this environment."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    site = next(folder.glob("lib/python*/site-packages"))
    for distribution in required_distributions(wheel):
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    return folder


def required_distributions(wheel: Path) -> list[metadata.Distribution]:
    """Return the distributions that a wheel requires, directly or indirectly."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata_file,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        texts = message_from_bytes(archive.read(metadata_file)).get_all("Requires-Dist", [])
    pending = active_requirements(texts, set())
    required: dict[str, metadata.Distribution] = {}
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if name not in required:
            required[name] = metadata.distribution(requirement.name)
            pending += active_requirements(required[name].requires or [], requirement.extras)
    return list(required.values())


def active_requirements(texts: list[str], extras: set[str]) -> list[Requirement]:
    """Return the requirements whose markers are true here, with these extras."""
    environments = [{"extra": extra} for extra in extras or {""}]
    requirements = map(Requirement, texts)
    return [one for one in requirements if not one.marker or any(map(one.marker.evaluate, environments))]


@pytest.mark.slow
def test_wheel_contains_only_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    in_source = {
        str(file.relative_to(HOME / "src"))
        for file in (HOME / "src" / "edgewise").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == in_source
    assert "edgewise/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_readme_runs_from_the_wheel_without_extras(environment: Path, tmp_path: Path) -> None:
    readme = (HOME / "README.md").read_text(encoding="utf-8")
    own_predictions, cora = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[:2]
    variables = {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "MPLBACKEND": "Agg"}
    inherited = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG")}
    settings = {"cwd": tmp_path, "env": variables | inherited}
    python = environment / "bin" / "python"

    location = run(python, "-c", "import edgewise; print(edgewise.__file__)", **settings)
    assert Path(location.strip()).is_relative_to(environment)
    import_ray = [python, "-c", "import ray"]
    missing = subprocess.run(import_ray, capture_output=True, text=True, **settings, check=False, timeout=600)
    assert "No module named 'ray'" in missing.stderr

    assert "edgewise        2,768" in run(python, "-c", own_predictions + cora, **settings)
    command = re.search(r"```bash\n(edgewise evaluate .*?)\n```", readme)[1]
    assert "nodewise" in run("bash", "-c", command, **settings)
    assert (tmp_path / "scores.json").exists()
    assert "<title>" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_missing_extra_is_named(environment: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [environment / "bin" / "edgewise", "reproduce", "--out", "results", "--quick", "--ray", "local"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
        check=False,
    )
    assert result.returncode == 2
    assert "edgewise[ray]" in result.stderr


def test_import_loads_no_large_package() -> None:
    large = {"torch", "torch_geometric", "matplotlib", "pyarrow", "numba", "numpy", "scipy", "typer", "rich"}
    modules = run(sys.executable, "-W", "error", "-c", "import edgewise, sys; print(*sys.modules)").split()
    assert not large & set(modules)
