"""Closed pipes, full disks, folders that cannot be written to: a clear line, the right code, old files left whole."""

import errno
import json
import os
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from helpers.command_inputs import PROBS, calibrate_args, evaluate_args, predict_args
from helpers.forked_commands import command, temporary_files
from helpers.one_thread import one_thread
from test_cli import assert_refused, run

__all__ = ["one_thread"]


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import here what the forks need."""
    folder = tmp_path_factory.mktemp("warm")
    for ending in ("png", "pdf", "svg"):
        assert run(*evaluate_args(folder), "--plot", folder / f"a.{ending}").exit_code == 0
    for ending in ("csv", "parquet"):
        assert run(*predict_args(folder), "--out", folder / f"a.{ending}").exit_code == 0
    for ending in ("npy", "safetensors"):
        assert run(*calibrate_args(folder), "--out", folder / f"a.{ending}").exit_code == 0


needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def to_dev_full(number: int) -> Callable[[], None]:
    return lambda: (os.dup2(os.open("/dev/full", os.O_WRONLY), number), None)[1]


def closed(name: str) -> Callable[[], None]:
    """Start as Python does where a shell has closed a stream by >&-."""
    return lambda: setattr(sys, name, None)


@needs_dev_full
def test_a_full_standard_output_is_told(tmp_path: Path) -> None:
    ended = command(*evaluate_args(tmp_path), "--json", tmp_path / "a.json", before=to_dev_full(1))
    assert ended.code == 2
    assert ended.stderr == "edgewise: Expected to write the output, but got: No space left on device.\n"
    assert json.loads((tmp_path / "a.json").read_text())["nodewise"]["count"] == len(PROBS)


def test_a_reader_who_goes_away_before_the_file_is_no_fault(tmp_path: Path) -> None:
    def before() -> None:
        def gone(*args: object, **kwargs: object) -> None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

        pytest.MonkeyPatch().setattr(Path, "write_text", gone)

    ended = command(*evaluate_args(tmp_path), "--json", "/dev/stdout", before=before)
    assert (ended.code, ended.stderr) == (141, "")
    assert "nodewise" in ended.stdout


@needs_dev_full
def test_a_complaint_that_nobody_can_hear_has_its_exit_code(tmp_path: Path) -> None:
    assert command("evaluate", before=to_dev_full(2)).code == 2
    assert command("evaluate", before=closed("stderr")).code == 2


def test_without_streams_the_files_are_written(tmp_path: Path) -> None:
    def before() -> None:
        closed("stdout")()
        closed("stderr")()

    assert command(*evaluate_args(tmp_path), "--json", tmp_path / "a.json", before=before).code == 0
    assert json.loads((tmp_path / "a.json").read_text())["nodewise"]["count"] == len(PROBS)


def test_what_a_terminal_cannot_show_costs_nothing(tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("😀\nעברית\ne\u0301\nd,\"'\n…\n", encoding="utf-8")

    def before() -> None:
        sys.stdout = open(1, "w", encoding="latin-1", closefd=False)  # noqa: SIM115

    ended = command(*predict_args(tmp_path), "--ids", ids, "--out", tmp_path / "a.csv", before=before)
    assert (ended.code, ended.stderr) == (0, "")
    assert "😀" in (tmp_path / "a.csv").read_text(encoding="utf-8")
    assert "Wrote 5 pairs" in ended.stdout


@pytest.mark.parametrize(
    ("name", "room"),
    [
        *((name, room) for name in ("a.json", "pairs.csv", "pairs.parquet", "pairs.json") for room in (0, 100)),
        *((name, 100) for name in ("calibrated.npy", "calibrated.safetensors")),
        *((name, 100) for name in ("a.png", "a.pdf", "a.svg")),
    ],
)
def test_a_full_disk_is_told_and_leaves_the_old_file(name: str, room: int, tmp_path: Path) -> None:
    option = {"a": "--plot", "pairs": "--out", "calibrated": "--out"}[Path(name).stem]
    option = "--json" if name == "a.json" else option
    args = {"a": evaluate_args, "pairs": predict_args, "calibrated": calibrate_args}[Path(name).stem](tmp_path)
    (tmp_path / name).write_text("old")
    ended = command(*args, option, tmp_path / name, before=lambda: limit_files(room))
    assert ended.code == 2
    assert ended.stderr.startswith(f"edgewise: Expected to write {tmp_path / name}, but got: ")
    assert "File too large" in ended.stderr and ended.stderr.count("\n") == 1
    assert (tmp_path / name).read_text() == "old"
    assert temporary_files(tmp_path) == []
    assert re.search("convergence|nodewise|temperature", ended.stdout)  # a full disk does not cost the answer


def limit_files(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def as_nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def test_a_read_only_folder_is_refused_before_the_work() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become nobody; for others tests/test_cli.py has a read-only folder")
    with TemporaryDirectory() as folder:  # the folders of pytest are closed to nobody
        Path(folder).chmod(0o755)
        ended = command(*evaluate_args(Path(folder)), "--json", Path(folder) / "a.json", before=as_nobody)
        assert (ended.code, ended.stdout) == (2, ""), ended.stderr
        assert ended.stderr.endswith("is read-only. Pass another path.\n")


# --- outputs that are something else ---


def test_an_archive_is_never_written_over(tmp_path: Path) -> None:
    _, _, _, *others = evaluate_args(tmp_path)
    np.savez(tmp_path / "all.npz", probs=PROBS)
    before = (tmp_path / "all.npz").read_bytes()
    for name in ("all.npz:probs", "all.npz"):
        args = ("evaluate", "--probs", tmp_path / name, *others, "--json", tmp_path / "all.npz")
        assert_refused(run(*args), "is named twice")
    assert (tmp_path / "all.npz").read_bytes() == before


def test_a_link_that_leads_to_itself(tmp_path: Path) -> None:
    loop = tmp_path / "loop.npy"
    loop.symlink_to(loop)
    _, _, _, *others = evaluate_args(tmp_path)
    assert_refused(run("evaluate", "--probs", loop, *others), f"Expected a file, but {loop}")
    if sys.version_info < (3, 13):  # later ones replace it
        assert_refused(run(*evaluate_args(tmp_path), "--json", loop), "is a link to itself")


def test_a_folder_that_cannot_be_one_is_refused_before_the_work(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("x")
    root = ["--data-root", tmp_path]
    assert_refused(run("study", "--out", file), f"Expected --out to be a folder, but {file} is a file.")
    assert_refused(run("study", "--out", file / "x"), "Not a directory")
    assert_refused(run("report", tmp_path, "--to", file), f"Expected --to to be a folder, but {file} is a file.")
    assert_refused(
        run("reproduce", "--out", tmp_path / "out", "--fitted", file, *root), "Expected --fitted to be a folder"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["ids.txt", "ids.csv", "ids.npy", "belief.npy", "belief.safetensors"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    args = predict_args(tmp_path)
    if name.startswith("ids"):
        assert_refused(run(*args, "--ids", tmp_path / name), f"{tmp_path / name} is a pipe or a device")
    else:
        assert_refused(run("predict", "--probs", tmp_path / name, *args[3:]), f"{tmp_path / name}")


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    name = tmp_path / ("a" * 300 + ".npy")
    _, _, _, *others = evaluate_args(tmp_path)
    assert_refused(run("evaluate", "--probs", name, *others), "but got: File name too long")
    assert_refused(run(*evaluate_args(tmp_path), "--json", name), "but got: File name too long")
