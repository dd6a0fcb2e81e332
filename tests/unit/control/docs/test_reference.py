"""docs/reference/keys.md is what the dataclasses say."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from control.common import configurations
from control.docs import keys_page
from trainer.common.errors import LockstepError
from trainer.config import schema as configs

ROOT = Path(__file__).resolve().parents[4]


@dataclass(frozen=True)
class Sample:
    """A section."""

    rates: tuple[float, ...] = (0.1, 0.01)
    """Rates | of each
    step."""
    decay: tuple[tuple[float, float], ...] = ()
    """Pairs."""
    limit: int | float | None = None
    """The most."""


@dataclass(frozen=True)
class Silent:
    """A section with a field of which nothing is said."""

    speed: int = 3


def test_the_page_is_what_the_dataclasses_say():
    written = (ROOT / "docs/reference/keys.md").read_text(encoding="utf-8")
    assert written == keys_page._page(), "docs/reference/keys.md differs from trainer/config/schema.py: make docs"
    page = keys_page._page()
    for section, values in configurations.to_dict(configs.Config()).items():
        keys = [f"{section}.{key}" for key in values] if isinstance(values, dict) and section != "model" else [section]
        for key in keys:
            assert f"| `{key}` | " in page


def test_row_has_key_type_default_and_meaning():
    assert keys_page.table("some.", Sample).splitlines()[2:] == [
        "| `some.rates` | list of numbers | `[0.1, 0.01]` | Rates \\| of each step. |",
        "| `some.decay` | list of lists of 2 numbers | `[]` | Pairs. |",
        "| `some.limit` | whole number, or number, or `null` | `null` | The most. |",
    ]
    with pytest.raises(LockstepError, match=r"^Silent\.speed: no docstring below the field; say there what it is$"):
        keys_page.table("", Silent)
