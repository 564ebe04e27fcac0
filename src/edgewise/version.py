"""The version, for those below the public names."""

__version__ = "0.1.0"
