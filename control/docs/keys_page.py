"""docs/reference/keys.md: every configuration key with type, default and meaning, generated from the dataclasses.

python -m control.docs.keys_page docs/reference/keys.md
"""

import ast
import dataclasses
import inspect
import json
import sys
import textwrap
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from control.common.text import markdown_table
from trainer import models
from trainer.common.errors import LockstepError
from trainer.common.files import write_text
from trainer.config.schema import Config

HEAD = """\
# Every key of a configuration

Made from `trainer/config/schema.py` and `trainer/models/` by `make docs`; a test compares them.
How keys are set: [set what a run does](../how-to/settings.md). `-e show_config=true` prints those that a run would use.
A value of another type, or out of range, is refused with the rule.
"""
SINGLE = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`", type(None): "`null`", dict: "mapping"}
SEVERAL = {int: "whole numbers", float: "numbers", str: "texts", bool: "truth values"}


def _page() -> str:
    """The page, Markdown."""
    sections = [_section("", Config, "Of the run itself")]
    for field in dataclasses.fields(Config):
        kind = typing.get_type_hints(Config)[field.name]
        if dataclasses.is_dataclass(kind):
            sections.append(_section(f"{field.name}.", typing.cast(type, kind), f"`{field.name}`: {_first_line(kind)}"))
    return "\n".join([HEAD, *sections, _models()])


def _section(prefix: str, kind: type, title: str) -> str:
    rows = table(prefix, kind)
    return f"## {title}\n\n{rows}\n"


def _models() -> str:
    """Options of the registered models, for those that have any."""
    parts = ["## `model`: what a registered model takes\n"]
    for name, (build, meanings) in sorted(models.MODELS.items()):
        summary = (inspect.getdoc(build) or "").partition("\n")[0]
        options = [(option, one.annotation, one.default, meanings[option]) for option, one in models.options(name).items()]
        parts.append(f"### `{name}`\n\n{summary}\n\n{_table('model.', options) if options else 'No options.'}\n")
    return "\n".join(parts)


def table(prefix: str, kind: type) -> str:
    """One row per field that is not a section.

    Raises:
        LockstepError: a field without a docstring.
    """
    meanings, hints, rows = _docstrings(kind), typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            continue
        if field.name not in meanings:
            raise LockstepError(f"{kind.__name__}.{field.name}: no docstring below the field; say there what it is")
        default = field.default if field.default is not dataclasses.MISSING else typing.cast(Any, field.default_factory)()
        rows.append((field.name, hints[field.name], default, meanings[field.name]))
    return _table(prefix, rows)


def _table(prefix: str, rows: Iterable[tuple[str, Any, Any, str]]) -> str:
    """One row per key: its name, type, default and meaning."""
    # JSON is valid YAML.
    cells = [[f"`{prefix}{name}`", _type_name(hint), f"`{json.dumps(default)}`", meaning] for name, hint, default, meaning in rows]
    return markdown_table(["key", "type", "default", "meaning"], cells)


def _docstrings(kind: type) -> dict[str, str]:
    """The docstring of each field of a dataclass, in one line."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    meanings, name = {}, None
    for node in typing.cast(ast.ClassDef, tree).body:
        if isinstance(node, ast.AnnAssign):
            name = typing.cast(ast.Name, node.target).id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            meanings[name], name = " ".join(str(node.value.value).split()), None
    return meanings


def _type_name(hint: Any) -> str:
    """`int | None` as `whole number or null`; `tuple[tuple[float, float], ...]` as `list of lists of 2 numbers`."""
    if isinstance(hint, types.UnionType):
        return ", or ".join(_type_name(option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return f"list of {_several(typing.get_args(hint)[0])}"
    return SINGLE[typing.get_origin(hint) or hint]


def _several(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        inside = typing.get_args(kind)
        return f"lists of {len(inside)} {SEVERAL[inside[0]]}"
    return SEVERAL[kind]


def _first_line(kind: Any) -> str:
    summary = (inspect.getdoc(kind) or "").partition("\n")[0]
    return summary[:1].lower() + summary[1:].rstrip(".")


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), _page())
