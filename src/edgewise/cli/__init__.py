"""The command line: each command parses, calls one function, and prints.

Help must come at once: what imports torch, pyarrow, rich or matplotlib is imported by the function that needs it.
A command's file is loaded when the command is called or help lists it.
"""

from edgewise.cli.app import app

__all__ = ["app"]
