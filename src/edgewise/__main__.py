"""The command edgewise, which is python -m edgewise too."""

import signal


def main() -> None:
    """Run the command; Ctrl-C before it has begun ends it at once and in silence, as there is nothing to put away."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from edgewise.cli import app

    app()


if __name__ == "__main__":
    main()
