"""python -m edgewise.cli."""

from edgewise.cli import app

app()
