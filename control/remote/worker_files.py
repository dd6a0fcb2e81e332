"""Schemas of a worker's small files, which the control node does not trust.

A file is read through a schema: known kinds, types, finite numbers, bounded lengths. Its texts are made safe for a terminal. Code
that uses the values need not check again whether they are present and of the right type.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from control.common.terminal_lines import printable_lines
from trainer.common.errors import LockstepError
from trainer.common.safe_text import printable
from trainer.rundir.launch_record import LaunchRecord
from trainer.rundir.layout import part_of
from trainer.rundir.metrics_log import METRICS
from trainer.rundir.schemas import EPOCH_COLUMNS, LARGEST, LARGEST_SIDE, MOST_MISTAKES, PHASES, STRAGGLER
from trainer.rundir.straggler import CAUSES

STATES = ("RUNNING", "SUCCEEDED", "FAILED", "FAILED_PREFLIGHT", "CANCELLED", "PREEMPTED")
LINE = 20_000
"""Longest line of metrics.jsonl, characters."""
TEXT = 2_000
FIELDS = 64
COUNT = 10**15

Check = Callable[[Any], bool]


def count(value: Any) -> bool:
    """Return whether a value is a count: a whole number from 0."""
    return type(value) is int and 0 <= value <= COUNT


def number(value: Any) -> bool:
    """Return whether a value is a finite number small enough for a table."""
    return type(value) in (int, float) and abs(value) <= LARGEST


def text(value: Any) -> bool:
    """Return whether a value is a text of bounded length."""
    return isinstance(value, str) and len(value) <= TEXT


def digest(value: Any) -> bool:
    """Return whether a value is a SHA-256 in hexadecimal digits."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def none_or(check: Check) -> Check:
    """A check that a value is None or passes `check`."""
    return lambda value: value is None or check(value)


def each(check: Check, most: int) -> Check:
    """A check that a value is a list of at most `most` items that all pass `check`."""
    return lambda value: isinstance(value, list) and len(value) <= most and all(map(check, value))


def holding(required: Mapping[str, Check]) -> Check:
    """A check that a value is a dict with these fields; any others must be plain."""

    def check(value: Any) -> bool:
        if not isinstance(value, dict) or len(value) > FIELDS or not required.keys() <= value.keys():
            return False
        return all(required.get(name, _plain)(one) for name, one in value.items())

    return check


def _plain(value: Any, depth: int = 3) -> bool:
    """Return whether a value of unknown meaning is small: a number, a text, a boolean, None, or a few of these."""
    if isinstance(value, (dict, list)):
        inside = [*value, *value.values()] if isinstance(value, dict) else value
        return depth > 0 and len(inside) <= TEXT and all(_plain(one, depth - 1) for one in inside)
    return value is None or isinstance(value, bool) or number(value) or text(value)


def _sums(reduction: Mapping[str, Any]) -> bool:
    """Return whether the fields that readers take from a summary's `reduction` are valid; earlier versions wrote none."""
    checks: dict[str, Check] = {"sent_bytes": count, "transport": lambda value: value in ("direct", "tensorflow"), "sums": each(count, 8)}
    return all(check(reduction[name]) for name, check in checks.items() if name in reduction)


def _numbers(value: Any) -> bool:
    """Return whether a value is a dict of finite numbers."""
    return isinstance(value, dict) and len(value) <= FIELDS and all(map(number, value.values()))


_SECONDS = dict.fromkeys((*PHASES, "step_seconds"), number)
_STEPS = {**dict.fromkeys(("images_per_s", "input_wait", "seconds"), number), "metrics": _numbers}
KINDS: dict[str, dict[str, Check]] = {
    "phase": {"phase": text, "note": text},
    "heartbeat": {"phase": text, "step": count},
    "steps": {"epoch": count, "step": count, **_STEPS},
    "epoch": {**dict.fromkeys(EPOCH_COLUMNS, number), "epoch": count},
    "reduction": {"name": text, "why": text},
    "shares": {"told": text},
    "warning": {"text": text},
    "straggler": {"cause": lambda value: value in ("", *CAUSES), **dict.fromkeys(("epoch", "rank", *STRAGGLER), count)},
    "split": {"epoch": count, "step": count, **_SECONDS, "images": count},
    "staleness": {"epoch": count, **dict.fromkeys(("staleness", "calls"), each(count, 10_000)), "by_worker": each(count, 1_000)},
    "evaluation": {"epoch": count, "metrics": _numbers},
    "generation": {"number": lambda value: count(value) and value < 10**9, "rank": count, "hosts": each(text, 1_000)},
}
"""Records of metrics.jsonl by kind, with the fields that their readers rely on."""
_RECORDS = {kind: holding({"t": number, **required}) for kind, required in KINDS.items()}
_END: dict[str, Check] = {"exit_code": lambda value: count(value) and value < 256, "ended_at": number}
_END_TYPES: dict[str, Check] = {"host": text, "rank": count, "nodes": count, "job": text, "step": text, "started_at": number}
_SUMMARY: dict[str, Check] = {
    "state": lambda value: value in STATES,
    **dict.fromkeys(("workers", "epochs_done", "epochs", "steps"), count),
    **dict.fromkeys(("seconds_total", "seconds_training"), number),
}
_SUMMARY_TYPES: dict[str, Check] = {
    **dict.fromkeys(("total_steps", "restarts"), count),
    "images_per_s": none_or(number),
    "best": none_or(lambda value: _numbers(value) and count(value.get("epoch"))),
    "reduction": none_or(lambda value: holding({"name": text, "why": text})(value) and _sums(value)),
    "shares": none_or(each(count, 10_000)),
    **dict.fromkeys(("restored_by", "ended_by"), text),
    **dict.fromkeys(("exact", "ended_early", "stalled"), lambda value: isinstance(value, bool)),
    "inexact_because": each(text, 1_000),
    "unsaved": lambda value: isinstance(value, dict) and each(text, FIELDS)([*value, *value.values()]),
    "weights_sha256": none_or(digest),
    "weights_sha256_by_rank": none_or(each(digest, 10_000)),
    # Written and shown by the control node only; no worker writes it.
    **dict.fromkeys(("failure", "launch", "lost", "took_places"), lambda value: value is None),
}
_SECONDS_TAKEN: Check = lambda value: number(value) and value > 0  # noqa: E731
_TIMED_METHOD: dict[str, Check] = {
    "step_seconds": _SECONDS_TAKEN,
    "sums": each(count, 8),
    "exchange_seconds": lambda value: (
        isinstance(value, dict)
        and len(value) <= FIELDS
        and all(key.isdecimal() and len(key) < 8 for key in value)
        and all(map(_SECONDS_TAKEN, value.values()))
    ),
}
_STEP_TIME: dict[str, Check] = {
    "batch": count,
    **dict.fromkeys(("step_seconds", "images_per_s"), _SECONDS_TAKEN),
    "transport": lambda value: value in ("direct", "tensorflow"),
    "methods": lambda value: isinstance(value, dict) and len(value) <= FIELDS and all(map(holding(_TIMED_METHOD), value.values())),
}
_EVALUATION: dict[str, Check] = {
    **dict.fromkeys(("epoch", "images"), count),
    "seconds": number,
    **dict.fromkeys(("split", "evaluated_at"), text),
}


_ERRORS: dict[str, Check] = {
    **dict.fromkeys(("low", "high", "mean", "mean_absolute", "median_absolute", "absolute_95", "largest"), number),
    **dict.fromkeys(("below", "above", "values", "not_finite"), count),
    "counts": lambda value: each(count, 1_000)(value) and len(value) > 0,
}
"""Errors of numbers: a histogram from `low` to `high`, what lies beyond, and figures of their sizes."""


_CALIBRATION: dict[str, Check] = {
    **dict.fromkeys(("error", "brier"), number),
    "counts": lambda value: each(count, 1_000)(value) and sum(value) > 0,
    **dict.fromkeys(("predicted", "observed"), each(lambda value: number(value) and 0 <= value <= 1, 1_000)),
}
"""Probabilities by bin: how many, their mean, and how many of them came true."""


def parse(lines: str | bytes) -> Any:
    """Untrusted JSON; ValueError if it is not JSON, contains NaN or infinity, or is nested too deeply."""
    try:
        return json.loads(lines, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def newest_generation(records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The last record of a worker's generation, if there is one."""
    return next((record for record in reversed(records) if record["kind"] == "generation"), None)


def doing(read: Iterable[dict[str, Any]], phase: str, step: int) -> tuple[str, int]:
    """A worker's phase and last step, updated by these records."""
    for record in read:
        if record["kind"] in ("phase", "heartbeat"):
            phase = record["phase"]
        # Other kinds may have a field of that name, of any type.
        if record["kind"] in ("heartbeat", "steps", "split"):
            step = record["step"]
    return phase, step


def note(read: Iterable[dict[str, Any]], before: str = "") -> str:
    """The note of a worker's phase, updated by these records."""
    return str(([before] + [record["note"] for record in read if record["kind"] == "phase"])[-1])


def metrics(lines: Iterable[str]) -> tuple[list[dict[str, Any]], int]:
    """Records of metrics.jsonl, and the number of invalid lines."""
    read = [_record(line) for line in lines if line.strip()]
    fitting = [record for record in read if record is not None]
    return fitting, len(read) - len(fitting)


def _parsed(lines: str) -> Any:
    """Untrusted JSON; None if it is invalid."""
    try:
        return parse(lines)
    except ValueError:
        return None


def _record(line: str) -> dict[str, Any] | None:
    value = _parsed(line) if len(line) <= LINE else None
    kind = value.get("kind") if isinstance(value, dict) else None
    fits = isinstance(kind, str) and kind in _RECORDS and _RECORDS[kind](value)
    return _shown(value) if fits else None


def _shown(value: Any, show: Callable[[str], str] = printable) -> Any:
    """The value with every text made safe for a terminal."""
    if isinstance(value, dict):
        return {printable(name): _shown(one, show) for name, one in value.items()}
    if isinstance(value, list):
        return [_shown(one, show) for one in value]
    return show(value) if isinstance(value, str) else value


def end(written: str) -> dict[str, Any]:
    """The contents of exit.json; LockstepError if it is not what a worker writes."""
    return _read(written, "exit.json", _END, _END_TYPES)


def summary(written: str) -> dict[str, Any]:
    """The contents of a worker's summary.json; LockstepError if it is not a summary of a run."""
    return _read(written, "summary.json", _SUMMARY, _SUMMARY_TYPES)


def evaluation(written: str) -> dict[str, Any]:
    """The contents of an evaluation's `epoch-<n>.json`; LockstepError if it is none.

    Each of `outputs` has a `name`, empty if there is only one output, and what it gets wrong: of classes `classes` and `confusion`
    (`calibration`, where the output is a probability; `mistakes`, where the examples are pictures), of numbers `errors`; else `why` it
    has neither.
    """
    types = {**_WRONG, "metrics": _numbers, "outputs": each(_output, 10_000), **dict.fromkeys(("loss", "accuracy"), number)}
    value = _read(written, "evaluation", _EVALUATION, types)
    # A run is evaluated by the trainer that trained it, which may be older.
    if "metrics" not in value:
        value["metrics"] = {name: value[name] for name in ("loss", "accuracy") if name in value}
    if "outputs" not in value:
        wrong = {name: value.pop(name) for name in _WRONG if name in value}
        value["outputs"] = [{"name": "", **wrong}] if wrong else []
        if not all(map(_output, value["outputs"])):
            raise LockstepError(f"evaluation: {_quoted(written)} has neither a confusion matrix of its classes nor errors")
    return value


def _output(value: Any) -> bool:
    """Return whether a value describes one output's errors, or why these are unknown."""
    if not isinstance(value, dict) or len({"confusion", "errors", "why"} & value.keys()) != 1:
        return False
    if not holding({"name": text, **{name: check for name, check in _WRONG.items() if name in value}})(value):
        return False
    matrix = value.get("confusion")
    if "calibration" in value and (matrix is None or len(matrix) != 2):
        return False
    if matrix is None:
        return "mistakes" not in value
    if not all(max(one["of"], one["taken_for"]) < len(value.get("classes", ())) for one in value.get("mistakes", ())):
        return False
    return {len(rows) for rows in [matrix, *matrix]} == {len(value.get("classes", ()))} and any(map(sum, matrix))


def _calibration(value: Any) -> bool:
    """Return whether a value compares probabilities with outcomes, in equally many bins each."""
    return holding(_CALIBRATION)(value) and len({len(value[name]) for name in ("counts", "predicted", "observed")}) == 1


def _mistake(value: Any) -> bool:
    """Return whether a value is a wrongly classified example with its thumbnail: `shape`, and its rows of bytes in Base64."""
    if not holding(_MISTAKE)(value) or value["shape"][2] not in (1, 3):
        return False
    height, width, channels = value["shape"]
    return len(value["rows"]) == height and all(_decoded(row) == width * channels for row in value["rows"])


def _decoded(row: str) -> int:
    """Length of a row in bytes; -1 if it is not Base64."""
    try:
        return len(base64.b64decode(row, validate=True))
    except ValueError:
        return -1


def _errors(value: Any) -> bool:
    """Return whether a value is a histogram of errors over a range that is not empty."""
    return holding(_ERRORS)(value) and value["low"] < value["high"]


_MISTAKE: dict[str, Check] = {
    **dict.fromkeys(("example", "of", "taken_for"), count),
    "probability": lambda value: number(value) and 0 <= value <= 1,
    "shape": lambda value: each(lambda side: count(side) and 1 <= side <= LARGEST_SIDE, 3)(value) and len(value) == 3,
    "rows": each(text, LARGEST_SIDE),
}
_WRONG: dict[str, Check] = {
    "classes": each(text, 100_000),
    "confusion": each(each(count, 100_000), 100_000),
    "calibration": _calibration,
    "errors": _errors,
    "mistakes": each(_mistake, MOST_MISTAKES),
    "why": text,
}


def step_time(written: str, host: str) -> dict[str, Any]:
    """Output of `trainer steptime` on a host, parsed; LockstepError if that is something else."""
    return _read(written, f"{host}: steptime", _STEP_TIME, {})


def answer(written: str, name: str) -> dict[str, Any]:
    """Parse a program's JSON from a host: a dict with finite numbers, its texts made safe for a terminal; else LockstepError."""
    value = _parsed(written)
    if not isinstance(value, dict):
        raise LockstepError(f"{name}: {_quoted(written)} is no answer")
    return dict(_shown(value, printable_lines))


def _read(written: str, name: str, required: Mapping[str, Check], types: Mapping[str, Check]) -> dict[str, Any]:
    """A dict with the `required` fields; those in `types` are optional, and any others must be plain."""
    value = _parsed(written)
    if not isinstance(value, dict) or not holding({**{key: types[key] for key in types if key in value}, **required})(value):
        raise LockstepError(f"{name}: {_quoted(written)} is not what a worker writes")
    return dict(_shown(value))


def _quoted(written: str) -> str:
    return printable(written.strip(), 80) or "(empty)"


def read_records(path: Path) -> list[dict[str, Any]]:
    """Records of a metrics.jsonl, oldest first, none if there is no file; an incomplete last line and invalid lines are skipped."""
    if not path.is_file():
        return []
    complete = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
    return metrics(complete.split("\n"))[0]


def chief_records(run: Path) -> list[dict[str, Any]]:
    """The chief's records of a run's last launch."""
    chief = LaunchRecord.read(run).hosts[0].name
    return read_records(part_of(run, chief) / METRICS)
