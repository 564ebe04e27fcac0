"""Ctrl-C and SIGTERM at any moment: the right exit code, one line, no traceback, and no half of a file."""

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from threading import Condition, Event, Thread
from types import CodeType, FrameType

import pytest

from edgewise.cli.app import WAITING, Interruption, _told, complain
from edgewise.sweep.run_table import write_run_table
from hard_use.forked import command, left_over, read_to_the_end
from hard_use.inputs import calibrate_args, evaluate_args, predict_args
from one_thread import one_thread
from report.made_up_runs import made_up_results
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
    found = made_up_results(("cora",), ("gcn",), folds=1)
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
            assert left_over(tmp_path) == []


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
@pytest.mark.parametrize("code", [_told.__code__, complain.__code__, Interruption.__exit__.__code__])
def test_while_an_error_is_told(code: CodeType, number: signal.Signals, tmp_path: Path) -> None:
    args = [*evaluate(tmp_path), "--bins", 0]
    before = command(*args)
    ended = command(*args, before=signal_in(code, number))
    told = before.stderr if code is Interruption.__exit__.__code__ else ""
    assert (before.code, before.stderr.count("\n")) == (2, 1)
    assert (ended.code, ended.stderr) == (CODES[number], told + INTERRUPTED)


@pytest.mark.parametrize("number", CODES)
def test_when_all_is_done(number: signal.Signals, tmp_path: Path) -> None:
    ended = command(*evaluate(tmp_path), before=signal_in(Interruption.__exit__.__code__, number))
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
    assert left_over(tmp_path) == []
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
    assert left_over(tmp_path) == []


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    def begin() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what runs in the background
        signal_at_call(5000, signal.SIGINT)()

    assert command(*predict(tmp_path), before=begin).code == 0


def test_an_import_is_not_cut_in_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "swallows_everything.py").write_text(
        dedent("""
            import signal

            swallowed = []
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException as error:
                swallowed.append(error)
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    with Interruption() as interruption, pytest.raises(KeyboardInterrupt):
        module = import_module("swallows_everything")
        time.sleep(10)
    assert (module.swallowed, interruption.code) == ([], 130)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)) == before


def interrupt_at(moment: Callable[..., object], event: str) -> None:
    """Send SIGINT when that function is next called, or next returns."""

    def profile(frame: FrameType, what: str, arg: object) -> None:
        if (what, frame.f_code) == (event, moment.__code__):
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(profile)


@pytest.mark.parametrize(("moment", "event"), [(Condition.__enter__, "return"), (Condition.__exit__, "call")])
def test_no_lock_stays_taken(moment: Callable[..., object], event: str) -> None:
    free = Event()
    with Interruption() as interruption, pytest.raises(KeyboardInterrupt):
        interrupt_at(moment, event)
        free.set()
        time.sleep(10)
    setter = Thread(target=free.set, daemon=True)
    setter.start()
    setter.join(60)
    assert (interruption.code, setter.is_alive()) == (130, False)


def test_no_thread_is_waited_for_at_the_end() -> None:
    script = """
        import time
        from concurrent.futures import ThreadPoolExecutor
        from threading import Thread
        from edgewise.cli.app import Interruption
        from hard_use.test_interruption import interrupt_at

        with Interruption():
            threads = ThreadPoolExecutor(1)
            interrupt_at(Thread.start, "return")
            threads.submit(time.sleep, 0)
            time.sleep(10)
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    args = [sys.executable, "-c", dedent(script)]
    done = subprocess.run(args, capture_output=True, env=env, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr.split()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")


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
        ("numpy.linalg", 130, INTERRUPTED),  # which torch would go on without
    ],
)
def test_while_modules_are_imported(module: str, code: int, stderr: str, tmp_path: Path) -> None:
    args = [sys.executable, "-c", dedent(INTERRUPTED_IMPORT), module, *map(str, evaluate(tmp_path))]
    done = subprocess.run(args, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr.lstrip("\n")) == (code, stderr)
    if (out := tmp_path / "out.json").exists():  # so little is quicker done than stopped
        json.loads(out.read_text())


def on_a_terminal(script: str, *args: object, **environment: str) -> tuple[int, bytes]:
    """Run a script whose errors go to a terminal; give its exit code and what is on the terminal."""
    ours, theirs = os.openpty()
    words = [sys.executable, "-c", script, *map(str, args)]
    env = {**os.environ, "TERM": "xterm", **environment}
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=theirs, env=env) as process:
        os.close(theirs)
        (said,) = read_to_the_end(process.pid, ours)
    return process.returncode, said.replace(b"\r\n", b"\n")


def test_a_terminal_is_told_at_once_that_an_import_is_waited_for(tmp_path: Path) -> None:
    without_bar = "from edgewise.cli import progress_bar; progress_bar.PROGRESS_AFTER = 600"
    script = without_bar + dedent(INTERRUPTED_IMPORT)
    assert on_a_terminal(script, "numpy.linalg", *evaluate(tmp_path)) == (130, WAITING)  # and not once more at the end


def test_a_progress_bar_goes_when_an_import_was_waited_for(tmp_path: Path) -> None:
    (tmp_path / "waited_for.py").write_text(
        dedent("""
            import signal, time

            signal.raise_signal(signal.SIGINT)
            time.sleep(0.2)
            is_whole = True
        """)
    )
    script = """
        import sys, time
        from threading import Event
        from rich.progress import Progress
        from edgewise.cli import progress_bar
        from edgewise.cli.app import Interruption

        def start_and_tell(bar, start=Progress.start):
            start(bar)
            is_shown.set()

        is_shown, Progress.start = Event(), start_and_tell
        progress_bar.PROGRESS_AFTER = 0
        try:
            with Interruption() as interruption, progress_bar.progress_bar():
                assert is_shown.wait(200)
                import waited_for
                time.sleep(10)
        except KeyboardInterrupt:
            assert sys.modules["waited_for"].is_whole
            sys.exit(interruption.code)
    """
    code, said = on_a_terminal(dedent(script), PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    hidden, shown = b"\x1b[?25l", b"\x1b[?25h"
    assert code == 130, said
    assert said.count(WAITING) == said.count(hidden) == said.count(shown) == 1
    assert said.index(hidden) < said.index(WAITING) < said.index(shown)
    assert b"Traceback" not in said
