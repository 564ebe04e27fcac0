"""Ctrl-C and SIGTERM at any moment: what a command holds is put away first, and no import is cut in two."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

IMPORT_IN_PROGRESS = "<frozen importlib._bootstrap>"  # whose code is on the stack while a module is imported
PATIENCE = 0.02  # seconds until it is looked again whether an import has ended


class Interruption:
    """While it is entered, SIGINT and SIGTERM raise KeyboardInterrupt.

    Within an import they wait for its end, as torch and NumPy swallow what is raised there, and go on with half of a
    module. A second signal does not wait.
    """

    def __init__(self) -> None:
        self.signal = 0
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
        if is_first and hasattr(signal, "setitimer"):  # not on Windows
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._look_again)
            self._look_again(signal.SIGALRM, frame)
            return
        raise KeyboardInterrupt

    def _look_again(self, number: int, frame: FrameType | None) -> None:
        if not _is_importing(frame):
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != IMPORT_IN_PROGRESS:
        frame = frame.f_back
    return frame is not None
