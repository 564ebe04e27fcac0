"""The files in scripts as modules."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[2] / "scripts"


@contextmanager
def load_script(name: str) -> Iterator[ModuleType]:
    """Import ``scripts/name.py``, which is in ``sys.modules`` as long as the context lasts, as dataclasses need."""
    spec = spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[name]
