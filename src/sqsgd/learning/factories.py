"""Load a user's model, dataset, loss or feature extractor by the name ``package.module:factory``."""

import importlib
import inspect
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sqsgd._internal import checks


def is_factory_name(name: str) -> bool:
    """Return whether the name refers to a user's Python code rather than to something built in."""
    return ":" in name


def find_named(name: str, purpose: str) -> Any:
    """What ``package.module:name`` refers to. The module may be a file in the working folder."""
    where = f"{purpose} {name!r}:"
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(f"{where} write package.module:factory, without .py or folders: my_code:make")
    # The path of a console script lacks the working folder, where a user's file usually is. It goes to the
    # end, so that it cannot shadow an installed package.
    folder = str(Path.cwd())
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists; one of its imports does not
        without = f"; write {name.replace('.py:', ':')}, without .py" if ".py:" in name else ""
        looked = f"looked in the working folder ({folder}) and on Python's path"
        raise ValueError(f"{where} found no module {error.name!r}; {looked}{without}") from error
    except Exception as error:
        raise ValueError(f"{where} importing it failed: {one_line(error)}") from error
    if not hasattr(module, attribute):
        public = [word for word in dir(module) if word[0] != "_" and callable(getattr(module, word))]
        has = f"its public callables are: {', '.join(public) or 'none'}"
        raise ValueError(f"{where} module {module_name!r} has no {attribute!r}; {has}")
    return getattr(module, attribute)


def call_factory(name: str, purpose: str, factory: Any, **offered: Any) -> Any:
    """Return the result of a user's factory, which gets the offered arguments that it has parameters for."""
    if not callable(factory):
        raise ValueError(f"{purpose} {name!r} is a {type(factory).__name__}, not a function that makes it")
    try:
        wanted = set(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # some callables written in C have no signature
        wanted = set()
    try:
        return factory(**{key: offered[key] for key in offered.keys() & wanted})
    except Exception as error:
        raise ValueError(f"{purpose} {name!r}: the factory failed: {one_line(error)}") from error


def unknown_name(purpose: str, name: str, known: Collection[str], more: str = "") -> ValueError:
    hint, names = checks.meant(name, known), ", ".join(known)
    return ValueError(f"{purpose} {name!r} is unknown{hint} (choose {names} or package.module:factory{more})")


def one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
