"""No two living workers share a folder of compiled loops, and the next command finds what they compiled."""

import sys
from pathlib import Path

import pytest

from edgewise.workers import LocalProcesses
from edgewise.workers.compiled_cache import VARIABLE, claim_cache_folder, inherited_by_children
from helpers.processes import script
from helpers.worker_jobs import work


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "numba"))
    return tmp_path / "numba"


def test_each_worker_has_a_folder_and_names_are_those_of_the_last_command(caches: Path) -> None:
    expected = {str(caches / "worker-0"), str(caches / "worker-1")}
    for _ in range(2):
        outcomes = list(LocalProcesses(2).execute(work, ["where"] * 8))
        assert {outcome.result.cache_folder for outcome in outcomes} <= expected
        assert len({outcome.result.cache_folder for outcome in outcomes}) == len(
            {outcome.result.pid for outcome in outcomes}
        )


def test_a_folder_is_taken_until_it_is_released(caches: Path) -> None:
    first, second = claim_cache_folder(), claim_cache_folder()
    assert first and second
    assert (first.path, second.path) == (caches / "worker-0", caches / "worker-1")
    first.release()
    again = claim_cache_folder()
    assert again and again.path == first.path
    again.release()
    second.release()


def test_another_command_takes_other_folders_and_gives_them_back_when_it_is_killed(
    caches: Path, tmp_path: Path
) -> None:
    text = """
        from edgewise.workers.compiled_cache import claim_cache_folder
        folder = claim_cache_folder()
        print(folder.path, flush=True)
        input()
    """
    with script(tmp_path, text) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(caches / "worker-0")
        beside = claim_cache_folder()
        assert beside and beside.path == caches / "worker-1"
        beside.release()
        process.kill()
        process.wait()
    after = claim_cache_folder()
    assert after and after.path == caches / "worker-0"
    after.release()


def test_without_a_place_to_write_numba_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "below"))
    assert claim_cache_folder() is None
    with inherited_by_children(None):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="has its folder for caches elsewhere")
def test_without_a_wish_of_the_user_it_is_below_the_usual_folder_for_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = claim_cache_folder()
    assert folder and folder.path == tmp_path / "edgewise" / "numba" / "worker-0"
    folder.release()


COMPILE = """
    from edgewise.workers import LocalProcesses

    def hits(job):
        from compiled_example import double
        assert double(21) == 42
        return sum(double.stats.cache_hits.values()), sum(double.stats.cache_misses.values())

    if __name__ == "__main__":
        for outcome in LocalProcesses(1).execute(hits, [1]):
            print(outcome.result)
"""


def test_what_a_worker_compiled_the_next_command_loads(
    caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compiled_example.py").write_text(
        "from edgewise.kernels.dispatch import compiled\n\n@compiled\ndef double(x):\n    return 2 * x\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    found = []
    for _ in range(2):
        with script(tmp_path, COMPILE) as process:
            out, errors = process.communicate(timeout=600)
            assert process.returncode == 0, errors
            found.append(out.strip())
    assert found == ["(0, 1)", "(1, 0)"]
    assert list((caches / "worker-0").rglob("compiled_example.double-*.nbc"))
