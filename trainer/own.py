"""Functions in a user's own Python file: `FILE.py:FUNCTION`, found without running the file, then run from its text."""

import ast
import contextlib
import linecache
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import nearest
from trainer.errors import ConfigError, LockstepError

LARGEST = 2**20


@dataclass(frozen=True)
class Function:
    """A function of a file, given by the file's text."""

    file: str
    name: str
    source: str
    """The text of the whole file."""
    path: str | None = None
    """Path of the file; None on a machine that has only its text."""

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
    if path.stat().st_size > LARGEST:
        size = f"{path.stat().st_size:,} bytes; it becomes a part of the run's configuration, so at most {LARGEST:,}"
        raise ConfigError(f"{variable}={given}: the file has {size}")
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{variable}={given}: {path.name} is not UTF-8; save it as UTF-8") from None
    function = Function(path.name, name, source, str(path.resolve()))
    parameters(variable, function)
    return function


def parameters(variable: str, function: Function) -> ast.arguments:
    """The parameters of a function, from the text of its file; ConfigError if that is not Python or has no such function."""
    try:
        tree = ast.parse(function.source, function.file)
    except SyntaxError as error:
        raise ConfigError(f"{variable}={function.called}: not Python: {error.msg} ({function.file}, line {error.lineno})") from None
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
    """The last line of the user's file that an error passed, as `, line 7`; empty if there is none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == function.file]
    return f", line {lines[-1]}" if lines else ""
