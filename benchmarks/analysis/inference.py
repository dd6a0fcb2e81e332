"""Analysis of predictions on different numbers of devices: whether more devices are faster, and why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.analysis.common import CORES, Passes, bars_note, deviation, differ, error_bars, figures
from control import plots
from control.text import Number, count, table

SPARE = 0.1
"""Idle cores below this fraction of the busy ones are too few for another device."""


@dataclass(frozen=True)
class Cell(Passes):
    """All passes of one number of devices at one batch size; its seconds are those of a call."""

    devices: int
    batch: int


def cells(passes: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """The passes grouped by number of devices and batch, in order of both."""
    return Cell.grouped(passes, "devices", "batch")


@dataclass(frozen=True)
class Processor:
    """The hardware behind the devices."""

    kind: str
    """`CPU` or `GPU`."""
    cpus: float
    """Cores that the host grants this process."""
    threads: int
    """Threads in TensorFlow's single pool for logical devices."""


def answer(found_cells: Sequence[Cell], batches: Sequence[int], smallest: int, processor: Processor) -> str:
    """One sentence: whether the most devices are faster than the fewest, and why.

    Args:
        found_cells: cells of the requested batches and of the smallest one.
        batches: the requested batches; the largest is compared.
        smallest: batch of one image per device.
        processor: the hardware behind the devices.
    """
    by = {(cell.devices, cell.batch): cell for cell in found_cells}
    few, many = found_cells[0].devices, found_cells[-1].devices
    if few == many:
        return f"Only {count(many, 'device')} measured: nothing to compare."
    ratios = [_ratio(by[few, batch], by[many, batch]) for batch in batches]
    one, several = by[few, max(batches)], by[many, max(batches)]
    cut = (by[many, smallest].seconds.median - by[few, smallest].seconds.median) * 1000
    between = f" ({min(ratios):.2f} to {max(ratios):.2f} times over all batches)" if len(batches) > 1 else ""
    verdict = f"{_verdict(one, several)}{between}"
    return f"{verdict}: {_why_gpu(many, cut) if processor.kind == 'GPU' else _why(one, several, cut, processor)}."


def _ratio(one: Cell, several: Cell) -> float:
    return several.images_per_s.median / one.images_per_s.median


def _verdict(one: Cell, several: Cell) -> str:
    few, many = count(one.devices, "device"), count(several.devices, "device")
    ratio, at = _ratio(one, several), f"a batch of {one.batch:,}"
    if not differ(one.images_per_s, several.images_per_s):
        return f"no measurable difference between {many} and {few} at {at}: {ratio:.2f} times the images/s"
    if ratio > 1:
        return f"{many} predict {ratio:.2f} times the images/s of {few} at {at}"
    return f"{many} are slower than {few} at {at}, {ratio:.2f} times the images/s"


def _why(one: Cell, several: Cell, cut: float, processor: Processor) -> str:
    """The reason: logical devices add no cores, so what counts is how many the fewest devices leave idle."""
    spare = max(0.0, min(one.idle, processor.cpus - one.busy))
    keeps = f"{count(one.devices, 'device')} keep{'s' if one.devices == 1 else ''}"
    room = f"{keeps} {one.busy:.1f} of {processor.cpus:.3g} cores busy and leave{'s' if one.devices == 1 else ''} {spare:.1f} idle"
    if spare < SPARE * one.busy:
        room += ", too little for another"
    share = f"all share TensorFlow's one pool of {count(processor.threads, 'thread')}"
    return f"{room}; {several.devices} keep {several.busy:.1f} busy; {share}; and cutting a batch {_costs(several.devices, cut)}"


def _why_gpu(many: int, cut: float) -> str:
    return f"each device has hardware and memory of its own; cutting a batch {_costs(many, cut)}"


def _costs(devices: int, cut: float) -> str:
    return f"in {devices} costs {cut:.2f} ms per call" if cut > 0 else f"in {devices} has no measurable cost"


def shown(found_cells: Sequence[Cell]) -> str:
    """The table for the terminal."""
    header = ["batch", "devices", "images/s (median)", "mean", "± deviation", "ms per call", *CORES]
    lines = [
        [
            cell.batch,
            cell.devices,
            Number(cell.images_per_s.median, 0),
            Number(cell.images_per_s.mean, 0),
            deviation(cell.images_per_s, 0),
            Number(cell.seconds.median * 1000, 2),
            *cell.core_cells(),
        ]
        for cell in sorted(found_cells, key=lambda cell: (cell.batch, cell.devices))
    ]
    return table(header, lines)


def as_dicts(found_cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The cells for summary.json."""
    return [
        {
            "devices": cell.devices,
            "batch": cell.batch,
            "images_per_s": figures(cell.images_per_s, 1),
            "seconds_a_call": round(cell.seconds.median, 6),
            **cell.cores(),
        }
        for cell in found_cells
    ]


def draw(found_cells: Sequence[Cell], model: str, where: str, path: Path) -> None:
    """Draw mean images/s against batch size (logarithmic), one line per number of devices, error bars of one standard deviation."""
    numbers, batches = sorted({cell.devices for cell in found_cells}), sorted({cell.batch for cell in found_cells})
    positions = {batch: math.log2(batch) for batch in batches}
    with plots.picture(path) as figure:
        axes = plots.one_panel(figure, f"Prediction by batch size and devices: {model}", where, "images/s")
        for index, devices in enumerate(numbers):
            # Side by side, so that equal points stay distinguishable.
            shift = (index - (len(numbers) - 1) / 2) * min(0.06 * plots.gap(positions), 0.1)
            some = [cell for cell in found_cells if cell.devices == devices]
            at, spreads = [positions[cell.batch] + shift for cell in some], [cell.images_per_s for cell in some]
            error_bars(axes, at, spreads, label=count(devices, "device"), **plots.line_style(index))
        axes.set_xlabel("batch size (images, logarithmic)")
        axes.set_xticks(list(positions.values()), [f"{batch:,}" for batch in batches])
        plots.start_at_zero(axes)
        axes.legend()
        plots.footnote(figure, bars_note(len(found_cells[0].images_per_s.values)))
