"""Write docs/api/commands.md from the help of the commands.

python scripts/show_commands.py
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from typer.testing import CliRunner

from edgewise.cli import app
from edgewise.cli.app import COMMANDS

PAGE = Path(__file__).parents[1] / "docs" / "api" / "commands.md"
INTRODUCTION = f"""# Commands

`edgewise` has {len(COMMANDS)} commands; `python -m edgewise` is equivalent. This page shows the output of `--help`.
Options with a `…` accept several values, separated by spaces or commas.

| Exit code | Meaning |
|---|---|
| 0 | success |
| 1 | some runs failed |
| 2 | invalid input; a line on stderr states what was expected |
| 130 | stopped by Ctrl-C |
| 141 | standard output was closed, for example by `head` at the end of a pipe |
| 143 | stopped by SIGTERM |

After Ctrl-C, a command cleans up first. A second Ctrl-C during that time is ignored. A third one ends it immediately.
"""


def page() -> str:
    """Return the page: an introduction, and the help of each command."""
    sections = "\n".join(f"## edgewise {name}\n\n{_help(name)}" for name in COMMANDS)
    return f"{INTRODUCTION}\n{_help()}\n{sections}"


def _help(*command: str) -> str:
    words = [*command, "--help"]
    printed = CliRunner().invoke(app, words, prog_name="edgewise").stdout
    return f"```bash\nedgewise {' '.join(words)}\n```\n\n```text\n{printed.rstrip()}\n```\n"


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
