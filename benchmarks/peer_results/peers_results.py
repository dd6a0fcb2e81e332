"""Analysis of the cells of `benchmarks/peers.yml`: rows of results.csv, medians, ratios, limits, the table. Pure except for files."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from benchmarks.peer_results.peer_trials import IDEAL, OURS, PEER, REDUCED, SYSTEMS, Cell, bits_per_s
from control.campaign import store
from control.common import text
from control.runs.results import outcome

PARAMETERS = 3_688_714
MEASURED, FAILED = "measured", "failed"
PEER_GONE = 75
"""Exit code of a worker that ended because another one ended."""
WATCHED = "lockstep-parts"
BOUNDS = {"in-step": "with nothing sent but 16 bytes, twice", "ideal": "with nothing sent, and nobody waited for"}
REST = "TensorFlow: forward, backward, small layers' updates"
ERRORS = ("Error", "error:", "Exception", "what():", "Fatal", "gone")
PICTURE = "![images/s by system and by number of workers](peers.png)"
READING = (
    "ms per step: median over rounds; from, to: the fastest and the slowest round. A round's figure is the mean of its timed steps.",
    "images/s: of all workers together, median over rounds.",
    "of ideal: of the images/s of the same hosts at once with no reduction at all (the limit of computing), in the same round; median.",
    "of best peer: of the images/s of the peer that was the fastest in the same round; median.",
    "MB sent: what left a host's network interface a step. wire ms: these bytes at the link's rate (the limit of the wire).",
    "CPU ms: processor time of one worker a step.",
)
HEADER = ("system", "ms per step", "from", "to", "images/s", "of ideal", "of best peer", "MB sent", "wire ms", "CPU ms", "rounds")


@dataclass(frozen=True)
class Row:
    """One cell in results.csv; numbers are None if it failed."""

    round: int
    link: str
    workers: int
    system: str
    state: str
    seconds_step: float | None = None
    """Global batch divided by images_per_s."""
    images_per_s: float | None = None
    """Sum over all workers of batch divided by seconds per step."""
    slowest_seconds_step: float | None = None
    cpu_seconds_step: float | None = None
    """CPU time per worker and step, mean over the workers."""
    sent_bytes_step: float | None = None
    """Bytes sent through a host's interface per step, the maximum over workers."""
    steps: int | None = None
    loss: float | None = None
    """Last loss of the first worker."""
    weights_equal: bool | None = None
    """True if all workers ended with the same weights; not required if nothing is reduced."""
    started_at: float | None = None
    """Seconds since 1970."""
    chosen: str = ""
    """This project's reduction, if it chose it itself."""
    reason: str = ""
    """Why the cell failed."""

    @property
    def trial(self) -> Cell:
        """The cell of this row."""
        return Cell(self.round, self.link, self.workers, self.system)

    @property
    def measured(self) -> bool:
        """True if the row has numbers."""
        return self.state == MEASURED

    @classmethod
    def of_results(cls, cell: Cell, workers: Sequence[Mapping[str, Any]]) -> Self:
        """The row of a cell from its workers' results, in order of rank."""
        wrong = next((one["parameters"] for one in workers if one["parameters"] != PARAMETERS), None)
        if wrong is not None:
            return cls.failed(cell, f"it trains {wrong:,} parameters, not the model's {PARAMETERS:,}")
        if not all(math.isfinite(loss) for one in workers for loss in one["losses"]):
            return cls.failed(cell, "its loss is no number")
        if any(one["weights_before"] == one["weights_sha256"] for one in workers):
            return cls.failed(cell, "its steps changed no weight")
        rate = sum(one["batch"] / one["seconds_step"] for one in workers)
        chooses = cell.workers > 1 and SYSTEMS[cell.system].kind == OURS and "reduction" not in SYSTEMS[cell.system].variant
        return cls(
            **asdict(cell),
            state=MEASURED,
            seconds_step=sum(one["batch"] for one in workers) / rate,
            images_per_s=rate,
            slowest_seconds_step=max(one["seconds_step"] for one in workers),
            cpu_seconds_step=statistics.fmean(one["cpu_seconds_step"] for one in workers),
            sent_bytes_step=max(one["sent_bytes_step"] for one in workers),
            steps=workers[0]["steps"],
            loss=workers[0]["losses"][-1],
            weights_equal=len({one["weights_sha256"] for one in workers}) == 1,
            started_at=min(one["started_at"] for one in workers),
            chosen=workers[0]["settings"]["reduction"]["name"] if chooses else "",
        )

    @classmethod
    def failed(cls, cell: Cell, reason: str) -> Self:
        """The row of a cell without numbers."""
        return cls(**asdict(cell), state=FAILED, reason=reason)


def first_failure(ends: Sequence[Mapping[str, Any]]) -> str:
    """Why a cell failed, in one line, from the worker that did not end just because another one had.

    Args:
        ends: for each worker `host`, `exit` (its code; None if its session ended without one) and `lines`, the end of its log.
    """
    bad = [one for one in ends if one["exit"] != 0] or list(ends)
    one = min(bad, key=lambda each: (each["exit"] == PEER_GONE, each["exit"] is None))
    code = one["exit"]
    ends_without = {None: "ended without an exit code", 124: "took too long"}
    how = ends_without.get(code) or f"exit code {code}{outcome.signal_name(code)}"
    return f"{one['host']}: {how}: {telling(one['lines'])}"


def telling(lines: Sequence[str]) -> str:
    """The most informative line of a log: the last one that names an error, else the last."""
    text_lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in text_lines if any(word in line for word in ERRORS)]
    return ((errors or text_lines)[-1] if text_lines else "no output")[:300]


STORE = store.Store(Row)


class Range(NamedTuple):
    """A figure over the rounds."""

    least: float
    median: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """The range of at least one value."""
        ordered = sorted(values)
        return cls(ordered[0], statistics.median(ordered), ordered[-1])


@dataclass(frozen=True)
class Point:
    """A system on a number of workers at one link, over all rounds in which it was measured."""

    system: str
    link: str
    workers: int
    rows: tuple[Row, ...]
    """At least one, in order of rounds."""

    @property
    def name(self) -> str:
        """The system, with the reduction it chose."""
        chosen = sorted({row.chosen for row in self.rows} - {""})
        return f"{self.system} ({', '.join(chosen)})" if chosen else self.system

    def of(self, column: str) -> Range:
        """A column of its rows."""
        return Range.of(getattr(row, column) for row in self.rows)

    @property
    def images_per_s(self) -> float:
        """Median over rounds."""
        return self.of("images_per_s").median

    def median(self, column: str) -> float | None:
        """The median of a column that not every system measures."""
        return None if any(getattr(row, column) is None for row in self.rows) else self.of(column).median

    @property
    def wire(self) -> float | None:
        """Least seconds that a step's bytes take on the link; None without a limit, or if nobody counted them."""
        rate, sent = bits_per_s(self.link), self.median("sent_bytes_step")
        return sent * 8 / rate if rate and sent is not None else None


class Results:
    """All rows, in the order of the table: by link, by number of workers, by system."""

    def __init__(self, rows: Sequence[Row]):
        """Group rows into points."""
        self.rows = sorted(
            rows, key=lambda row: (-(bits_per_s(row.link) or math.inf), row.workers, list(SYSTEMS).index(row.system), row.round)
        )
        self.links = list(dict.fromkeys(row.link for row in self.rows))
        self.workers = sorted({row.workers for row in self.rows})
        self.most = max((row.workers for row in self.rows if row.measured), default=0)
        """The largest number of workers with a measurement."""
        self.systems = [name for name in SYSTEMS if any(row.system == name for row in self.rows)]
        self.blocks = list(dict.fromkeys((row.link, row.workers) for row in self.rows))
        """Links and numbers of workers."""
        measured: dict[tuple[str, int, str], list[Row]] = defaultdict(list)
        for row in self.rows:
            if row.measured:
                measured[row.link, row.workers, row.system].append(row)
        self.points = {key: Point(key[2], key[0], key[1], tuple(some)) for key, some in measured.items()}

    def at(self, link: str, workers: int) -> list[Point]:
        """Points in one block of the table, fastest first."""
        points = [point for point in self.points.values() if (point.link, point.workers) == (link, workers)]
        return sorted(points, key=lambda point: -point.images_per_s)

    def best(self, link: str, workers: int, kind: str) -> Point | None:
        """The fastest system of a kind in a block."""
        return next((point for point in self.at(link, workers) if SYSTEMS[point.system].kind == kind), None)

    def best_by_round(self, link: str, workers: int) -> dict[int, Row]:
        """The fastest peer of each round in a block; among similar peers it may change from round to round."""
        rows = [row for point in self.at(link, workers) if SYSTEMS[point.system].kind == PEER for row in point.rows]
        return {row.round: row for row in sorted(rows, key=lambda row: row.images_per_s or 0.0)}

    def alone(self, system: str) -> Point | None:
        """A system with one worker, which is measured at only one link."""
        return next((self.points[link, 1, system] for link in self.links if (link, 1, system) in self.points), None)

    def ratio(self, point: Point, other: Point | None) -> Range | None:
        """Ratio of images/s between two points over the rounds that have both."""
        return _ratio(point, {row.round: row for row in other.rows} if other else {})

    def times_best(self, point: Point) -> Range | None:
        """Ratio of images/s to the fastest peer of each round."""
        return _ratio(point, self.best_by_round(point.link, point.workers))

    def table(self, link: str, workers: int) -> str:
        """One block for the terminal: the first column left-aligned, numbers right-aligned."""
        table = [HEADER, *self._block_rows(link, workers)]
        first, *widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [[row[0].ljust(first), *map(str.rjust, row[1:], widths)] for row in table]
        return "\n".join([heading(link, workers), *("  " + "  ".join(line) for line in lines)])

    def _block_rows(self, link: str, workers: int) -> list[list[str]]:
        """Table cells of one block; systems without numbers are last."""
        ideal, points = self.best(link, workers, IDEAL), self.at(link, workers)
        tried = dict.fromkeys(row.system for row in self.rows if (row.link, row.workers) == (link, workers))
        failed = [name for name in tried if (link, workers, name) not in self.points]
        return [self._cells(point, ideal) for point in points] + [[name, "failed", *["-"] * (len(HEADER) - 3), "0"] for name in failed]

    def _cells(self, point: Point, ideal: Point | None) -> list[str]:
        least, middle, most = (f"{seconds * 1000:,.1f}" for seconds in point.of("seconds_step"))
        share, times = self.ratio(point, ideal), self.times_best(point)
        return [
            point.name,
            middle,
            least,
            most,
            f"{point.images_per_s:,.0f}",
            f"{share.median:.0%}" if share else "-",
            f"{times.median:.2f}" if times else "-",
            _scaled(point.median("sent_bytes_step"), 1e-6, 2),
            _scaled(point.wire, 1000, 1),
            _scaled(point.median("cpu_seconds_step"), 1000, 1),
            str(len(point.rows)),
        ]

    def sentences(self) -> list[str]:
        """Conclusions about this project: one sentence for the largest number of workers at each link, one for one worker."""
        texts = []
        for link, workers in self.blocks:
            # With default settings, not the variant that happens to be fastest.
            ours = self.points.get((link, workers, "lockstep")) or self.best(link, workers, OURS)
            if ours and workers in (1, self.most):
                texts.append(self._sentence(ours))
        return texts

    def _sentence(self, ours: Point) -> str:
        best, ideal = self.best_by_round(ours.link, ours.workers), self.best(ours.link, ours.workers, IDEAL)
        parts = [f"{heading(ours.link, ours.workers)}: {ours.name} trains {ours.images_per_s:,.0f} images/s"]
        times, share = self.times_best(ours), self.ratio(ours, ideal)
        if best and times:
            names = ", ".join(dict.fromkeys(best[number].system for number in sorted(best)))
            middle = statistics.median(row.images_per_s or 0.0 for row in best.values())
            spread = f"; rounds {times.least:.2f} to {times.most:.2f}" if len(ours.rows) > 1 else ""
            parts.append(f"{times.median:.2f} times the best peer of its round ({names}; {middle:,.0f}{spread})")
        if ideal and share:
            spread = f"; rounds {share.least:.0%} to {share.most:.0%}" if len(ours.rows) > 1 else ""
            parts.append(f"{share.median:.0%} of the ideal ({ideal.images_per_s:,.0f}{spread})")
        return ", ".join(parts) + "."

    def failures(self) -> list[str]:
        """Systems that failed somewhere, and why: each reason once."""
        headings: dict[str, list[str]] = {}
        for row in self.rows:
            if not row.measured:
                headings.setdefault(f"{row.system}: {row.reason}", []).append(heading(row.link, row.workers))
        return [f"{what} ({'; '.join(dict.fromkeys(where))})" for what, where in headings.items()]

    def unequal(self) -> list[str]:
        """Systems whose workers did not end with equal weights although they train together."""
        systems = [row.system for row in self.rows if row.measured and not row.weights_equal and SYSTEMS[row.system].kind in REDUCED]
        return sorted(set(systems))

    def markdown(self, record: Mapping[str, Any], tables: Sequence[str] = ()) -> str:
        """The text of table.md: what was measured where, sentences, tables (also those of `parts`), failures, systems."""
        lines = ["# This project against its peers", "", f"`{record['command']}`, {record['date']}.", ""]
        lines += [f"- {line}" for line in _described(record)]
        lines += ["", *(f"- {sentence}" for sentence in self.sentences()), "", PICTURE, ""]
        for link, workers in self.blocks:
            cells = [HEADER, ["---", *["---:"] * (len(HEADER) - 1)], *self._block_rows(link, workers)]
            lines += [f"## {heading(link, workers)}", "", *("| " + " | ".join(row) + " |" for row in cells), ""]
        lines += [line for table in tables for line in ("```", table, "```", "")]
        lines += ["## How to read it", "", *(f"- {line}" for line in READING), ""]
        problems = self.failures() + [f"{name}: its workers did not end with equal weights" for name in self.unequal()]
        lines += ["## What failed", "", *(f"- {line}" for line in problems), ""] if problems else []
        lines += ["## Systems", "", *(f"- {name}: {SYSTEMS[name].title}{_versions(record, name)}" for name in self.systems), ""]
        return "\n".join(lines)

    def summary(self) -> list[dict[str, Any]]:
        """All points as plain values, for summary.json; `failures` has the systems without numbers."""
        return [self._plain(point) for point in self.points.values()]

    def _plain(self, point: Point) -> dict[str, Any]:
        best, speeds = self.best_by_round(point.link, point.workers), point.of("images_per_s")
        share, times = self.ratio(point, self.best(point.link, point.workers, IDEAL)), self.times_best(point)
        return {
            "link": point.link,
            "workers": point.workers,
            "system": point.system,
            "rounds": len(point.rows),
            "seconds_step": point.of("seconds_step")._asdict(),
            "images_per_s": speeds.median,
            "images_per_s_spread": [speeds.least, speeds.most],
            "of_ideal": share._asdict() if share else None,
            "of_best_peer": times._asdict() if times else None,
            "best_peer_by_round": {number: row.system for number, row in sorted(best.items())},
            "wire_seconds": point.wire,
            **{column: point.median(column) for column in ("sent_bytes_step", "cpu_seconds_step")},
        }


def _ratio(point: Point, theirs: Mapping[int, Row]) -> Range | None:
    ratios = [(row.images_per_s or 0.0) / (theirs[row.round].images_per_s or math.inf) for row in point.rows if row.round in theirs]
    return Range.of(ratios) if ratios else None


def _scaled(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:,.{digits}f}"


def heading(link: str, workers: int) -> str:
    """`5 workers, 100 Mbit/s`."""
    return f"{text.count(workers, 'worker')}, {shown_link(link)}" if workers > 1 else "1 worker"


def shown_link(link: str) -> str:
    """A rate for display."""
    rate = bits_per_s(link)
    if rate is None:
        return "links unlimited"
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if rate >= factor:
            return f"{rate / factor:g} {unit}"
    return f"{rate:g} bit/s"


def parts(measurements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where a step's time goes: a table for each link and number of workers at which `lockstep-parts` was measured.

    CPU time and duration of every part, medians over rounds and workers. Parts that run at the same time on two threads share
    the CPU, so their durations overlap.

    Args:
        measurements: the lines of measurements.jsonl.
    """
    by_block: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for one in measurements:
        _, link, workers, system = one["cell"].split("-", 3)
        by_block[heading(link, int(workers))][system] += [worker["result"] for worker in one["workers"] if worker["result"]]
    return [_parts(where, systems) for where, systems in by_block.items() if systems[WATCHED]]


def _parts(where: str, systems: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    watched, total = systems[WATCHED], _of_step(systems[WATCHED])
    taken = {name: [statistics.median(_a_step(one, name, kind) for one in watched) for kind in (0, 1)] for name in watched[0]["parts"][0]}
    rest = total[0] - sum(processor for processor, _ in taken.values())
    rows = [["a step", *map(_ms, total)], [f"  {REST}", _ms(rest), "-"], *([f"  {name}", *map(_ms, both)] for name, both in taken.items())]
    rows += [[meaning, *map(_ms, _of_step(systems[system]))] for system, meaning in BOUNDS.items() if systems[system]]
    return f"{where}, milliseconds per step\n{text.table(['', 'processor', 'duration'], rows)}"


def _a_step(one: Mapping[str, Any], name: str, kind: int) -> float:
    return statistics.fmean(call[name][kind] for call in one["parts"]) / int(one["settings"]["steps_per_call"])


def _of_step(workers: Sequence[Mapping[str, Any]]) -> list[float]:
    return [statistics.median(one[key] for one in workers) for key in ("cpu_seconds_step", "seconds_step")]


def _ms(seconds: float) -> text.Number:
    return text.Number(seconds * 1000, 1)


def _versions(record: Mapping[str, Any], system: str) -> str:
    versions = record.get("versions", {}).get(system)
    return " (" + ", ".join(f"{name} {version}" for name, version in versions.items()) + ")" if versions else ""


def _described(record: Mapping[str, Any]) -> list[str]:
    """Model, data, hosts and settings, for display."""
    settings = record["settings"]
    hosts = [f"{host['name']}: {host['model']}, {host['cpus']:g} CPUs, {host['memory_mb']:,} MB" for host in record["machines"]]
    return [
        f"task_cnn, {PARAMETERS:,} parameters; SGD 0.01, momentum 0.9; random 32x32x3 images in memory, {settings['batch']} a worker",
        f"{settings['warm_up']} steps of warm-up, then {settings['steps']} timed (fewer where they would take longer than "
        f"{settings['seconds']} s); {text.count(record['rounds'], 'round')}, systems in random order within each",
        *hosts,
    ]
