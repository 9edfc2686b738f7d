"""Generates the reference from the program when the site is built; anything undocumented fails the build.

A page requests a part with a comment on a separate line: ``<!-- generated: commands -->``. The parts are
``commands``, ``configuration``, ``flower``, ``loop``, ``python`` and ``schemes``.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import typer.main

MARKER = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
SHORTER = (
    (r"Union\[numpy\._typing\..*?complex \| bytes \| str\]\]", "ArrayLike"),
    (r"numpy\.ndarray\[tuple\[typing\.Any, \.\.\.\], numpy\.dtype\[[\w.]+\]\]", "ndarray"),
    (r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", ""),
)
"""How types are shown in a signature."""
SECTION = re.compile(r"^(Args|Returns|Raises):\n((?:[ ]+.*(?:\n|\Z))+)", re.MULTILINE)
CODE_OR_POWER = re.compile(
    r"```.*?```|``.+?``|`[^`\n]+`|(?<=[\w)}\]])\^(?:\{([^}]+)\}|(-?\w+(?:\.\d+)?))", re.DOTALL
)


class Undocumented(Exception):
    """A public name, a command, an option or a key has no description."""


def on_page_markdown(markdown: str, **_kwargs: Any) -> str:
    """Called by MkDocs for each page before it is converted to HTML."""
    return raised(MARKER.sub(lambda match: PARTS[match[1]](), markdown))


def raised(markdown: str) -> str:
    """Typeset powers such as e^{2ε/n} and 2^20 as superscripts, except in code."""

    def one(match: re.Match[str]) -> str:
        power = match[1] or match[2]
        return f"<sup>{power.replace('-', '−')}</sup>" if power else match[0]

    return CODE_OR_POWER.sub(one, markdown)


# ---------------------------------------------------------------- the command line


def commands() -> str:
    """Every command with its arguments, options and defaults."""
    from sqsgd.cli import app

    root = typer.main.get_command(app)
    return "\n\n".join(_command(path, command) for path, command in walk(root, ("sqsgd",)))


def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaf commands, depth first."""
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from walk(child, (*path, name))
    else:
        yield path, command


def _command(path: tuple[str, ...], command: Any) -> str:
    name = " ".join(path)
    if not command.help:
        raise Undocumented(f"the command `{name}` has no docstring")
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = "".join(f" {_metavar(each)}" for each in shown if each.param_type_name == "argument")
    lines = [
        f"## {name}",
        "",
        f"```text\n{name}{arguments} [OPTIONS]\n```",
        "",
        inspect.cleandoc(command.help),
    ]
    rows = [_row(name, parameter) for parameter in shown if parameter.name != "help"]
    if rows:
        lines += ["", "| option | meaning | default |", "|---|---|---|", *rows]
    return "\n".join(lines)


def _metavar(parameter: Any) -> str:
    name = str(parameter.name).upper()
    return f"{name}..." if parameter.nargs == -1 else name


def _row(command: str, parameter: Any) -> str:
    text = getattr(parameter, "help", None)
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if not text:
        raise Undocumented(f"`{command}`: {names} has no help")
    if parameter.param_type_name == "argument":
        names = f"`{_metavar(parameter)}`"
    return f"| {names} | {_cell(text)} | {_default(parameter)} |"


def _default(parameter: Any) -> str:
    described, value = getattr(parameter, "show_default", None), parameter.default
    if isinstance(described, str):
        return described
    return f"`{value}`" if isinstance(value, int | float | str) and not isinstance(value, bool) else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# ---------------------------------------------------------------- keys of a configuration


def configuration() -> str:
    """Every key of a run's TOML file, with its meaning, type and default."""
    from sqsgd.training.settings import FIELDS, RunConfig, Settings, make_config

    lines = ["| key | meaning | type | default |", "|---|---|---|---|"]
    described = {**field_docstrings(Settings), **field_docstrings(RunConfig)}
    defaults = dataclasses.asdict(make_config({}))
    for field in dataclasses.fields(RunConfig):
        text = described.get(field.name)
        if not text:
            raise Undocumented(f"RunConfig.{field.name} has no description")
        default = json.dumps(defaults[field.name])  # these are also TOML
        kind = getattr(FIELDS[field.name], "__name__", "")
        kind = "table" if kind == "dict" else kind
        lines.append(f"| `{field.name}` | {_markdown(_cell(text))} | {kind} | `{default}` |")
    return "\n".join(lines)


def field_docstrings(cls: type) -> dict[str, str]:
    """What annotations say of a class's fields, and the docstrings below them, which Python discards."""
    (body,) = (node.body for node in ast.walk(_tree(cls)) if isinstance(node, ast.ClassDef))
    found = {}
    for node, after in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            texts = [each.value for each in ast.walk(node.annotation) if isinstance(each, ast.Constant)]
            value = after.value if isinstance(after, ast.Expr) else None
            texts += [value.value] if isinstance(value, ast.Constant) else []
            if text := " ".join(each for each in texts if isinstance(each, str)):
                found[node.target.id] = inspect.cleandoc(text)
    return found


def _tree(cls: type) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(cls)))


# ---------------------------------------------------------------- the Python interface


TASKS: dict[str, dict[str, str]] = {
    "Train": {
        "train": "", "run": "", "TrainedRun": "*", "RunConfig": "on", "PrivateClassifier": "*",
        "PrivateRegressor": "*",
    },
    "Make a report, read a report": {
        "make_scheme": "", "SCHEMES": "",
        "Scheme": "identity fingerprint bits nmse privacy tasks encode encode_many record_sum decode "
        "aggregate",
        "record_sum": "", "RecordSum": "add mean_of",
        "Task": "", "Aggregate": "add mean", "Privacy": "*", "MalformedReport": "",
    },
    "Draw noise": {"secure_rng": "", "seeded_rng": ""},
    "Plan a budget, state a guarantee": {
        "plan": "", "Plan": "*", "central_guarantee": "", "composed_guarantee": "", "Pass": "*",
        "CentralGuarantee": "*", "local_epsilon_for": "",
        "reconstruction_bound": "",
    },
    "Keep a budget": {"Ledger": "*", "Device": "*"},
    "Write a scheme": {
        "Mechanism": "layout privacy traits randomize estimate relative_error log_density",
        "Transform": "out_dim forward inverse", "PrivQuant": "privatize estimate variance log_density",
        "ScalarDP": "privatize estimate variance log_density", "Rng": "word words below uniform uniforms",
    },
}  # fmt: skip
"""Public names by task, with the members to show: ``*`` for all that are public."""


def python() -> str:
    """Every name of ``sqsgd.__all__`` by task, with its signature, its docstring and its usual members."""
    import sqsgd

    placed = [name for names in TASKS.values() for name in names]
    tasks = {**TASKS, "More": {name: "*" for name in sqsgd.__all__ if name not in placed}}
    return "\n\n".join(
        "\n\n".join(
            [f"## {task}", *(_public(name, getattr(sqsgd, name), 3, shown) for name, shown in names.items())]
        )
        for task, names in tasks.items()
        if names
    )


def loop() -> str:
    """The building blocks of a custom training loop."""
    from sqsgd import training

    names = ("Settings", "State", "Record", "initial_state", "client_step", "server_step")
    parts = [_public(name, getattr(training, name)) for name in names]
    return "\n\n".join(parts)


def flower() -> str:
    """Every name of ``sqsgd.federation.flower.__all__``."""
    import sqsgd.flower

    return "\n\n".join(_public(name, getattr(sqsgd.flower, name)) for name in sqsgd.flower.__all__)


def schemes() -> str:
    """Every scheme with its options."""
    from sqsgd import SCHEMES

    return "\n\n".join(
        f"## {name}\n\n{_signature(name, function, quoted=True)}\n\n{_docstring(name, function)}"
        for name, function in SCHEMES.items()
    )


def _public(name: str, value: Any, level: int = 2, shown: str = "*") -> str:
    heading = f"{'#' * level} {name}"
    if not inspect.isclass(value) and not inspect.isfunction(value):
        return f"{heading}\n\n{_constant(name)}"
    lines = [heading, _signature(name, value), _docstring(name, value)]
    if inspect.isclass(value):
        own = [base for base in reversed(value.__mro__) if base.__module__ == value.__module__]
        described = {field: text for base in own for field, text in field_docstrings(base).items()}
        lines += [f"`{field}`\n:   {_markdown(_cell(text))}" for field, text in described.items()]
        members = {member: raw for base in own for member, raw in vars(base).items()}
        lines += [
            _member(name, member, raw, level + 1)
            for member, raw in members.items()
            if _is_public(member, raw) and (shown == "*" or member in shown.split())
        ]
    return "\n\n".join(lines)


def _constant(name: str) -> str:
    """The docstring below a constant, in the module that defines it."""
    import sqsgd.schemes

    (text,) = _constants(inspect.getsource(sqsgd.schemes), name) or [""]
    if not text:
        raise Undocumented(f"sqsgd.{name} has no docstring below it")
    return _markdown(text)


def _constants(source: str, name: str) -> list[str]:
    body = ast.parse(source).body
    return [
        inspect.cleandoc(after.value.value)
        for node, after in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    ]


def _is_public(name: str, raw: Any) -> bool:
    kinds = (property, functools.cached_property, classmethod, staticmethod)
    return not name.startswith("_") and (inspect.isfunction(raw) or isinstance(raw, kinds))


def _member(owner: str, name: str, raw: Any, level: int) -> str:
    inner = (getattr(raw, attribute, None) for attribute in ("__func__", "fget", "func"))
    function = next(filter(None, inner), raw)
    text, heading = _docstring(f"{owner}.{name}", function), f"{'#' * level} {owner}.{name}"
    if isinstance(raw, property | functools.cached_property):
        return f"{heading}\n\n{text}"
    return f"{heading}\n\n{_signature(name, function)}\n\n{text}"


def _signature(name: str, value: Any, *, quoted: bool = False) -> str:
    signature = inspect.signature(value)
    kept = [
        parameter.replace(annotation=inspect.Parameter.empty if quoted else _type(parameter.annotation))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls") and not parameter.name.startswith("_")
    ]
    if quoted:
        return _block(f'make_scheme("{name}", {", ".join(map(str, kept))})')
    line = re.sub(r"(: |-> )'([^']*)'", r"\1\2", f"{name}{signature.replace(parameters=kept)}")
    for pattern, short in SHORTER:
        line = re.sub(pattern, short, line)
    return _block(line.removesuffix(" -> None").replace("<factory>", "..."))


def _type(annotation: Any) -> Any:
    """The type of an annotation, without the description of the field."""
    if isinstance(annotation, str) and annotation.startswith("Annotated["):
        (inner,) = (node.slice for node in ast.walk(ast.parse(annotation)) if isinstance(node, ast.Subscript)
                    and getattr(node.value, "id", "") == "Annotated")  # fmt: skip
        return ast.unparse(inner.elts[0])  # type: ignore[attr-defined]
    return annotation


def _block(line: str) -> str:
    return "```text\n" + "\n".join(textwrap.wrap(line, 80, subsequent_indent="    ")) + "\n```"


def _docstring(name: str, value: Any) -> str:
    text = value.__doc__
    if not text or text.startswith(f"{name}("):  # what dataclasses generate
        raise Undocumented(f"`{name}` has no docstring")
    return _markdown(inspect.cleandoc(text))


def _markdown(text: str) -> str:
    """Convert a docstring to Markdown: headings, roles and examples."""
    text = re.sub(r"^(\w+)\n-{3,}$", r"**\1**\n", text, flags=re.MULTILINE)
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", text)
    text = SECTION.sub(_section, text)
    parts = [
        f"```pycon\n{part}\n```" if part.lstrip().startswith(">>>") else part for part in text.split("\n\n")
    ]
    return "\n\n".join(parts)


def _section(match: re.Match[str]) -> str:
    """The arguments and errors of a docstring as a list, its result as a paragraph."""
    title, body = match[1], textwrap.dedent(match[2]).strip()
    if title == "Returns":
        return f"**Returns**\n\n{' '.join(body.split())}\n"
    entries = (" ".join(entry.split()) for entry in re.split(r"\n(?=\S)", body))
    return f"**{title}**\n\n" + "".join(re.sub(r"^([^:]+): ", r"* `\1`: ", each) + "\n" for each in entries)


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "configuration": configuration,
    "flower": flower,
    "loop": loop,
    "python": python,
    "schemes": schemes,
}
