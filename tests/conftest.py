"""Which tests run: variants marked `exhaustive` only where they are asked for."""

import os

import pytest

ASKED = os.environ.get("LOCKSTEP_TESTS") == "all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave further variants of a real run out: another of the same test takes the same way, and each costs up to a minute."""
    if ASKED:
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
