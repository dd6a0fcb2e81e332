"""One training step as TensorFlow's profiler sees it: which thread does what, and when.

    .venv/bin/python benchmarks/scripts/trace_step.py [--workers 2] [--model task_cnn] [--reduction powersgd] [--steps 24] [--out
    PICTURE.png]

Local workers train the model (batch 64 per worker) over direct connections; the chief's steps are traced. Prints each part's
milliseconds per step (the median over steps, summed over threads), and draws the step of median length. The trace itself is
kept beside the picture, for TensorBoard's profile plugin.
"""

import argparse
import functools
import itertools
import multiprocessing
import os
import re
import shutil
import socket
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.patches import Patch

from benchmarks.shared import script
from benchmarks.shared.script import ROOT
from control.common.plotting import picture

BATCH = 64
SENDING = "sending, and waiting for the other worker"
PARTS = {
    "forward": "#4477aa",
    "backward": "#ee8866",
    "compression and update": "#228833",
    SENDING: "#bb4455",
    "other": "#999999",
}
HOST_OP, NAME = "PyFunc", re.compile(r"(?:.*/)?while/(?P<op>.*):(?P<kind>\w+)$")
BEGIN = re.compile(r"while/cond/.*/Less:Less$")


@dataclass(frozen=True)
class Span:
    """One op on one thread."""

    thread: int
    name: str
    begin: float
    """Milliseconds since the trace began."""
    end: float

    @property
    def part(self) -> str:
        """The part of the step that this op belongs to."""
        if self.name == SENDING:
            return SENDING
        if f":{HOST_OP}" in self.name:
            return "compression and update"
        if "gradient_tape" in self.name:
            return "backward"
        return "forward" if "_cnn" in self.name or "resnet" in self.name else "other"


def main() -> None:
    """Start the workers, trace the chief, print and draw."""
    parser = script.parser(__doc__, workers=2, steps=24)
    parser.add_argument("--model", default="task_cnn")
    parser.add_argument("--reduction", default="powersgd")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "step.png")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(given.workers)]
    addresses = [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    for probe in probes:
        probe.close()
    start = multiprocessing.get_context("spawn").Process
    workers = [start(target=train, args=(given, rank, addresses)) for rank in range(given.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(any(worker.exitcode for worker in workers))


def train(given: argparse.Namespace, rank: int, addresses: list[str]) -> None:
    """Train until everything is traced and warm, then make one call of all steps; the chief's is reported."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
    import common
    import lockstep
    import tensorflow as tf
    import tensorflow_model

    from trainer.network.sockets_all_reduce import Direct

    threads = max(1, len(os.sched_getaffinity(0)) // given.workers)
    task = common.Task(rank, addresses, given.steps, 0, 0.0, BATCH, threads, "", given.out)
    os.environ["TF_CONFIG"] = tensorflow_model.tf_config(task)
    common.CHUNK = given.steps
    Direct.all_reduce = _annotated(Direct.all_reduce, tf.profiler.experimental.Trace)  # type: ignore[method-assign]
    trained = lockstep.lockstep(task, {"model": {"name": given.model}, "reduction": {"name": given.reduction}})
    run = functools.partial(trained.run, given.steps)
    run()
    run()
    if rank == 0:
        report(traced(run, given.out.with_suffix(".xplane.pb")), given)
    else:
        run()


def _annotated(work: Callable[..., Any], trace: Callable[[str], Any]) -> Callable[..., Any]:
    """The function with its own span in the trace."""

    def call(*arguments: Any) -> Any:
        with trace(SENDING):
            return work(*arguments)

    return call


def traced(run: Callable[[], object], keep: Path) -> list[Span]:
    """Spans of all threads during `run`."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        run()
        tf.profiler.experimental.stop()
        (path,) = Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        shutil.copy(path, keep)
    return list(spans(space))


def spans(space: Any) -> Iterator[Span]:
    """Ops of a profile (XSpace) by thread."""
    for plane in space.planes:
        for thread, line in enumerate(plane.lines):
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if NAME.search(name) or name == SENDING or BEGIN.search(name):
                    begin = line.timestamp_ns / 1e6 + event.offset_ps / 1e9
                    yield Span(thread, name, begin, begin + event.duration_ps / 1e9)


def steps(recorded: Iterable[Span]) -> list[list[Span]]:
    """Spans by step, in order, with times relative to the step. A step begins where the loop's condition is evaluated."""
    ordered = sorted(recorded, key=lambda span: span.begin)
    begins = [span.begin for span in ordered if BEGIN.search(span.name)]
    return [
        [Span(span.thread, span.name, span.begin - first, span.end - first) for span in ordered if first <= span.begin < last]
        for first, last in itertools.pairwise(begins)
    ]


def milliseconds(step: Iterable[Span]) -> dict[str, float]:
    """Milliseconds of each part of a step, summed over threads; what is sent inside a host op counts once."""
    sums: dict[str, float] = defaultdict(float)
    for span in step:
        sums[span.part] += span.end - span.begin
    sums["compression and update"] -= sums[SENDING]
    return dict(sums)


def length(step: list[Span]) -> float:
    """Milliseconds from the first op to the end of the last."""
    return max(span.end for span in step)


def report(recorded: list[Span], given: argparse.Namespace) -> None:
    """Print the table and draw the picture."""
    all_steps = steps(recorded)
    middle = statistics.median(length(one) for one in all_steps)
    parts = [milliseconds(one) for one in all_steps]
    print(f"{given.workers} workers, {given.model}, {given.reduction}, batch {BATCH} a worker: {len(all_steps)} steps of {middle:.1f} ms")
    for part in PARTS:
        value = statistics.median(one.get(part, 0.0) for one in parts)
        print(f"  {part:42} {value:6.1f} ms")
    draw(min(all_steps, key=lambda one: abs(length(one) - middle)), given.out)
    print(f"{given.out}, {given.out.with_suffix('.xplane.pb')}")


def draw(step: list[Span], path: Path) -> None:
    """Draw a lane per thread and a bar per op."""
    threads = sorted({span.thread for span in step if span.end - span.begin > 0.05})
    with picture(path, 1.4 + 0.8 * len(threads), 10) as figure:
        axes = figure.subplots()
        for span in sorted(step, key=lambda one: one.part == SENDING):
            if span.thread in threads:
                _bar(axes, span, threads.index(span.thread), 0.06 * length(step))
        axes.set(yticks=range(len(threads)), yticklabels=[f"thread {number + 1}" for number in range(len(threads))], xlabel="milliseconds")
        axes.set_xlim(0, length(step))
        axes.legend(handles=[Patch(color=color, label=part) for part, color in PARTS.items()], ncols=5, fontsize=7, loc="upper center")
        axes.set_ylim(-0.5, len(threads) + 0.1)


def _bar(axes: Any, span: Span, lane: int, labelled: float) -> None:
    """One op; its label if it takes longer than `labelled` milliseconds."""
    took = span.end - span.begin
    axes.broken_barh([(span.begin, took)], (lane - 0.4, 0.8), facecolor=PARTS[span.part], edgecolor="white", linewidth=0.4)
    if took > labelled:
        axes.text((span.begin + span.end) / 2, lane, _label(span), ha="center", va="center", fontsize=7, color="white")


def _label(span: Span) -> str:
    matched = NAME.search(span.name)
    if matched is None:
        return "sums" if span.name == SENDING else ""
    scope = [one for one in matched["op"].split("/") if re.match(r"(conv|dense)", one)]
    return f"{scope[0]}\n{re.sub('_Mkl|Native|Fused|Backprop|WithBias', '', matched['kind'])}" if scope else ""


if __name__ == "__main__":
    main()
