"""Where compiled loops are kept between runs: in `NUMBA_CACHE_DIR`, by the content of their source.

Each version of the code has a folder of its own on a host; numba's own rule goes by that folder, and
would compile the same loops anew after every change elsewhere.
"""

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
    """A folder that is the same wherever the source is."""

    def __init__(self, source: str):
        self._digest = hashlib.sha256(source.encode()).hexdigest()[:16]

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> "ByContent":  # noqa: ARG003 - numba's interface
        """The place for a function's compiled code; its source may lie in a zip file."""
        return cls(inspect.getsource(sys.modules[py_func.__module__]))

    def get_cache_path(self) -> str:
        """The folder."""
        return str(Path(os.environ[FOLDER]) / f"kernels-{self._digest}")

    def get_source_stamp(self) -> str:
        """What must be the same for compiled code to be used."""
        return self._digest

    def get_disambiguator(self) -> str:
        """Nothing more: a source's functions have different names."""
        return ""


def use() -> None:
    """Keep what is compiled from now on there, when a folder is named."""
    if os.environ.get(FOLDER):
        setattr(config, "CACHE_LOCATOR_CLASSES", f"{__name__}.{ByContent.__name__}")  # noqa: B010 - numba makes its settings at import
