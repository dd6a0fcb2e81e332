"""Functions in a user's own Python file, run from its text (`control.common.user_files` finds them); modules beside it travel with it."""

import contextlib
import importlib.abc
import importlib.util
import linecache
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.common.errors import ConfigError, LockstepError


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


def load(variable: str, function: Function) -> Callable[..., Any]:
    """Run the file's text, once as an import does, and return its function; output goes to standard error, errors become ConfigError."""
    key = function.file, function.source, function.path, tuple(sorted(function.modules.items()))
    if key not in _LOADED:
        _LOADED[key] = _run(variable, function)
    with explaining_errors(variable, function):
        loaded: Callable[..., Any] = getattr(_LOADED[key], function.name)
        return loaded


_LOADED: dict[tuple[Any, ...], types.ModuleType] = {}
"""Files that were run: a callback may change what a loss of the same file reads."""


def _run(variable: str, function: Function) -> types.ModuleType:
    # A unique name, because the file may have the name of a module in use.
    module = types.ModuleType(f"lockstep_own_{Path(function.file).stem}")
    module.__file__ = function.path or function.file
    # So that tracebacks and Keras find the source lines.
    linecache.cache[function.file] = (len(function.source), None, function.source.splitlines(keepends=True), function.file)
    sys.modules[module.__name__] = module
    with explaining_errors(variable, function):
        _install(function.modules, Path(function.path).parent if function.path else None)
        exec(compile(function.source, function.file, "exec"), module.__dict__)  # noqa: S102 - the user asked to run this code
    return module


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


class _Texts(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Imports modules from their texts, by path relative to a folder."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.folders: dict[str, Path | None] = {}

    def find_spec(self, fullname: str, path: Any = None, target: types.ModuleType | None = None) -> Any:  # noqa: ARG002 - the interface
        """A module's specification, None for others."""
        return importlib.util.spec_from_loader(fullname, self) if self._key(fullname) else None

    def get_source(self, fullname: str) -> str:
        """A module's text."""
        return self.texts[self._key(fullname)]

    def get_filename(self, fullname: str) -> str:
        """Path of a module's file; relative on a machine that has only its text."""
        key = self._key(fullname)
        folder = self.folders[key]
        return str(folder / key) if folder else key

    def is_package(self, fullname: str) -> bool:
        """Return whether a module is a folder."""
        return self._key(fullname).endswith("/__init__.py")

    def _key(self, fullname: str) -> str:
        base = fullname.replace(".", "/")
        return next((key for key in (f"{base}/__init__.py", f"{base}.py") if key in self.texts), "")


_TEXTS = _Texts()


def _install(texts: Mapping[str, str], folder: Path | None) -> None:
    """Let these modules be imported from now on, from their texts.

    Raises:
        ConfigError: a module in use has such a name, or another file's module, with other contents.
    """
    for key, text in texts.items():
        name = key.partition("/")[0].removesuffix(".py")
        if key not in _TEXTS.texts and name in sys.modules and getattr(sys.modules[name].__spec__, "loader", None) is not _TEXTS:
            raise ConfigError(f"{key}: a module with the name {name} is in use; rename the file")
        if _TEXTS.texts.get(key, text) != text:
            raise ConfigError(f"{key}: two files of yours have a module with this name beside them, and they differ; rename one")
    _TEXTS.texts |= texts
    _TEXTS.folders |= dict.fromkeys(texts, folder)
    if texts and _TEXTS not in sys.meta_path:
        sys.meta_path.insert(0, _TEXTS)
