"""Running workers never share a cache folder, and later workers reuse what earlier ones compiled."""

import sys
from pathlib import Path

import pytest

from edgewise.workers import LocalProcesses
from edgewise.workers.compiled_cache import CACHE_VARIABLE, claim_cache_folder, inherited_by_children
from helpers.processes import script
from helpers.worker_jobs import cache_statistics, cache_statistics_of_two_workers, work


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "numba"))
    return tmp_path / "numba"


@pytest.mark.usefixtures("stub_torch")
def test_each_worker_has_its_own_folder_and_folder_names_are_reused(caches: Path) -> None:
    expected = {str(caches / "worker-0"), str(caches / "worker-1")}
    for _ in range(2):
        outcomes = list(LocalProcesses(2).execute(work, ["where"] * 8))
        assert {outcome.result.cache_folder for outcome in outcomes} <= expected
        assert len({outcome.result.cache_folder for outcome in outcomes}) == len(
            {outcome.result.pid for outcome in outcomes}
        )


def test_folder_is_locked_until_it_is_released(caches: Path) -> None:
    first, second = claim_cache_folder(), claim_cache_folder()
    assert first and second
    assert (first.path, second.path) == (caches / "worker-0", caches / "worker-1")
    first.release()
    again = claim_cache_folder()
    assert again and again.path == first.path
    again.release()
    second.release()


def test_folder_of_another_process_is_skipped_until_that_process_is_killed(caches: Path, tmp_path: Path) -> None:
    text = """
        from edgewise.workers.compiled_cache import claim_cache_folder
        folder = claim_cache_folder()
        print(folder.path, flush=True)
        input()
    """
    with script(tmp_path, text) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(caches / "worker-0")
        next_folder = claim_cache_folder()
        assert next_folder and next_folder.path == caches / "worker-1"
        next_folder.release()
        process.kill()
        process.wait()
    folder = claim_cache_folder()
    assert folder and folder.path == caches / "worker-0"
    folder.release()


def test_no_folder_is_claimed_if_none_can_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "below"))
    assert claim_cache_folder() is None
    with inherited_by_children(None):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="uses another cache folder")
def test_default_folder_is_in_the_cache_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = claim_cache_folder()
    assert folder and folder.path == tmp_path / "edgewise" / "numba" / "worker-0"
    folder.release()


@pytest.mark.usefixtures("stub_torch")
def test_compiled_functions_are_loaded_by_the_next_worker(
    caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compiled_example.py").write_text(
        "from numba import njit\n\n@njit(cache=True)\ndef double(x):\n    return 2 * x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)  # inherited by workers
    hits_and_misses = [outcome.result for _ in range(2) for outcome in LocalProcesses(1).execute(cache_statistics, [1])]
    assert hits_and_misses == [(0, 1), (1, 0)]
    assert list((caches / "worker-0").rglob("compiled_example.double-*.nbc"))


@pytest.mark.slow
def test_two_workers_compile_loops_of_the_package_once_each(
    caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compiled_example.py").write_text(
        "from edgewise.kernels.dispatch import compiled\n\n@compiled\ndef double(x):\n    return 2 * x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for hits_and_misses in ((0, 1), (1, 0)):
        started = tmp_path / f"started-{hits_and_misses[0]}"
        started.mkdir()
        outcomes = list(LocalProcesses(2).execute(cache_statistics_of_two_workers, [started] * 2))
        assert sorted(outcome.result for outcome in outcomes) == [
            ("worker-0", hits_and_misses),
            ("worker-1", hits_and_misses),
        ]
    for name in ("worker-0", "worker-1"):
        assert len(list((caches / name).rglob("compiled_example.double-*.nbc"))) == 1
