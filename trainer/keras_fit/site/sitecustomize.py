"""Hooks for a user's script: Python imports this module at start-up; see `lockstep_hooks`."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class Hooked(importlib.abc.MetaPathFinder):
    """Finder of modules with a hook, which it calls after their import."""

    def __init__(self, hooks: dict[str, Any]):
        """Take hooks by name of the module."""
        self._hooks = hooks

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """The specification from the other finders, with a loader that calls the hook."""
        if name not in self._hooks:
            return None
        hook = self._hooks.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _then(spec.loader.exec_module, hook)  # type: ignore[method-assign]
        return spec


def _then(execute: Any, hook: Any) -> Any:
    def executed(module: ModuleType) -> None:
        execute(module)
        hook(module)

    return executed


def others() -> None:
    """Run the `sitecustomize` that this one hides, if there is one."""
    path = [entry for entry in sys.path if Path(entry) != Path(__file__).parent]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def install() -> None:
    """Hook into TensorFlow and Keras where Lockstep started several workers."""
    if int(os.environ.get("LOCKSTEP_WORKERS", "1")) == 1:
        return
    sys.meta_path.insert(0, Hooked(dict(importlib.import_module("lockstep_hooks").HOOKS)))


others()
install()
