"""Read a run's config.yml into a `Config`."""

import dataclasses
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trainer.config.schema import Config

SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def load(path: Path) -> dict[str, Any]:
    """A run's `config.yml` as plain nested dicts."""
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def build(raw: Mapping[str, Any]) -> Config:
    """A `Config` from plain nested dicts, whose keys, types and values the control node has checked (`control.common.configurations`)."""
    config: Config = _made(Config, raw)
    return config


def _made(hint: Any, value: Any) -> Any:
    """A section as its dataclass, a list as a tuple; other values unchanged."""
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return typing.cast(type, hint)(**{key: _made(hints[key], one) for key, one in value.items()})
    return tuple(_made(None, one) for one in value) if isinstance(value, list) else value


def scientific(value: Any) -> Any:
    """The number that a text such as `1e-3` means, which YAML 1.1 reads as a string; other values unchanged."""
    return float(value) if isinstance(value, str) and SCIENTIFIC.fullmatch(value) else value
