"""Load a user's model, dataset, loss or feature extractor by the name ``package.module:factory``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

IN_MEMORY = "in-memory"
"""The name in a configuration of an object that was given from Python and cannot be imported by a name."""


def is_factory_name(name: str) -> bool:
    """Whether the name refers to a user's Python code rather than to something built in.

    >>> is_factory_name("my_package.models:make"), is_factory_name("lenet5")
    (True, False)
    """
    return ":" in name


def find_named(name: str, purpose: str) -> Any:
    """The object that ``package.module:name`` refers to.

    Args:
        name: The module may also be a file in the working folder.
        purpose: What the object is for ("model", "dataset"); it begins every message.

    Raises:
        ValueError: If the name is misspelt, or the module or its attribute cannot be found or imported.

    >>> find_named("math:sqrt", "model")(9.0)
    3.0
    """
    where = f"{purpose} {name!r}:"
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(
            f"{where} write it as package.module:factory, without .py or folders; for example my_code:make "
            "for the function make in my_code.py"
        )
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
        raise ValueError(
            f"{where} there is no module {error.name!r}; looked in the working folder ({folder}) and on "
            f"Python's path{without}"
        ) from error
    except Exception as error:
        raise ValueError(f"{where} importing it failed: {one_line(error)}") from error
    if not hasattr(module, attribute):
        public = [word for word in dir(module) if word[0] != "_" and callable(getattr(module, word))]
        raise ValueError(
            f"{where} module {module_name!r} has no {attribute!r}; "
            f"its public callables are: {', '.join(public) or 'none'}"
        )
    return getattr(module, attribute)


def call_factory(name: str, purpose: str, factory: Any, **offered: Any) -> Any:
    """The result of a user's factory, which gets those of the offered arguments that it has parameters for.

    Raises:
        ValueError: If it cannot be called or fails; the message names it.
    """
    if not callable(factory):
        raise ValueError(f"{purpose} {name!r} is a {type(factory).__name__}, not a function that makes it")
    try:
        return factory(**{key: offered[key] for key in offered.keys() & _parameters(factory)})
    except Exception as error:
        raise ValueError(f"{purpose} {name!r}: the factory failed: {one_line(error)}") from error


def _parameters(factory: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # some callables written in C have no signature
        return set()


def one_line(error: Exception) -> str:
    """The type and the message of an exception."""
    return " ".join(f"{type(error).__name__}: {error}".split())
