"""The command line. Each command parses its options, calls one function, and prints the result.

Help must be fast, so modules that import torch, pyarrow, rich or matplotlib are imported in the functions that need
them. The file of a command is imported when the command is called or listed in the help.
"""

from edgewise.cli.app import app

__all__ = ["app"]
