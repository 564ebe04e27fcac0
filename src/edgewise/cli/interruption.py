"""Ctrl-C and SIGTERM at any moment: what a command holds is put away first."""

import os
import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

# Code that is on the stack while a module is imported, which torch and NumPy would go on with half of, having swallowed
# what is raised; while a worker is started, which would print that it got half of its orders; while a progress bar or
# a table comes or goes (not while it is shown), which would leave the cursor hidden; and while a thread is started or a
# lock is taken, which would leave another thread waiting for ever.
FILES_NOT_TO_BE_CUT = ("<frozen importlib._bootstrap>", "popen_spawn_posix.py", str(Path("cli", "progress_bar.py")))
FUNCTIONS_NOT_TO_BE_CUT = (
    *("Thread.start", "ThreadPoolExecutor.submit", "Condition.__enter__", "Condition.__exit__"),
    *("Live.start", "Live.stop"),
)
PATIENCE = 0.002  # seconds until it is looked again whether they have ended
WAITING = b"\nedgewise: Interrupted; it ends when what is being loaded is whole.\n"  # below ^C and the progress bar


class Interruption:
    """While it is entered, SIGINT and SIGTERM raise KeyboardInterrupt, at the next moment at which that does no harm.

    A second signal does not wait for it.
    """

    def __init__(self) -> None:
        self.signal = 0
        self.is_told = False  # on the terminal, so that nobody presses again
        self._has_waited = False
        self._before: dict[int, Any] = {}

    @property
    def code(self) -> int:
        """The exit code that tells which signal came; 0 if none did."""
        return 128 + self.signal if self.signal else 0

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # no other may, and no other is interrupted
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as in the background of a shell
                    self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.signal and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        is_first, self.signal = not self.signal, number
        if _is_over(frame):
            return
        if is_first and hasattr(signal, "setitimer"):  # not on Windows
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._look_again)
            self._look_again(signal.SIGALRM, frame)
            return
        raise KeyboardInterrupt

    def _look_again(self, number: int, frame: FrameType | None) -> None:
        if _is_over(frame):
            return
        if _can_be_cut(frame):
            raise KeyboardInterrupt
        if self._has_waited and not self.is_told and os.isatty(2):
            self.is_told = True
            os.write(2, WAITING)
        self._has_waited = True
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)


def _is_over(frame: FrameType | None) -> bool:
    """Tell whether handlers are being put back; a flag could be set too late."""
    while frame is not None and frame.f_code is not Interruption.__exit__.__code__:
        frame = frame.f_back
    return frame is not None


def _can_be_cut(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_qualname in FUNCTIONS_NOT_TO_BE_CUT or code.co_filename.endswith(FILES_NOT_TO_BE_CUT):
            return False
        frame = frame.f_back
    return True
