"""Closed pipes, full disks and read-only folders: one clear line, correct exit code, unchanged old files."""

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
from matplotlib.figure import Figure

import edgewise
from helpers.command_inputs import PROBS, calibrate_args, evaluate_args, predict_args
from helpers.forked_commands import command, temporary_files
from helpers.one_thread import one_thread
from test_cli import assert_refused, run

__all__ = ["one_thread"]


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import modules that the forks need."""
    folder = tmp_path_factory.mktemp("warm")
    import matplotlib.backends.backend_pdf
    import matplotlib.backends.backend_svg  # noqa: F401

    assert run(*evaluate_args(folder), "--plot", folder / "a.png").exit_code == 0
    for ending in ("csv", "parquet"):
        assert run(*predict_args(folder), "--out", folder / f"a.{ending}").exit_code == 0
    for ending in ("npy", "safetensors"):
        assert run(*calibrate_args(folder), "--out", folder / f"a.{ending}").exit_code == 0


needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def to_dev_full(number: int) -> Callable[[], None]:
    return lambda: (os.dup2(os.open("/dev/full", os.O_WRONLY), number), None)[1]


def closed(name: str) -> Callable[[], None]:
    """Set a stream to None, as Python does if a shell closed it with >&-."""
    return lambda: setattr(sys, name, None)


@needs_dev_full
def test_full_standard_output_exits_with_one_line(tmp_path: Path) -> None:
    ended = command(*evaluate_args(tmp_path), "--json", tmp_path / "a.json", before=to_dev_full(1))
    assert ended.code == 2
    assert ended.stderr.startswith("edgewise: ") and ended.stderr.count("\n") == 1
    assert "No space left on device" in ended.stderr
    assert json.loads((tmp_path / "a.json").read_text())["nodewise"]["count"] == len(PROBS)


def test_pipe_closed_by_the_reader_of_a_file_exits_like_sigpipe(tmp_path: Path) -> None:
    def before() -> None:
        def raise_broken_pipe(*args: object, **kwargs: object) -> None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

        pytest.MonkeyPatch().setattr(Path, "write_text", raise_broken_pipe)

    ended = command(*evaluate_args(tmp_path), "--json", "/dev/stdout", before=before)
    assert (ended.code, ended.stderr) == (141, "")
    assert "nodewise" in ended.stdout


@needs_dev_full
def test_error_that_cannot_be_printed_sets_the_exit_code(tmp_path: Path) -> None:
    assert command("evaluate", before=to_dev_full(2)).code == 2
    assert command("evaluate", before=closed("stderr")).code == 2


def test_files_are_written_without_standard_streams(tmp_path: Path) -> None:
    def before() -> None:
        closed("stdout")()
        closed("stderr")()

    assert command(*evaluate_args(tmp_path), "--json", tmp_path / "a.json", before=before).code == 0
    assert json.loads((tmp_path / "a.json").read_text())["nodewise"]["count"] == len(PROBS)


def test_unprintable_characters_do_not_fail(tmp_path: Path) -> None:
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
def test_full_disk_exits_with_one_line_and_keeps_the_old_file(name: str, room: int, tmp_path: Path) -> None:
    option = {"a": "--plot", "pairs": "--out", "calibrated": "--out"}[Path(name).stem]
    option = "--json" if name == "a.json" else option
    args = {"a": evaluate_args, "pairs": predict_args, "calibrated": calibrate_args}[Path(name).stem](tmp_path)
    (tmp_path / name).write_text("old")

    def before() -> None:
        pytest.MonkeyPatch().setattr(edgewise, "plot_reliability", lambda ev, views: (Figure(), None))  # quick to draw
        limit_files(room)

    ended = command(*args, option, tmp_path / name, before=before)
    assert ended.code == 2
    stderr = re.sub(r"(?m)^edgewise: Warning: .*\n", "", ended.stderr)  # about the tiny graph
    assert stderr.startswith(f"edgewise: Expected to write {tmp_path / name}, but got: ")
    assert "File too large" in stderr and stderr.count("\n") == 1
    assert (tmp_path / name).read_text() == "old"
    assert temporary_files(tmp_path) == []
    assert re.search("convergence|nodewise|temperature", ended.stdout)  # the result is printed


def limit_files(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def test_read_only_folder_is_refused_before_the_work() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become nobody; for others tests/test_cli.py has a read-only folder")
    with TemporaryDirectory() as folder:  # user nobody cannot read the folders of pytest
        Path(folder).chmod(0o755)
        ended = command(*evaluate_args(Path(folder)), "--json", Path(folder) / "a.json", before=become_nobody)
        assert (ended.code, ended.stdout) == (2, ""), ended.stderr
        assert ended.stderr.endswith("is read-only. Pass another path.\n")


# --- special files ---


def test_archive_is_not_overwritten(tmp_path: Path) -> None:
    _, _, _, *others = evaluate_args(tmp_path)
    np.savez(tmp_path / "all.npz", probs=PROBS)
    before = (tmp_path / "all.npz").read_bytes()
    for name in ("all.npz:probs", "all.npz"):
        args = ("evaluate", "--probs", tmp_path / name, *others, "--json", tmp_path / "all.npz")
        assert_refused(run(*args), "is named twice")
    assert (tmp_path / "all.npz").read_bytes() == before


def test_circular_link_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop.npy"
    loop.symlink_to(loop)
    _, _, _, *others = evaluate_args(tmp_path)
    assert_refused(run("evaluate", "--probs", loop, *others), f"Expected a file, but {loop}")
    if sys.version_info < (3, 13):  # later ones replace it
        assert_refused(run(*evaluate_args(tmp_path), "--json", loop), "is a link to itself")


def test_output_folder_that_cannot_be_created_is_refused_before_the_work(tmp_path: Path) -> None:
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
def test_named_pipe_does_not_block(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    args = predict_args(tmp_path)
    if name.startswith("ids"):
        assert_refused(run(*args, "--ids", tmp_path / name), f"{tmp_path / name} is a pipe or a device")
    else:
        assert_refused(run("predict", "--probs", tmp_path / name, *args[3:]), f"{tmp_path / name}")


def test_too_long_file_name_is_refused(tmp_path: Path) -> None:
    name = tmp_path / ("a" * 300 + ".npy")
    _, _, _, *others = evaluate_args(tmp_path)
    assert_refused(run("evaluate", "--probs", name, *others), "but got: File name too long")
    assert_refused(run(*evaluate_args(tmp_path), "--json", name), "but got: File name too long")
