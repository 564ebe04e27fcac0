"""Entry point of the command edgewise and of python -m edgewise."""

import os
import signal
import sys


def main() -> None:
    """Run the command.

    Ctrl-C during the first imports ends the process silently, as there is nothing to clean up. After an interruption
    the process exits without the interpreter's shutdown, which would wait for threads.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from edgewise.cli.app import INTERRUPTED, TERMINATED, app

    try:
        app()
    except SystemExit as end:
        if end.code not in (INTERRUPTED, TERMINATED):
            raise
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):  # closed
                continue
        os._exit(end.code)


if __name__ == "__main__":
    main()
