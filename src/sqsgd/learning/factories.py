"""Load a user's model, dataset or feature extractor by the name ``package.module:factory``."""

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


def find_factory(name: str, purpose: str) -> Callable[..., Any]:
    """The callable behind ``package.module:factory``; errors name the ``purpose`` ("model", "dataset").

    >>> find_factory("math:sqrt", "model")(9.0)
    3.0
    """
    factory = find_named(name, purpose)
    if not callable(factory):
        attribute = name.partition(":")[2]
        raise ValueError(f"{purpose} {name!r}: {attribute!r} is a {type(factory).__name__}, not a function")
    return factory  # type: ignore[no-any-return]  # callable() narrows Any to nothing more


def find_named(name: str, purpose: str) -> Any:
    """What ``package.module:name`` stands for."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(
            f"{purpose} {name!r}: write it as package.module:factory, without .py or folders; for example "
            "my_code:make for the function make in my_code.py"
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
            f"{purpose} {name!r}: there is no module {error.name!r}; looked in the working folder "
            f"({folder}) and on Python's path{without}"
        ) from error
    except Exception as error:
        raise ValueError(f"{purpose} {name!r}: importing it failed: {one_line(error)}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        names = [word for word in dir(module) if not word.startswith("_")]
        public = [word for word in names if callable(getattr(module, word))]
        raise ValueError(
            f"{purpose} {name!r}: module {module_name!r} has no {attribute!r}; "
            f"its public callables are: {', '.join(public) or 'none'}"
        ) from error


def parameter_names(factory: Callable[..., Any]) -> set[str]:
    """The names of a factory's parameters."""
    try:
        return set(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # some callables written in C have no signature
        return set()


def call_factory(name: str, purpose: str, factory: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The result of a user's factory; any exception becomes a one-line ValueError that names the factory."""
    try:
        return factory(*arguments, **named)
    except Exception as error:
        raise ValueError(f"{purpose} {name!r}: the factory failed: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """The type and the message of an exception."""
    return " ".join(f"{type(error).__name__}: {error}".split())
