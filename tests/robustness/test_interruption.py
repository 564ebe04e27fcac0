"""Ctrl-C and SIGTERM at any moment: correct exit code, one line, no traceback, and no partial files."""

import json
import mmap
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from threading import Event, Thread
from types import CodeType, FrameType

import pytest

from edgewise.cli import options as cli_options
from edgewise.cli.app import Signals, print_error, print_exception
from edgewise.sweep.run_table import write_run_table
from helpers.command_inputs import calibrate_args, evaluate_args, predict_args
from helpers.fake_results import fake_results
from helpers.forked_commands import command, temporary_files
from helpers.one_thread import one_thread
from test_cli import run

__all__ = ["one_thread"]

NUM_MOMENTS = 8  # per command and signal
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
INTERRUPTED = "edgewise: Interrupted.\n"


@pytest.fixture(autouse=True)
def enable_ctrl_c() -> Iterator[None]:
    """Handle SIGINT, which a shell ignores for tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def evaluate(folder: Path) -> list[object]:
    return [*evaluate_args(folder), "--resamples", 40, "--json", folder / "out.json"]


def evaluate_and_draw(folder: Path) -> list[object]:
    return [*evaluate_args(folder), "--plot", folder / "out.png"]


def predict(folder: Path) -> list[object]:
    return [*predict_args(folder), "--out", folder / "out.json"]


def calibrate(folder: Path) -> list[object]:
    return [*calibrate_args(folder), "--out", folder / "out.npy"]


def report(folder: Path) -> list[object]:
    results = fake_results(("cora",), ("gcn",), folds=1)
    write_run_table(folder / "runs.parquet", results.runs, results.tasks, results.commands, results.failures)
    return ["report", folder / "runs.parquet", "--to", folder / "to"]


def count_calls(shared: mmap.mmap) -> Callable[[], None]:
    """Count function calls in shared memory."""

    def begin() -> None:
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"
            if calls % 100 == 0:
                shared[:8] = calls.to_bytes(8, "little")

        sys.setprofile(count)

    return begin


def signal_at_call(call: int, number: signal.Signals) -> Callable[[], None]:
    """Raise a signal at a given function call, which does not depend on the speed of the machine."""

    def begin() -> None:
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"
            if calls == call:
                sys.setprofile(None)
                signal.raise_signal(number)

        sys.setprofile(count)

    return begin


@pytest.mark.parametrize("args_in", [evaluate, calibrate, predict])
def test_signal_at_any_function_call(args_in: Callable[[Path], list[object]], tmp_path: Path) -> None:
    args = args_in(tmp_path)
    out = Path(str(args[-1]))
    assert run(*args).exit_code == 0  # imports and compiles for the forks
    old = out.read_bytes() + b" "  # longer than the new one
    shared = mmap.mmap(-1, 8)
    assert command(*args, before=count_calls(shared)).code == 0
    num_calls, rng = int.from_bytes(shared[:8], "little"), random.Random(0)
    assert num_calls > 1000
    for moment in range(NUM_MOMENTS):
        for number, code in EXIT_CODES.items():
            out.write_bytes(old)
            call = int((moment + rng.random()) / NUM_MOMENTS * num_calls)
            ended = command(*args, before=signal_at_call(call, number))
            if ended.code == -number:  # before the command started
                assert (ended.stderr, out.read_bytes()) == ("", old), call
            else:
                stderr = re.sub(r"(?m)^edgewise: Warning: .*\n", "", ended.stderr)  # about the tiny graph
                assert (ended.code, stderr.lstrip("\n")) == (code, INTERRUPTED), call
            assert out.read_bytes() in (old, old[:-1]), call  # the complete old or new file
            assert temporary_files(tmp_path) == []


def signal_in(code: CodeType, number: signal.Signals) -> Callable[[], None]:
    """Raise a signal when a function is called."""

    def begin() -> None:
        def trace(frame: FrameType, event: str, argument: object) -> None:
            if frame.f_code is code:
                sys.setprofile(None)
                signal.raise_signal(number)

        sys.setprofile(trace)

    return begin


@pytest.mark.parametrize("number", EXIT_CODES)
@pytest.mark.parametrize("function", [print_exception, print_error, Signals.__exit__])
def test_signal_while_an_error_is_printed(
    function: Callable[..., object], number: signal.Signals, tmp_path: Path
) -> None:
    args = [*evaluate(tmp_path), "--bins", 0]
    before = command(*args)
    ended = command(*args, before=signal_in(function.__code__, number))
    printed = before.stderr if function is Signals.__exit__ else ""
    assert (before.code, before.stderr.count("\n")) == (2, 1)
    assert (ended.code, ended.stderr) == (EXIT_CODES[number], printed + INTERRUPTED)


@pytest.mark.parametrize("number", EXIT_CODES)
def test_signal_after_the_work_is_done(number: signal.Signals, tmp_path: Path) -> None:
    ended = command(*evaluate(tmp_path), before=signal_in(Signals.__exit__.__code__, number))
    assert (ended.code, ended.stderr) == (EXIT_CODES[number], INTERRUPTED)
    json.loads((tmp_path / "out.json").read_text())


def signal_while_writing(name: str, number: signal.Signals) -> Callable[[], None]:
    """Raise a signal when half of a file is written."""

    def begin() -> None:
        from matplotlib.figure import Figure

        def write_half(*args: object, **kwargs: object) -> None:
            path = next(arg for arg in args if isinstance(arg, Path))
            path.write_bytes(b"half of a file")
            signal.raise_signal(number)

        setattr(*{"text": (Path, "write_text"), "figure": (Figure, "savefig")}[name], write_half)

    return begin


@pytest.mark.parametrize(
    ("args_in", "what", "number"),
    [
        (evaluate, "text", signal.SIGINT),
        (evaluate, "text", signal.SIGTERM),
        (evaluate_and_draw, "figure", signal.SIGINT),
        (report, "text", signal.SIGINT),
    ],
)
def test_signal_while_writing_keeps_the_old_file(
    args_in: Callable[[Path], list[object]], what: str, number: signal.Signals, tmp_path: Path
) -> None:
    args = args_in(tmp_path)
    (tmp_path / "out.json").write_text("old")
    (tmp_path / "out.png").write_text("old")
    ended = command(*args, before=signal_while_writing(what, number))
    assert (ended.code, ended.stderr.lstrip("\n")) == (EXIT_CODES[number], INTERRUPTED)
    assert (tmp_path / "out.json").read_text() == (tmp_path / "out.png").read_text() == "old"
    assert temporary_files(tmp_path) == []
    assert list(tmp_path.glob("to/*")) == []


def test_second_signal_does_not_interrupt_the_cleanup(tmp_path: Path) -> None:
    def begin() -> None:
        unlink, patch = Path.unlink, pytest.MonkeyPatch()
        signal_while_writing("text", signal.SIGINT)()

        def signal_and_unlink(path: Path, missing_ok: bool = False) -> None:
            patch.undo()
            signal.raise_signal(signal.SIGINT)
            unlink(path, missing_ok=missing_ok)

        patch.setattr(Path, "unlink", signal_and_unlink)

    ended = command(*evaluate(tmp_path), before=begin)
    assert (ended.code, ended.stderr.lstrip("\n")) == (130, INTERRUPTED)
    assert temporary_files(tmp_path) == []


def test_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    def begin() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for background jobs
        signal_at_call(5000, signal.SIGINT)()

    assert command(*predict(tmp_path), before=begin).code == 0


def test_third_signal_exits_immediately(tmp_path: Path) -> None:
    def begin() -> None:
        signal_while_writing("text", signal.SIGINT)()

        def never_return(path: Path, missing_ok: bool = False) -> None:
            while True:
                signal.raise_signal(signal.SIGTERM)

        pytest.MonkeyPatch().setattr(Path, "unlink", never_return)

    ended = command(*evaluate(tmp_path), before=begin)
    assert (ended.code, ended.stderr) == (143, "")


def test_signal_suppressed_by_a_library_sets_the_exit_code(tmp_path: Path) -> None:
    def begin() -> None:
        from edgewise import metrics

        score = metrics.evaluate

        def swallow(*args: object, **kwargs: object) -> object:
            with suppress(BaseException):
                signal.raise_signal(signal.SIGINT)
            return score(*args, **kwargs)

        pytest.MonkeyPatch().setattr(metrics, "evaluate", swallow)

    ended = command(*evaluate(tmp_path), before=begin)
    assert (ended.code, ended.stderr) == (130, INTERRUPTED)


def test_exit_does_not_wait_for_threads(tmp_path: Path) -> None:
    def begin() -> None:
        from edgewise import metrics

        def hang_and_interrupt(*args: object, **kwargs: object) -> None:
            Thread(target=Event().wait).start()  # the interpreter would wait for it
            signal.raise_signal(signal.SIGINT)

        pytest.MonkeyPatch().setattr(metrics, "evaluate", hang_and_interrupt)

    ended = command(*evaluate(tmp_path), before=begin)
    assert (ended.code, ended.stderr) == (130, INTERRUPTED)


INTERRUPTED_IMPORT = """
    import signal, sys
    from edgewise.__main__ import main

    class Interrupting:
        moment = sys.argv.pop(1)

        def find_spec(self, name, path=None, target=None):
            if name == self.moment:
                sys.meta_path.remove(self)
                signal.raise_signal(signal.SIGINT)

    sys.meta_path.insert(0, Interrupting())
    main()
"""


@pytest.mark.parametrize(
    ("module", "code", "stderr"),
    [
        ("typer", -signal.SIGINT, ""),  # before the command starts
        ("jaxtyping", 130, INTERRUPTED),
        ("numpy.linalg", 130, INTERRUPTED),  # torch may continue without it
    ],
)
def test_signal_while_modules_are_imported(module: str, code: int, stderr: str, tmp_path: Path) -> None:
    args = [sys.executable, "-c", dedent(INTERRUPTED_IMPORT), module, *map(str, evaluate(tmp_path))]
    done = subprocess.run(args, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == code
    assert done.stderr.endswith(stderr)  # after output of the interrupted library
    assert "Traceback" not in done.stderr
    if (out := tmp_path / "out.json").exists():
        json.loads(out.read_text())


HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def test_interruption_removes_the_progress_bar_and_shows_the_cursor(tmp_path: Path) -> None:
    def before() -> None:
        from rich.progress import Progress

        from edgewise import metrics

        patch, is_shown, start = pytest.MonkeyPatch(), Event(), Progress.start

        def start_and_notify(bar: Progress) -> None:
            start(bar)
            is_shown.set()

        def interrupt(*args: object, **kwargs: object) -> None:
            assert is_shown.wait(600)
            signal.raise_signal(signal.SIGINT)

        patch.setenv("TERM", "xterm")
        patch.setattr(Progress, "start", start_and_notify)
        patch.setattr(cli_options, "PROGRESS_DELAY_SECONDS", 0)
        patch.setattr(metrics, "evaluate", interrupt)

    ended = command(*evaluate(tmp_path), before=before, terminal=True)
    assert ended.code == 130, ended.stderr
    assert ended.stderr.count(HIDE_CURSOR) == 1
    hidden, shown = ended.stderr.rindex(HIDE_CURSOR), ended.stderr.rindex(SHOW_CURSOR)
    assert hidden < shown < ended.stderr.index(INTERRUPTED.strip())
    assert "Traceback" not in ended.stderr


def test_second_signal_prints_that_a_third_exits(tmp_path: Path) -> None:
    def before() -> None:
        from edgewise import metrics

        def interrupt_twice(*args: object, **kwargs: object) -> None:
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)

        patch = pytest.MonkeyPatch()
        patch.setenv("TERM", "xterm")
        patch.setattr(cli_options, "PROGRESS_DELAY_SECONDS", 600)
        patch.setattr(metrics, "evaluate", interrupt_twice)

    ended = command(*evaluate(tmp_path), before=before, terminal=True)
    assert ended.code == 130, ended.stderr
    assert ended.stderr.replace("\r\n", "\n").endswith("exit immediately.\n" + SHOW_CURSOR + INTERRUPTED)
