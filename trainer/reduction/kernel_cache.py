"""Keeps compiled loops in `NUMBA_CACHE_DIR`, keyed by their source: Numba's key is its folder, which differs in each version."""

import hashlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any

from numba import config
from numba.core.caching import _CacheLocator

FOLDER = "NUMBA_CACHE_DIR"


class ByContent(_CacheLocator):
    """A cache folder that does not depend on where the source is."""

    def __init__(self, source: str):
        self._digest = hashlib.sha256(source.encode()).hexdigest()[:16]

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> "ByContent":  # noqa: ARG003 - numba's interface
        """The locator for a function's compiled code; its source may be in a zip file."""
        return cls(inspect.getsource(sys.modules[py_func.__module__]))

    def get_cache_path(self) -> str:
        """The folder."""
        return str(Path(os.environ[FOLDER]) / f"kernels-{self._digest}")

    def get_source_stamp(self) -> str:
        """Key under which compiled code is reused: CPU, Numba's version, source."""
        return self._digest

    def get_disambiguator(self) -> str:
        """Empty: the functions of one source have different names."""
        return ""


def use() -> None:
    """Cache what is compiled from now on, if `NUMBA_CACHE_DIR` is set."""
    if os.environ.get(FOLDER):
        setattr(config, "CACHE_LOCATOR_CLASSES", f"{__name__}.{ByContent.__name__}")  # noqa: B010 - numba makes its settings at import
