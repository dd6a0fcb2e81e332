"""Which tests run: those marked `exhaustive` only where they are asked for."""

import compileall
import gc
import os
import sys

import pytest

from tests.exhaustive import without_trigger
from tests.project import PACKAGES, ROOT

ASKED = os.environ.get("LOCKSTEP_TESTS") == "all"

# Hundreds of processes import the same modules: compiled once, that is a quarter of the suites' processor time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# NumPy's threads, which wait in loops, cost each of them 5% more.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The collected tests and TensorFlow never become garbage: scanning them repeatedly would take a sixth of the unit suite.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Compile what scratch copies of the project run."""
    if not hasattr(config, "workerinput"):
        for package in PACKAGES:
            compileall.compile_dir(ROOT / package, quiet=1)


def pytest_collection_finish() -> None:
    """From here on, the collector scans only what the tests create."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what costs minutes and most changes do not concern; `make exhaustive` runs it.

    Raises:
        UsageError: a path that triggers a test has moved.
    """
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    moved = [message for item in left_out for message in without_trigger(item)]
    if moved:
        raise pytest.UsageError(*moved)
    if left_out and not ASKED:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
