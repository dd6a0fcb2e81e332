"""Functions in a user's own Python file, and the modules beside it that it imports: found without running them."""

import ast
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from control.common import configurations
from trainer.common.errors import ConfigError
from trainer.common.suggest import nearest
from trainer.models.user_model import NAME
from trainer.user_code.user_function import Function

LARGEST = 2**20
"""Bytes of a user's file and of all modules beside it: they become a part of a run's configuration."""
LOCKSTEPS = ("trainer", "control", "plugins", "benchmarks", "lockstep")
"""Names of modules that are imported already, wherever a user's file is."""


def find(variable: str, given: str) -> Function:
    """The function that an operator variable names as `FILE.py:FUNCTION`; ConfigError if there is none at the file's top level."""
    file, colon, name = given.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        named = variable == "model" and given in configurations.names()
        instead = f"; for the configuration of that name: -e config={given}" if named else ""
        raise ConfigError(f"{variable}={given}: expected FILE.py:FUNCTION, as in {variable}=my_models.py:build{instead}")
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"{variable}={given}: no such file: {path.absolute()}")
    with _naming(f"{variable}={given}"):
        source = _read(path, path.name)
        modules = _imported(path, source)
    function = Function(path.name, name, source, str(path.resolve()), modules)
    parameters(variable, function)
    return function


def model_section(given: str) -> dict[str, str]:
    """The configuration section `model` for `FILE.py:FUNCTION`; ConfigError if there is no such function."""
    return {"name": NAME, **find("model", given).entry}


def parameters(variable: str, function: Function) -> ast.arguments:
    """The parameters of a function, from the text of its file; ConfigError if that is not Python or has no such function."""
    with _naming(f"{variable}={function.called}"):
        top = tree(function.file, function.source)
    functions = {node.name: node for node in top.body if isinstance(node, ast.FunctionDef)}
    if function.name not in functions:
        names = ", ".join(functions) or "none"
        raise ConfigError(
            f"{variable}={function.called}: no such function at the top of the file{nearest(function.name, functions)}; there are: {names}"
        )
    return functions[function.name].args


def _imported(file: Path, source: str) -> dict[str, str]:
    """Texts of the modules beside a file that it imports, directly or through one another, by path relative to its folder.

    A folder with an `__init__.py` is a module with all `.py` files in it; Python's own modules are never looked for.

    Raises:
        ConfigError: one is no Python, too large or no UTF-8, or has the name of a module of Lockstep.
    """
    texts: dict[str, str] = {}
    waiting, size = [(file.name, source)], len(source.encode())
    while waiting:
        for module in sorted(_names(*waiting.pop())):
            for path in _files(file.parent, module):
                key = path.relative_to(file.parent).as_posix()
                if key in texts:
                    continue
                texts[key] = _read(path, key)
                size += len(texts[key].encode())
                if size > LARGEST:
                    raise ConfigError(
                        f"{key}: {file.name} and the modules beside it that it imports have {size:,} bytes; they become a part of the "
                        f"run's configuration, so at most {LARGEST:,}"
                    )
                waiting.append((key, texts[key]))
    return dict(sorted(texts.items()))


def _read(path: Path, shown: str) -> str:
    """A file's text; ConfigError if it is too large or not UTF-8."""
    if path.stat().st_size > LARGEST:
        size = f"{path.stat().st_size:,} bytes; it becomes a part of the run's configuration, so at most {LARGEST:,}"
        raise ConfigError(f"{shown}: the file has {size}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{shown}: it is not UTF-8; save it as UTF-8") from None


def tree(file: str, source: str) -> ast.Module:
    """The syntax of a file's text; ConfigError if it is not Python."""
    try:
        return ast.parse(source, file)
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"not Python: {message} ({file}{where})") from None


def _names(file: str, source: str) -> set[str]:
    """Top-level names of the modules that a text imports, without Python's own."""
    names = set()
    for node in ast.walk(tree(file, source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names


def _files(folder: Path, name: str) -> list[Path]:
    """The files of a module beside a file; none if it is not there."""
    package = folder / name / "__init__.py"
    if name in LOCKSTEPS:
        own = Path(__file__).resolve().parents[2]
        if folder.resolve() != own and (package.is_file() or (folder / f"{name}.py").is_file()):
            raise ConfigError(f"{name}: a module of Lockstep has this name; rename {folder / name}")
        return []
    if package.is_file():
        return sorted(path for path in package.parent.rglob("*.py") if path.is_file())
    return [folder / f"{name}.py"] if (folder / f"{name}.py").is_file() else []


@contextlib.contextmanager
def _naming(given: str) -> Iterator[None]:
    """Begin an error with what was typed."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{given}: {error}") from None
