"""The workflows of GitHub fit the Makefile, pyproject.toml and the README."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import edgewise as ew

HOME = Path(__file__).parents[1]
yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install .[dev]")
WORKFLOWS = {
    file.stem: yaml.safe_load(file.read_text("utf-8")) for file in (HOME / ".github" / "workflows").glob("*.yml")
}
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]
TESTED = WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["python"]


def steps(workflow: str) -> list[dict]:
    return [step for job in WORKFLOWS[workflow]["jobs"].values() for step in job["steps"]]


def command(workflow: str, name: str) -> str:
    return next(step["run"] for step in steps(workflow) if step.get("name") == name)


def test_test_workflow_runs_the_targets_of_continuous_integration() -> None:
    makefile = (HOME / "Makefile").read_text("utf-8")
    targets = [
        target
        for step in steps("test")
        for line in step.get("run", "").splitlines()
        if line.startswith("make ")
        for target in line.split("#")[0].split()[1:]
    ]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    local = re.findall(r"^make (.*)$", (HOME / ".ci" / "run").read_text("utf-8"), re.MULTILINE)
    assert set(targets) == set(" ".join(local).split())
    assert targets[0] == "test"  # in an environment without development packages


def test_classifiers_claim_only_tested_versions_of_python() -> None:
    prefix = "Programming Language :: Python :: "
    claimed = [name.removeprefix(prefix) for name in PROJECT["classifiers"] if name.startswith(prefix + "3.")]
    assert claimed == TESTED
    assert PROJECT["requires-python"] == f">={TESTED[0]}"
    assert WORKFLOWS["release"]["jobs"]["test-wheel"]["strategy"]["matrix"]["python"] == TESTED


@pytest.mark.parametrize("name", WORKFLOWS)
def test_permissions_are_minimal_and_actions_are_pinned(name: str) -> None:
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    granted = {job: settings["permissions"] for job, settings in workflow["jobs"].items() if "permissions" in settings}
    assert granted == ({"publish": {"id-token": "write"}} if name == "release" else {})
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    actions = [step["uses"] for step in steps(name) if "uses" in step]
    version = "[0-9a-f]{40}" if name == "release" else r"v\d+"  # a tag can be moved to other code
    assert all(re.fullmatch(rf"(actions|pypa)/[\w-]+@{version}", action) for action in actions)


def test_only_torch_comes_from_a_second_package_index() -> None:
    assert "env" not in WORKFLOWS["release"]
    lines = [line for step in steps("release") for line in step.get("run", "").splitlines() if "index-url" in line]
    assert [re.search(r"pip install (\S+) --index-url", line)[1] for line in lines] == ["torch"]


def test_only_a_tested_wheel_of_a_tag_is_published() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert (jobs["publish"]["needs"], jobs["test-wheel"]["needs"]) == ("test-wheel", "build")
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"


@pytest.mark.parametrize(("tag", "code"), [(f"v{ew.__version__}", 0), ("v9.9.9", 1)])
def test_tag_must_be_the_version(tag: str, code: int) -> None:
    compare = command("release", "Compare the tag with the version")
    result = subprocess.run(["bash", "-c", compare], cwd=HOME, env={"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"})
    assert result.returncode == code


def test_release_runs_the_code_of_the_readme(tmp_path: Path) -> None:
    readme = (HOME / "README.md").read_text("utf-8")
    (tmp_path / "README.md").write_text(readme, "utf-8")
    extract = next(
        line for line in command("release", "Install the wheel and run the README").splitlines() if "sed" in line
    )
    subprocess.run(["bash", "-c", extract], cwd=tmp_path, check=True)
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert (tmp_path / "readme.py").read_text("utf-8") == "".join(blocks)
