"""Modules beside a user's file: which of them it imports, found without running it, and how they are imported from their text."""

import ast
import importlib.abc
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.errors import ConfigError

LARGEST = 2**20
"""Bytes of a user's file and of all modules beside it: they become a part of a run's configuration."""
LOCKSTEPS = ("trainer", "control", "plugins", "benchmarks", "lockstep")
"""Names of modules that are imported already, wherever a user's file is."""


def imported(file: Path, source: str) -> dict[str, str]:
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
                texts[key] = read(path, key)
                size += len(texts[key].encode())
                if size > LARGEST:
                    raise ConfigError(
                        f"{key}: {file.name} and the modules beside it that it imports have {size:,} bytes; they become a part of the "
                        f"run's configuration, so at most {LARGEST:,}"
                    )
                waiting.append((key, texts[key]))
    return dict(sorted(texts.items()))


def read(path: Path, shown: str) -> str:
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
        own = Path(__file__).resolve().parents[1]
        if folder.resolve() != own and (package.is_file() or (folder / f"{name}.py").is_file()):
            raise ConfigError(f"{name}: a module of Lockstep has this name; rename {folder / name}")
        return []
    if package.is_file():
        return sorted(path for path in package.parent.rglob("*.py") if path.is_file())
    return [folder / f"{name}.py"] if (folder / f"{name}.py").is_file() else []


class _Texts(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Imports modules from their texts, by path relative to a folder."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.folders: dict[str, Path | None] = {}

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> Any:  # noqa: ARG002 - the interface
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
        """Whether a module is a folder."""
        return self._key(fullname).endswith("/__init__.py")

    def _key(self, fullname: str) -> str:
        base = fullname.replace(".", "/")
        return next((key for key in (f"{base}/__init__.py", f"{base}.py") if key in self.texts), "")


_TEXTS = _Texts()


def install(texts: Mapping[str, str], folder: Path | None) -> None:
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
