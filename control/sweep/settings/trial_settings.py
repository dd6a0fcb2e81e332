"""Settings of a sweep's trials: all combinations of values of configuration keys, or random ones. Pure functions.

Random search over ranges follows Bergstra, Bengio, Random Search for Hyper-Parameter Optimization, JMLR 13, 2012.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from control.campaign import store
from control.common import configurations, text
from control.sweep.scaling.design import MOST
from trainer.common.errors import ConfigError
from trainer.common.safe_text import printable
from trainer.config import loading
from trainer.config.schema import Config
from trainer.rundir.best_epoch import Monitor

FILE = "trials.csv"
CONFIGS = "configs"
"""Folder with each trial's configuration, by the name of its run."""
SUCCEEDED, DIVERGED, FAILED = "SUCCEEDED", "DIVERGED", "FAILED"
EXAMPLE = "vary=optimizer.learning_rate=0.1,0.01;train.batch_size=32,64"
RANGE = re.compile(r"(log|uniform|int)\(([^(),]*),([^(),]*)\)")
KINDS = {
    "log": "log(A,B) with 0 < A < B, as in log(0.0001,0.1)",
    "uniform": "uniform(A,B) with A < B, as in uniform(0,0.5)",
    "int": "int(A,B) with whole numbers A < B, as in int(16,256)",
}
DIGITS = 4
"""Significant digits of a drawn number."""
DRAWS = 1000
"""Most draws per trial before a range counts as too narrow."""
SLUG, DIGEST = 22, 8
"""Characters of a run's name for its values, and for the digest that distinguishes it from others."""
FIXED = {
    "data.source": "trials on other data can't be compared. Fix: leave it out, and make a sweep of its own: -e dataset=",
    "data.path": "trials on other data can't be compared. Fix: leave it out, and make a sweep of its own: -e dataset=",
    "data.test_split": "trials with other test examples can't be compared. Fix: set it for all, as in -e set=data.test_split=0.1",
    "train.monitor": "it says which trial is best. Fix: set it for all, as in -e set=train.monitor=val_loss",
    "train.time_limit": "a training that it ends counts as failed. Fix: limit trials by -e epochs=N or -e set=train.steps=N",
}
"""Keys that no sweep may vary, with the reason."""
SECTIONS = {field.name for field in dataclasses.fields(Config)} - {"seed"}


class Settings(dict[str, Any]):
    """Configuration keys and the values of one trial."""

    @classmethod
    def of(cls, config: Config, keys: Iterable[str]) -> "Settings":
        """Values of some keys, in the form of the configuration: `1e-1` is 0.1."""
        plain = configurations.to_dict(config)
        return cls({key: configurations.value_at(plain, key) for key in keys})

    @property
    def json(self) -> str:
        """Settings as one line of JSON, identical for equal settings."""
        return json.dumps(self, sort_keys=True, ensure_ascii=False)

    @property
    def label(self) -> str:
        """Text of the settings for messages, as `learning_rate=0.1 batch_size=32`."""
        names = short_keys(list(self))
        return " ".join(f"{names[key]}={value_text(value)}" for key, value in self.items())

    def run_name(self, sweep: str) -> str:
        """Name of a trial's run: the letters and digits of its values, and a digest of its settings."""
        words = (re.sub(r"[^a-z0-9.]+", "_", value_text(self[key]).lower()).strip("._") for key in sorted(self))
        slug = "-".join(word for word in words if word)[:SLUG].strip("-._")
        digest = hashlib.sha256(self.json.encode()).hexdigest()[:DIGEST]
        return f"{sweep}.{f'{slug}-' if slug else ''}{digest}"


@dataclass(frozen=True)
class Range:
    """Numbers to draw from: evenly (`uniform`), evenly on a logarithmic scale (`log`), or whole (`int`); both ends are included."""

    kind: str
    least: float
    most: float

    def draw(self, generator: random.Random) -> float:
        """Draw a number, rounded to `DIGITS`."""
        if self.kind == "int":
            return generator.randint(int(self.least), int(self.most))
        if self.kind == "log":
            value = math.exp(generator.uniform(math.log(self.least), math.log(self.most)))
        else:
            value = generator.uniform(self.least, self.most)
        return min(max(float(f"{value:.{DIGITS}g}"), self.least), self.most)

    def __str__(self) -> str:
        """The range as typed."""
        return f"{self.kind}({self.least:g},{self.most:g})"


Space = dict[str, tuple[Any, ...] | Range]
"""Possible values of each key."""


@dataclass(frozen=True)
class Result:
    """One row of trials.csv; a failed trial has no numbers, a diverged trial has those of earlier epochs."""

    run: str
    state: str
    metric: str
    """Deciding column of history.csv, such as `val_accuracy`."""
    value: float | None
    """The metric's value in the best epoch."""
    epoch: int | None
    epochs: int | None
    """Number of finished epochs."""
    seconds_end_to_end: float | None
    seconds_training: float | None
    images_per_s: float | None
    hosts: str
    settings: str
    """Keys and values as JSON."""
    reason: str
    """Reason for a missing result; empty if there is a result."""

    @property
    def trial(self) -> str:
        """Identifier of the trial: the name of its run, which contains a digest of its settings."""
        return self.run

    @property
    def measured(self) -> bool:
        """True if the trial need not be repeated; a diverged one counts, because the same settings would diverge again."""
        return self.state in (SUCCEEDED, DIVERGED)

    @property
    def metric_words(self) -> str:
        """Text on the metric, as `validation accuracy 0.8123 in epoch 3`."""
        return f"{Monitor(self.metric, True).label} {self.value:.4f} in epoch {self.epoch}" if self.value is not None else "no metric"

    @property
    def values(self) -> Settings:
        """Keys and values."""
        return Settings(json.loads(self.settings))


STORE = store.Store(Result)


def are_of(folder: Path) -> bool:
    """Return whether a folder belongs to a sweep over settings."""
    return (folder / CONFIGS).is_dir()


def parse(given: str) -> Space:
    """Parse the possible values of each key from `a.b=1,2;c=log(0.001,1)`; values are YAML.

    Raises:
        ConfigError: a part is not `KEY=VALUE,VALUE`, a key appears twice or can't be varied, or a value is invalid.
    """
    space: Space = {}
    for part in _split(given, ";"):
        key, _, values = (piece.strip() for piece in part.partition("="))
        key = configurations.RENAMED.get(key, key)
        if not key or not values:
            raise ConfigError(f"vary: '{printable(part, 80)}' is not KEY=VALUE,VALUE; several keys are separated by ;, as in '{EXAMPLE}'")
        if key in space:
            raise ConfigError(f"vary: {printable(key, 80)} appears twice; give all of its values at once, separated by commas")
        if key in FIXED:
            raise ConfigError(f"vary: {key}={printable(values, 80)}: {FIXED[key]}")
        if key in SECTIONS:
            raise ConfigError(f"vary: {key} is a section; name one of its keys, as in '{EXAMPLE}'")
        space[key] = _range(key, values) or tuple(_value(key, one) for one in _split(values, ","))
    return space


def _split(given: str, separator: str) -> list[str]:
    """Split a text at separators outside brackets and quoted values."""
    parts, depth, quote, before = [""], 0, "", ""
    for letter in given:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and before in ("", *"=,;:([{"):
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
        if letter == separator and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
        before = before if letter.isspace() else letter
    return [part.strip() for part in parts]


def _range(key: str, values: str) -> Range | None:
    kind = values.partition("(")[0]
    if kind not in KINDS or "(" not in values:
        return None
    match = RANGE.fullmatch(values)
    try:
        least, most = ((int if kind == "int" else float)(end) for end in match.groups()[1:]) if match else (math.nan, math.nan)
    except ValueError:
        least = most = math.nan
    if not (-math.inf < least < most < math.inf and (kind != "log" or least > 0)):
        raise ConfigError(f"vary: {printable(key, 80)}={printable(values, 80)}: expected {KINDS[kind]}")
    return Range(kind, least, most)


def _value(key: str, given: str) -> Any:
    try:
        value = yaml.safe_load(given)
        # A date, for instance, is no value of a configuration.
        json.dumps(value)
        if not given:
            raise ValueError
    except (yaml.YAMLError, TypeError, ValueError):
        raise ConfigError(
            f"vary: {printable(key, 80)}: '{printable(given, 80)}' is no value; values are YAML, separated by commas, as in '{EXAMPLE}'"
        ) from None
    return loading.scientific(value)


def combinations(space: Space, trials: int | None, seed: int) -> list[Settings]:
    """Settings of all trials: every combination in order, or `trials` random ones.

    With the same seed, a larger number of `trials` begins with the same combinations.

    Raises:
        ConfigError: too many combinations, fewer than are to be drawn, or a range without a number of trials.
    """
    ranges = [key for key, values in space.items() if isinstance(values, Range)]
    lists = [values for values in space.values() if not isinstance(values, Range)]
    total = math.prod(map(len, lists))
    if trials is not None:
        if trials > MOST:
            raise ConfigError(f"trials={trials}: a sweep has at most {MOST}; ask for fewer")
        if not ranges and trials > total:
            raise ConfigError(f"trials={trials}: there are only {text.count(total, 'combination')}; leave trials out to try all")
        return _drawn(space, trials, seed)
    if ranges:
        raise ConfigError(
            f"vary: {ranges[0]}={space[ranges[0]]}: numbers are drawn from a range at random; say how many trials: -e trials=20"
        )
    if total > MOST:
        raise ConfigError(
            f"vary: these are {total:,} combinations, and a sweep has at most {MOST}; give fewer values, or try some at random: "
            "-e trials=20"
        )
    return [Settings(zip(space, values, strict=True)) for values in itertools.product(*lists)]


def _drawn(space: Space, trials: int, seed: int) -> list[Settings]:
    generator, drawn = random.Random(seed), dict[str, Settings]()  # noqa: S311 - an experiment, no secret
    for _ in range(DRAWS * trials):
        settings = Settings(
            {key: values.draw(generator) if isinstance(values, Range) else generator.choice(values) for key, values in space.items()}
        )
        drawn.setdefault(settings.json, settings)
        if len(drawn) == trials:
            return list(drawn.values())
    raise ConfigError(f"trials={trials}: vary has hardly more than {len(drawn)} different combinations; ask for fewer, or widen a range")


def value_text(value: Any) -> str:
    """Text of a value for tables and messages."""
    if isinstance(value, float):
        return f"{value:g}"
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 60)


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Short names of keys: `learning_rate` for `optimizer.learning_rate`, if it is unambiguous."""
    last = Counter(key.rpartition(".")[2] for key in keys)
    return {key: name if last[name := key.rpartition(".")[2]] == 1 else key for key in keys}
