"""Models that users define in a Python file, named as FILE.py:NAME.

The text of the file is sent to workers and executed there, so the nodes of a cluster need no copy of the file. Nothing
else is sent: what the file imports must be installed on every node.
"""

import json
import linecache
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from inspect import isabstract, isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.nn import Module

from edgewise.models import known_models
from edgewise.models.model import Model
from edgewise.models.network import Network, reason_against_call
from edgewise.suggestions import did_you_mean


@dataclass(frozen=True)
class OwnModel:
    """A model, or a class or function that makes a module, in the text of a Python file."""

    file: str
    attribute: str
    text: str

    @property
    def name(self) -> str:
        """The name in results."""
        return self.attribute.lower()

    @property
    def source_hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the text."""
        return sha256(self.text.encode()).hexdigest()[:16]

    def load(self) -> Model[Any]:
        """Execute the text, once per process, and return the model.

        A class of modules, or a function that makes one, is trained as an `edgewise.Network`.
        """
        module = _execute(self.file, self.text)
        sys.modules[module.__name__] = module  # where `Network` finds the class by its name
        if self.attribute not in vars(module):
            names = _names_of_models(module)
            raise ValueError(
                f"Expected the name of a model in {self.file} ({', '.join(names) or 'there is none'}), but got "
                f"{self.attribute!r}.{did_you_mean(self.attribute, names) or ' Check the name.'}"
            )
        found = getattr(module, self.attribute)
        if not _is_usable(found):
            kind = found.__name__ if isinstance(found, type) else type(found).__name__
            raise ValueError(
                f"Expected {self} to be a class of torch modules, a function (num_features, num_classes) that returns "
                f"a module, or a model of edgewise, but got {kind}. Name one of these instead of a trained module."
            )
        return _as_model(found, str(self))

    def __str__(self) -> str:
        return f"{self.file}:{self.attribute}"


def read_own_models(places: Iterable[str]) -> dict[str, OwnModel]:
    """Read and check models by their places FILE.py:NAME, and return them by place."""
    models: dict[str, OwnModel] = {}
    for place in dict.fromkeys(places):
        model = _read(place)
        other = next((other for other in models.values() if other.name == model.name), None)
        if model.name in known_models() or other is not None:
            raise ValueError(
                f"Expected --models with different names in results, but {place} and {other or 'a model of edgewise'} "
                f"are both named {model.name!r}. Give it another name in the file, such as my_{model.name} = "
                f"{model.attribute}, and use that."
            )
        model.load()
        models[place] = model
    return models


def _read(place: str) -> OwnModel:
    file, _, attribute = place.rpartition(":")
    path = Path(file).expanduser()
    if path.suffix != ".py" or not attribute.isidentifier():
        raise ValueError(
            f"Expected FILE.py:NAME, such as my_models.py:GraphSAGE, or a name for --models, but got {place!r}."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = f"cannot be read: {error}" if path.exists() else "does not exist"
        raise ValueError(f"Expected a Python file for --models, but {file} {reason}. Check the path.") from error
    _check_module_name(path)
    return OwnModel(str(path), attribute, text)


def _check_module_name(path: Path) -> None:
    """Raise ValueError if the name of the file is that of another module, which it would replace."""
    if path.stem in sys.modules:
        origin = getattr(sys.modules[path.stem], "__file__", None)
    else:
        spec = find_spec(path.stem) if path.stem.isidentifier() else None
        origin = spec.origin if spec is not None else str(path)
    if not path.stem.isidentifier() or origin is None or Path(origin).resolve() != path.resolve():
        if path.stem.isidentifier():
            problem, name = f"{path} has the name of {origin or 'a module of Python'}", f"{path.stem}_2"
        else:
            problem, name = f"{path} cannot be the name of a module", "my_" + re.sub(r"\W", "_", path.stem)
        raise ValueError(
            f"Expected a file that is named like no other Python module, but {problem}. Rename it, for example to "
            f"{name}.py."
        )


@cache
def _execute(file: str, text: str) -> ModuleType:
    module = ModuleType(Path(file).stem)
    module.__file__ = file
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # workers may not have the file
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # dataclasses and type hints look up their module
    try:
        exec(compile(text, file, "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        sys.modules.pop(module.__name__)
        if before is not None:
            sys.modules[module.__name__] = before
        line, reason = _line_of(error, file), " ".join(str(error).split())
        if isinstance(error, ModuleNotFoundError) and _is_next_to(file, error.name or ""):
            raise ValueError(
                f"Expected {file} to import installed packages only, because workers get its text alone, but line "
                f"{line} imports {error.name}, which is next to it. Put everything into one file."
            ) from error
        raise ValueError(
            f"Expected to execute {file}, but line {line} raised {type(error).__name__}: {reason.rstrip('.')}. Fix it, "
            'and put what is not part of the model below if __name__ == "__main__".'
        ) from error
    return module


def _is_next_to(file: str, module: str) -> bool:
    """Return whether a module is a file or folder in the same folder as a file."""
    place = Path(file).parent / module.partition(".")[0]
    return bool(module) and (place.with_suffix(".py").exists() or place.is_dir())


def _line_of(error: BaseException, file: str) -> int | None:
    """Return the last line of a file that led to an error."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return lines[-1] if lines else None


def _names_of_models(module: ModuleType) -> list[str]:
    """Return the names of what a module defines itself and that can be a model."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, Model) or (_is_usable(value) and value.__module__ == module.__name__)
    ]


def _is_usable(value: Any) -> bool:
    is_class = isinstance(value, type) and issubclass(value, (Model, Module)) and value is not Module
    return is_class or isfunction(value) or isinstance(value, Model)


def _as_model(found: Any, place: str) -> Model[Any]:
    """Return a model of a class, function or model. Raise ValueError if it cannot be run, stored or saved."""
    if isinstance(found, type) and issubclass(found, Model):
        try:
            model: Model[Any] = found()
        except TypeError as error:
            condition = "it defines all abstract methods" if isabstract(found) else "all its options have defaults"
            raise ValueError(
                f"Expected a model that can be made as {place.rpartition(':')[2]}(), but {place} cannot: {error}. "
                f"Make sure that {condition}, or name a model instead of its class."
            ) from error
    else:
        model = found if isinstance(found, Model) else Network(found)
    if isinstance(model, Network):
        _check_arguments(model, place)
    built_in = known_models().get(model.name)
    if built_in is not None and type(model) is not built_in:
        raise ValueError(
            f"Expected a model with a name of its own, but {place} has that of {built_in.__name__}. Add a line such as "
            f'name = "my_{model.name}" to its class.'
        )
    try:
        json.dumps(model.hyperparameters())
    except (TypeError, ValueError, NameError) as error:
        raise ValueError(f"Expected {place} to have options that can be stored, but got: {error}") from error
    return model


def _check_arguments(network: Network, place: str) -> None:
    """Raise ValueError if what makes the modules cannot be called with two arguments."""
    reason = reason_against_call(network.make_module, "num_features", "num_classes")
    if reason is not None:
        raise ValueError(
            f"Expected {place} to make a module from (num_features, num_classes), but calling it so would fail: "
            f"{reason}. Add a function with these two arguments that passes the others, and name it instead."
        )
