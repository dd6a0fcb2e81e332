"""Functions in a user's own Python file: `FILE.py:FUNCTION`, found without running the file, then run from its text.

Modules beside the file that it imports travel with it.
"""

import ast
import contextlib
import linecache
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer import neighbours
from trainer.config import nearest
from trainer.errors import ConfigError, LockstepError


@dataclass(frozen=True)
class Function:
    """A function of a file, given by the file's text."""

    file: str
    name: str
    source: str
    """The text of the whole file."""
    path: str | None = None
    """Path of the file; None on a machine that has only its text."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Texts of the modules beside it that it imports, by path relative to its folder."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "Function":
        """The function of an entry of a configuration; see `entry`."""
        modules = {key: text for key, text in entry.items() if key.endswith(".py")}
        return cls(entry["file"], entry["function"], entry["source"], modules=modules)

    @property
    def entry(self) -> dict[str, str]:
        """As a configuration has it, so that every host runs the same texts; modules are keys that end with `.py`."""
        return {"file": self.file, "function": self.name, "source": self.source, **self.modules}

    @property
    def called(self) -> str:
        """As the user typed it."""
        return f"{self.file}:{self.name}"


def find(variable: str, given: str) -> Function:
    """The function that an operator variable names as `FILE.py:FUNCTION`; ConfigError if there is none at the file's top level."""
    file, colon, name = given.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise ConfigError(f"{variable}={given}: expected FILE.py:FUNCTION, as in {variable}=my_models.py:build")
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"{variable}={given}: no such file: {path.absolute()}")
    with _naming(f"{variable}={given}"):
        source = neighbours.read(path, path.name)
        modules = neighbours.imported(path, source)
    function = Function(path.name, name, source, str(path.resolve()), modules)
    parameters(variable, function)
    return function


def parameters(variable: str, function: Function) -> ast.arguments:
    """The parameters of a function, from the text of its file; ConfigError if that is not Python or has no such function."""
    with _naming(f"{variable}={function.called}"):
        tree = neighbours.tree(function.file, function.source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if function.name not in functions:
        names = ", ".join(functions) or "none"
        raise ConfigError(
            f"{variable}={function.called}: no such function at the top of the file{nearest(function.name, functions)}; there are: {names}"
        )
    return functions[function.name].args


def load(variable: str, function: Function) -> Callable[..., Any]:
    """Run the file's text and return its function; output goes to standard error, errors become ConfigError."""
    # A unique name, because the file may have the name of a module in use.
    module = types.ModuleType(f"lockstep_own_{Path(function.file).stem}")
    module.__file__ = function.path or function.file
    # So that tracebacks and Keras find the source lines.
    linecache.cache[function.file] = (len(function.source), None, function.source.splitlines(keepends=True), function.file)
    sys.modules[module.__name__] = module
    with explaining_errors(variable, function):
        neighbours.install(function.modules, Path(function.path).parent if function.path else None)
        exec(compile(function.source, function.file, "exec"), module.__dict__)  # noqa: S102 - the user asked to run this code
        loaded: Callable[..., Any] = getattr(module, function.name)
        return loaded


@contextlib.contextmanager
def explaining_errors(variable: str, function: Function) -> Iterator[None]:
    """Turn any error in the user's code into a ConfigError with its line."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except LockstepError:
        raise
    except Exception as error:
        raise ConfigError(f"{variable}={function.called}{line(error, function)}: {type(error).__name__}: {error}") from error


def line(error: BaseException, function: Function) -> str:
    """The last line of the user's files that an error passed, as `, line 7`; empty if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == function.file:
            return f", line {frame.lineno}"
        if beside := [key for key in function.modules if frame.filename in (key, _beside(function, key))]:
            return f", {beside[0]} line {frame.lineno}"
    return ""


def _beside(function: Function, key: str) -> str:
    return str(Path(function.path).parent / key) if function.path else key


@contextlib.contextmanager
def _naming(given: str) -> Iterator[None]:
    """Begin an error with what was typed."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{given}: {error}") from None
