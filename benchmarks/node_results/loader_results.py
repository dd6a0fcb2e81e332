"""Conclusions on passes over a folder of images with different numbers of loaders."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.node_results.passes import Conclusion, Group, Picture, grouped
from benchmarks.shared import benchmark
from control.common.text import count

GAIN = 0.03
"""More loaders are worthwhile if they gain more than this fraction; less is within the spread of passes."""
UNSURE = 0.10
"""A gain above this fraction that repeats can't confirm leaves the question open; it does not rule out more loaders."""


def _fastest(groups: Sequence[Group]) -> Group:
    """The row with the highest median images/s."""
    return max(groups, key=lambda group: group.images_per_s.median)


def _enough(groups: Sequence[Group]) -> Group:
    """The fewest loaders within `GAIN` of the fastest, or within `UNSURE` if passes differ by that much."""
    best = _fastest(groups)
    return next(row for row in groups if _gain(row, best) < GAIN or (_gain(row, best) < UNSURE and _alike(row, best)))


def _gain(row: Group, best: Group) -> float:
    return best.images_per_s.median / row.images_per_s.median - 1


def _alike(row: Group, best: Group) -> bool:
    return len(row.seconds.values) > 1 and not row.seconds.differs(best.seconds)


def _answer(groups: Sequence[Group], cores: int) -> str:
    """How many loaders are enough, and how many training uses by default."""
    first, best, fastest = groups[0], _enough(groups), _fastest(groups)
    rate = f"{best.images_per_s.median:,.0f} images/s"
    speed = rate if best is first else f"{rate}, {_gain(first, best) + 1:.2f} times those of {first['loaders']}"
    few, gain = count(best["loaders"], "loader"), _gain(best, fastest)
    if len(groups) == 1:
        sentence = f"{few}: {rate}."
    elif best is groups[-1]:
        sentence = f"The most loaders measured are the fastest: {few}, {speed}; more may be faster still."
    else:
        more = f"more bring less than {GAIN:.0%}" if gain < GAIN else f"what more bring ({gain:.0%}) is within what passes differ by"
        sentence = f"{few} {'is' if best['loaders'] == 1 else 'are'} enough: {speed}; {more}."
    if any(_alike(row, fastest) for row in groups if row["loaders"] < best["loaders"]):
        passes = 3 * len(fastest.seconds.values)
        sentence += f" Passes differ too much to be sure of that: measure more of them, as in -e passes={passes}."
    return f"{sentence} Training takes {cores} here (the cores) unless data.loaders says otherwise."


def _cached(decoded_mb: float, limit_mb: int) -> str:
    """Sentence on whether training would decode these images on the fly at all."""
    takes = f"Decoded, all images take {decoded_mb:,.0f} MB"
    if decoded_mb > limit_mb:
        return f"{takes}, above data.cache_limit_mb={limit_mb}: training decodes them in every epoch, as timed here."
    return (
        f"{takes}, within data.cache_limit_mb={limit_mb}: training would decode them once and read a cache from then on; "
        "what is timed here is what a folder above the limit costs in every epoch."
    )


def conclude(bench: Mapping[str, Any], timed: Mapping[str, Any], _: float) -> Conclusion:
    """Conclusion from the results of `benchmarks.node.loader`."""
    groups = grouped(timed["rows"], "loaders")
    record = {
        "dataset": bench["dataset"],
        "made_up": bench["made"],
        "images": timed["images"],
        "mean_file_bytes": round(timed["bytes"] / timed["images"]),
        "image_size": bench["image_size"],
    }
    panels = {"time per pass (s)": lambda group: group.seconds, "images/s": lambda group: group.images_per_s}
    picture = Picture(f"Passes over {timed['images']:,} JPEG images by loader workers", "loaders", "loader workers (threads)", panels)
    train = benchmark.command("train.yml", {"dataset": "FOLDER", "set": f"data.loaders={_enough(groups)['loaders']}"})
    sentences = [_answer(groups, timed["cores"]), _cached(timed["decoded_mb"], bench["cache_limit_mb"])]
    return Conclusion(groups, "pass", sentences, record, picture, ("train with as many", train))
