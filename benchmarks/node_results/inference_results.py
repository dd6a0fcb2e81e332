"""Conclusions on predictions on different numbers of devices: whether more devices are faster, and why."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.node_results.passes import Conclusion, Group, Picture, grouped
from benchmarks.shared import benchmark
from control.common.text import count

SPARE = 0.1
"""Idle cores below this fraction of the busy ones are too few for another device."""


def _answer(groups: Sequence[Group], batches: Sequence[int], timed: Mapping[str, Any], cpus: float) -> str:
    """One sentence: whether the most devices are faster than the fewest, and why.

    Args:
        groups: those of the requested batches and of the smallest one.
        batches: the requested batches; the largest is compared.
        timed: `smallest`, the batch of one image per device; `kind` of the devices, `CPU` or `GPU`; `threads` in TensorFlow's single
            pool for logical devices.
        cpus: cores that the host grants this process.
    """
    by = {(group["devices"], group["batch"]): group for group in groups}
    few, many = groups[0]["devices"], groups[-1]["devices"]
    if few == many:
        return f"Only {count(many, 'device')} measured: nothing to compare."
    ratios = [_ratio(by[few, batch], by[many, batch]) for batch in batches]
    one, several = by[few, max(batches)], by[many, max(batches)]
    cut = (by[many, timed["smallest"]].seconds.median - by[few, timed["smallest"]].seconds.median) * 1000
    between = f" ({min(ratios):.2f} to {max(ratios):.2f} times over all batches)" if len(batches) > 1 else ""
    verdict = f"{_verdict(one, several)}{between}"
    return f"{verdict}: {_why_gpu(many, cut) if timed['kind'] == 'GPU' else _why(one, several, cut, cpus, timed['threads'])}."


def _ratio(one: Group, several: Group) -> float:
    return several.images_per_s.median / one.images_per_s.median


def _verdict(one: Group, several: Group) -> str:
    few, many = count(one["devices"], "device"), count(several["devices"], "device")
    ratio, at = _ratio(one, several), f"a batch of {one['batch']:,}"
    if not one.images_per_s.differs(several.images_per_s):
        return f"no measurable difference between {many} and {few} at {at}: {ratio:.2f} times the images/s"
    if ratio > 1:
        return f"{many} predict {ratio:.2f} times the images/s of {few} at {at}"
    return f"{many} are slower than {few} at {at}, {ratio:.2f} times the images/s"


def _why(one: Group, several: Group, cut: float, cpus: float, threads: int) -> str:
    """The reason: logical devices add no cores, so what counts is how many the fewest devices leave idle."""
    spare = max(0.0, min(one.idle, cpus - one.busy))
    keeps = f"{count(one['devices'], 'device')} keep{'s' if one['devices'] == 1 else ''}"
    room = f"{keeps} {one.busy:.1f} of {cpus:.3g} cores busy and leave{'s' if one['devices'] == 1 else ''} {spare:.1f} idle"
    if spare < SPARE * one.busy:
        room += ", too little for another"
    share = f"all share TensorFlow's one pool of {count(threads, 'thread')}"
    return f"{room}; {several['devices']} keep {several.busy:.1f} busy; {share}; and cutting a batch {_costs(several['devices'], cut)}"


def _why_gpu(many: int, cut: float) -> str:
    return f"each device has hardware and memory of its own; cutting a batch {_costs(many, cut)}"


def _costs(devices: int, cut: float) -> str:
    return f"in {devices} costs {cut:.2f} ms per call" if cut > 0 else f"in {devices} has no measurable cost"


def conclude(bench: Mapping[str, Any], timed: Mapping[str, Any], cpus: float) -> Conclusion:
    """Conclusion from the results of `benchmarks.node.inference`; `cpus`: cores that the host grants."""
    groups, batches = grouped(timed["rows"], "batch", "devices"), bench["settings"]["batches"]
    record = {**{key: timed[key] for key in ("model", "parameters", "threads")}, "of": bench["of"]}
    record |= {"devices": timed["kind"], "smallest_batch": timed["smallest"], "results": [group.record() for group in groups]}
    panels = {"images/s": lambda group: group.images_per_s}
    title = f"Prediction by batch size and devices: {timed['model']}"
    picture = Picture(title, "batch", "batch size (images, logarithmic)", panels, logarithmic=True)
    deeper = benchmark.command("benchmarks/inference.yml", {"config": "deep_cnn"})
    asked = [group for group in groups if group["batch"] in batches]
    return Conclusion(asked, "call", [_answer(groups, batches, timed, cpus)], record, picture, ("another model", deeper))
