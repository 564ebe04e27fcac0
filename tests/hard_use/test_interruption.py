"""Ctrl-C and SIGTERM at any moment: the right exit code, one line, no traceback, and no half of a file."""

import json
import mmap
import os
import random
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

from edgewise.cli.app import Signals, print_error, print_exception
from edgewise.sweep.run_table import write_run_table
from helpers.command_inputs import calibrate_args, evaluate_args, predict_args
from helpers.fake_results import fake_results
from helpers.forked_commands import command, read_to_end, temporary_files
from helpers.one_thread import one_thread
from test_cli import run

__all__ = ["one_thread"]

MOMENTS = 8  # of each command and signal
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
INTERRUPTED = "edgewise: Interrupted.\n"


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """Hear SIGINT also where tests run in the background, to which a shell gives it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def evaluate(folder: Path) -> list[object]:
    return [*evaluate_args(folder), "--resamples", 5, "--json", folder / "out.json"]


def evaluate_and_draw(folder: Path) -> list[object]:
    return [*evaluate_args(folder), "--plot", folder / "out.png"]


def predict(folder: Path) -> list[object]:
    return [*predict_args(folder), "--out", folder / "out.json"]


def calibrate(folder: Path) -> list[object]:
    return [*calibrate_args(folder), "--out", folder / "out.npy"]


def report(folder: Path) -> list[object]:
    found = fake_results(("cora",), ("gcn",), folds=1)
    write_run_table(folder / "runs.parquet", found.runs, found.tasks, found.commands, found.failures)
    return ["report", folder / "runs.parquet", "--to", folder / "to"]


def count_calls(shared: mmap.mmap) -> Callable[[], None]:
    """Count calls of functions, for another process to see."""

    def begin() -> None:
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"
            if calls % 100 == 0:
                shared[:8] = calls.to_bytes(8, "little")

        sys.setprofile(count)

    return begin


def signal_at_call(which: int, number: signal.Signals) -> Callable[[], None]:
    """Send a signal at a call of a function: at the same one each time, however busy the machine is."""

    def begin() -> None:
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"
            if calls == which:
                sys.setprofile(None)
                signal.raise_signal(number)

        sys.setprofile(count)

    return begin


@pytest.mark.parametrize("args_in", [evaluate, calibrate, predict])
def test_at_any_call_of_a_function(args_in: Callable[[Path], list[object]], tmp_path: Path) -> None:
    args = args_in(tmp_path)
    out = Path(str(args[-1]))
    assert run(*args).exit_code == 0  # imports and compiles what the forks need
    old = out.read_bytes() + b" "  # longer than the new one
    shared = mmap.mmap(-1, 8)
    assert command(*args, before=count_calls(shared)).code == 0
    most, rng = int.from_bytes(shared[:8], "little"), random.Random(0)
    assert most > 1000
    for moment in range(MOMENTS):
        for number, code in CODES.items():
            out.write_bytes(old)
            which = int((moment + rng.random()) / MOMENTS * most)
            ended = command(*args, before=signal_at_call(which, number))
            if ended.code == -number:  # before the command had begun
                assert (ended.stderr, out.read_bytes()) == ("", old), which
            else:
                assert (ended.code, ended.stderr.lstrip("\n")) == (code, INTERRUPTED), which
            assert out.read_bytes() in (old, old[:-1]), which  # the old one or the new one, and whole
            assert temporary_files(tmp_path) == []


def signal_in(code: CodeType, number: signal.Signals) -> Callable[[], None]:
    """Send a signal when a function begins."""

    def begin() -> None:
        def look(frame: FrameType, event: str, argument: object) -> None:
            if frame.f_code is code:
                sys.setprofile(None)
                signal.raise_signal(number)

        sys.setprofile(look)

    return begin


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("function", [print_exception, print_error, Signals.__exit__])
def test_while_an_error_is_told(function: Callable[..., object], number: signal.Signals, tmp_path: Path) -> None:
    args = [*evaluate(tmp_path), "--bins", 0]
    before = command(*args)
    ended = command(*args, before=signal_in(function.__code__, number))
    told = before.stderr if function is Signals.__exit__ else ""
    assert (before.code, before.stderr.count("\n")) == (2, 1)
    assert (ended.code, ended.stderr) == (CODES[number], told + INTERRUPTED)


@pytest.mark.parametrize("number", CODES)
def test_when_all_is_done(number: signal.Signals, tmp_path: Path) -> None:
    ended = command(*evaluate(tmp_path), before=signal_in(Signals.__exit__.__code__, number))
    assert (ended.code, ended.stderr) == (CODES[number], INTERRUPTED)
    json.loads((tmp_path / "out.json").read_text())


def interrupted_within(name: str, number: signal.Signals) -> Callable[[], None]:
    """Send a signal when half of a file is written."""

    def begin() -> None:
        from matplotlib.figure import Figure

        def half(*args: object, **kwargs: object) -> None:
            path = next(arg for arg in args if isinstance(arg, Path))
            path.write_bytes(b"half of it")
            signal.raise_signal(number)

        setattr(*{"text": (Path, "write_text"), "figure": (Figure, "savefig")}[name], half)

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
def test_in_the_middle_of_writing(
    args_in: Callable[[Path], list[object]], what: str, number: signal.Signals, tmp_path: Path
) -> None:
    args = args_in(tmp_path)
    (tmp_path / "out.json").write_text("old")
    (tmp_path / "out.png").write_text("old")
    ended = command(*args, before=interrupted_within(what, number))
    assert (ended.code, ended.stderr.lstrip("\n")) == (CODES[number], INTERRUPTED)
    assert (tmp_path / "out.json").read_text() == (tmp_path / "out.png").read_text() == "old"
    assert temporary_files(tmp_path) == []
    assert list(tmp_path.glob("to/*")) == []


def test_a_second_signal_while_tidying_up(tmp_path: Path) -> None:
    def begin() -> None:
        unlink, patch = Path.unlink, pytest.MonkeyPatch()
        interrupted_within("text", signal.SIGINT)()

        def and_again(path: Path, missing_ok: bool = False) -> None:
            patch.undo()
            signal.raise_signal(signal.SIGINT)
            unlink(path, missing_ok=missing_ok)

        patch.setattr(Path, "unlink", and_again)

    ended = command(*evaluate(tmp_path), before=begin)
    assert (ended.code, ended.stderr.lstrip("\n")) == (130, INTERRUPTED)
    assert temporary_files(tmp_path) == []


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    def begin() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what runs in the background
        signal_at_call(5000, signal.SIGINT)()

    assert command(*predict(tmp_path), before=begin).code == 0


def test_a_third_signal_ends_what_does_not_end(tmp_path: Path) -> None:
    def begin() -> None:
        interrupted_within("text", signal.SIGINT)()

        def for_ever(path: Path, missing_ok: bool = False) -> None:
            while True:
                signal.raise_signal(signal.SIGTERM)

        pytest.MonkeyPatch().setattr(Path, "unlink", for_ever)

    ended = command(*evaluate(tmp_path), before=begin)
    assert (ended.code, ended.stderr) == (143, "")


def test_a_signal_that_a_library_swallows_is_still_in_the_exit_code(tmp_path: Path) -> None:
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


def test_no_thread_is_waited_for_at_the_end(tmp_path: Path) -> None:
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
        ("typer", -signal.SIGINT, ""),  # before a command has begun
        ("jaxtyping", 130, INTERRUPTED),
        ("numpy.linalg", 130, INTERRUPTED),  # torch may go on without
    ],
)
def test_while_modules_are_imported(module: str, code: int, stderr: str, tmp_path: Path) -> None:
    args = [sys.executable, "-c", dedent(INTERRUPTED_IMPORT), module, *map(str, evaluate(tmp_path))]
    done = subprocess.run(args, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == code
    assert done.stderr.endswith(stderr)  # above it, a library may tell of its own half
    assert "Traceback" not in done.stderr
    if (out := tmp_path / "out.json").exists():
        json.loads(out.read_text())


def on_a_terminal(script: str, *args: object, **environment: str) -> tuple[int, bytes]:
    """Run a script whose errors go to a terminal; return its exit code and what is on the terminal."""
    ours, theirs = os.openpty()
    words = [sys.executable, "-c", dedent(script), *map(str, args)]
    env = {**os.environ, "TERM": "xterm", **environment}
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=theirs, env=env) as process:
        os.close(theirs)
        (said,) = read_to_end(process.pid, ours)
    return process.returncode, said.replace(b"\r\n", b"\n")


HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


def test_a_progress_bar_goes_and_the_cursor_comes_back(tmp_path: Path) -> None:
    script = """
        import signal
        from threading import Event
        from rich.progress import Progress
        from edgewise import metrics
        from edgewise.cli import options
        from edgewise.__main__ import main

        def start_and_tell(bar, start=Progress.start):
            start(bar)
            is_shown.set()

        def interrupt(*args, **kwargs):
            assert is_shown.wait(600)
            signal.raise_signal(signal.SIGINT)

        is_shown, Progress.start = Event(), start_and_tell
        options.PROGRESS_DELAY_SECONDS, metrics.evaluate = 0, interrupt
        main()
    """
    code, said = on_a_terminal(script, *evaluate(tmp_path))
    assert code == 130, said
    assert said.count(HIDE_CURSOR) == 1
    assert said.rindex(HIDE_CURSOR) < said.rindex(SHOW_CURSOR) < said.index(INTERRUPTED.encode())
    assert b"Traceback" not in said


def test_a_terminal_is_told_that_a_third_signal_ends_it(tmp_path: Path) -> None:
    script = """
        import signal
        from edgewise import metrics
        from edgewise.cli import options
        from edgewise.__main__ import main

        def interrupt_twice(*args, **kwargs):
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)

        options.PROGRESS_DELAY_SECONDS, metrics.evaluate = 600, interrupt_twice
        main()
    """
    code, said = on_a_terminal(script, *evaluate(tmp_path))
    assert code == 130, said
    assert said.endswith(b"Once more ends it at once.\n" + SHOW_CURSOR + INTERRUPTED.encode())
