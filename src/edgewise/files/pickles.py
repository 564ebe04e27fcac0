"""Pickles that others published, read without executing what they ask for."""

import io
import pickle
import pickletools
from collections.abc import Collection
from typing import Any


class NamedOnly(pickle.Unpickler):
    """Looks up only the names that are admitted, as (module, name)."""

    def __init__(self, stream: io.BytesIO, admitted: Collection[tuple[str, str]]) -> None:
        super().__init__(stream, encoding="latin1")  # pickles of Python 2 hold bytes as text
        self._admitted = admitted

    def find_class(self, module: str, name: str) -> Any:
        """Refuse any other name before it is looked up."""
        if (module, name) not in self._admitted:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def check_memo(stream: io.BytesIO) -> None:
    """Refuse to remember something under a number that is larger than the pickle: memory is taken up to that number."""
    start = stream.tell()
    for operation, argument, _ in pickletools.genops(stream):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(str(argument)) > len(stream.getbuffer()):
            raise pickle.UnpicklingError("it asks for too much memory")
    stream.seek(start)
