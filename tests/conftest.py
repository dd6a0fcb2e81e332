"""Which tests run: those marked `exhaustive` only where they are asked for."""

import os

import pytest

from tests.exhaustive import without_trigger

ASKED = os.environ.get("LOCKSTEP_TESTS") == "all"


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
