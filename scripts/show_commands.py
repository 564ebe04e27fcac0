"""Writes the page of commands, docs/api/commands.md, as their help says.

python scripts/show_commands.py
"""

from pathlib import Path

from typer.testing import CliRunner

from edgewise.cli import app
from edgewise.cli.app import COMMANDS

PAGE = Path(__file__).parents[1] / "docs" / "api" / "commands.md"
INTRODUCTION = f"""# Commands

`edgewise` is one command with {len(COMMANDS)} others in it; `python -m edgewise` is the same. What is shown here is
what `--help` prints. Commands end with code 0, with 1 where some runs failed, with 2 where what was given cannot be
used (one line says what was expected), with 130 after Ctrl-C, with 143 after SIGTERM, and with 141 where the reader of
a pipe has gone, as in `edgewise datasets | head -0`. After Ctrl-C they clean up; a second Ctrl-C meanwhile is ignored,
and a third ends them at once. Options with a `…` take several values, by spaces or by commas.
"""


def page() -> str:
    """Write an introduction, and the help of each command."""
    shown = "\n".join(f"## edgewise {name}\n\n{_help(name)}" for name in COMMANDS)
    return f"{INTRODUCTION}\n{_help()}\n{shown}"


def _help(*command: str) -> str:
    words = [*command, "--help"]
    printed = CliRunner().invoke(app, words, prog_name="edgewise").stdout
    return f"```bash\nedgewise {' '.join(words)}\n```\n\n```text\n{printed.rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
