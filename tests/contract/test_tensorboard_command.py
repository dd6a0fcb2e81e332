"""`tensorboard.yml` as a person sees it: curves of both splits, a row for every run and trial, in Chromium."""

import contextlib
import json
import subprocess
import sys
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from control.common import configurations
from control.runs.results.hparams import FIRST, METRICS
from tests import pages
from tests.commands import Commands, Ended
from tests.ports import free_ports
from tests.project import await_until
from trainer.common.files import write_json, write_text
from trainer.config.schema import Config
from trainer.worker.telemetry import Events

EPOCHS = 5
CELLS = """() => {
    const found = [];
    const walk = (node) => {
        if (node.tagName === 'VAADIN-GRID-CELL-CONTENT' && node.getClientRects().length) {
            const box = node.getBoundingClientRect();
            found.push([box.top + box.height / 2, box.left, node.innerText.trim()]);
        }
        if (node.shadowRoot) walk(node.shadowRoot);
        for (const child of node.children || []) walk(child);
    };
    walk(document.body);
    return found;
}"""


@dataclass
class Board:
    """A scratch project whose TensorBoard is up."""

    project: Commands
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def play(self, *arguments: str) -> Ended:
        return self.project.ended("tensorboard", *arguments)


def make_run(folder: Path, workers: int, model: str, lift: float) -> None:
    """A run directory with real event files, `lift` added to every accuracy."""
    config = {"model.name": model, "train.global_batch": 64 * workers}
    write_text(
        folder / "config.yml", configurations.dump(configurations.build(configurations.override(configurations.to_dict(Config()), config)))
    )
    hosts = [{"rank": rank, "name": f"worker{rank + 1}"} for rank in range(workers)]
    write_json(folder / "cluster.json", {"created_at": "2026-11-21T05:26:20+00:00", "hosts": hosts})
    best = {"epoch": EPOCHS, "val_accuracy": accuracy(EPOCHS, lift) - 0.05}
    done = {"workers": workers, "epochs_done": EPOCHS, "seconds_total": 12.5, "images_per_s": 500.0 * workers, "best": best}
    chosen = {"reduction": {"name": "powersgd" if workers > 1 else "packed"}}
    write_json(folder / "summary.json", {"state": "SUCCEEDED", **done, **chosen})
    events = Events(folder / "logs")
    for epoch in range(1, EPOCHS + 1):
        now = accuracy(epoch, lift)
        losses = {"loss": 1 - now, "val_loss": 1.1 - now}
        speed = {"learning_rate": 0.01, "images_per_s": 500.0}
        events.epoch({"epoch": epoch, "accuracy": now, "val_accuracy": now - 0.05, **losses, **speed}, {})


def accuracy(epoch: int, lift: float) -> float:
    return 0.3 + 0.08 * epoch + lift


@pytest.fixture(scope="module")
def board(commands: Commands) -> Iterator[Board]:
    """Two runs, of which one knows nothing of its cluster, and a trial of a sweep; one run was shown alone before."""
    project = commands
    make_run(project.run("first"), 2, "task_cnn", 0.0)
    make_run(project.root / "sweeps" / "pi" / "trials" / "pi.w1.r1", 1, "deep_cnn", 0.1)
    make_run(project.run("older"), 3, "task_cnn", 0.2)
    (project.run("older") / "cluster.json").unlink()
    made = Board(project, free_ports(1)[0])
    one = made.play("run=first", f"tensorboard_port={made.port}")
    assert f"here            {made.address}" in one.stdout
    assert one.changed
    await_until(lambda: list(_rows(made.port)) == ["first"], 60, "one run's row")
    started = made.play()
    assert f"here            {made.address}" in started.stdout
    assert started.changed
    await_until(lambda: _rows(made.port) == {"first", "pi.w1.r1"}, 60, "its data")
    yield made
    made.play("state=absent")


@pytest.fixture(scope="module")
def shown(board: Board) -> Iterator[pages.Shown]:
    """Its page, with the table."""
    with pages.chromium() as browser, pages.opened(browser, f"{board.address}#hparams", width=2000) as opened:
        yield opened


def trouble(shown: pages.Shown, board: Board) -> list[str]:
    """Errors, what could not be had, and what was asked of anybody else."""
    return shown.errors + shown.failed + [one for one in shown.asked if not one.startswith(board.address)]


def curves_of(port: int, tag: str) -> dict[str, float]:
    """What the curves of a tag are drawn from: run -> last value."""
    asked = urllib.parse.urlencode({"requests": json.dumps([{"plugin": "scalars", "tag": tag}])}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/plugin/timeseries/timeSeries", asked, timeout=10) as answer:
        (series,) = json.load(answer)
    return {run: points[-1]["value"] for run, points in series.get("runToSeries", {}).items()}


def table_of(page) -> list[dict[str, str]]:
    """Rows of the HParams table by their column's name."""
    lines = defaultdict(list)
    for middle, left, text in page.evaluate(CELLS):
        lines[round(middle / 8)].append((left, text))
    head, *rest = [[text for _, text in sorted(line)] for _, line in sorted(lines.items())]
    return [dict(zip(head, line, strict=True)) for line in rest]


def _is_complete(page) -> bool:
    with contextlib.suppress(ValueError):
        rows = table_of(page)
        return len(rows) == 2 and all(row.get("Trial ID") and row.get("val_loss") for row in rows)
    return False


def session_groups(port: int) -> dict[str, dict[str, float]]:
    """What the table is made of: run -> metric -> value."""
    asked = {"allowedStatuses": ["STATUS_SUCCESS", "STATUS_UNKNOWN"], "colParams": [], "startIndex": 0, "sliceSize": 100}
    address = f"http://127.0.0.1:{port}/data/plugin/hparams/session_groups"
    request = urllib.request.Request(address, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        groups = json.load(answer)["sessionGroups"]
    return {one["name"]: dict(map(_metric, one.get("metricValues", []))) for one in groups}


def _metric(actual: dict[str, Any]) -> tuple[str, float]:
    return f"{actual['name']['group']}/{actual['name']['tag']}".lstrip("/"), actual["value"]


def test_curves_of_both_splits_for_runs_and_trials(board):
    await_until(lambda: len(curves_of(board.port, "accuracy")) == 6, 30, "two curves of each run")
    expected = {}
    for folder, lift in (("runs/first", 0.0), ("runs/older", 0.2), ("sweeps/pi/trials/pi.w1.r1", 0.1)):
        expected |= {f"{folder}/logs/train": accuracy(EPOCHS, lift), f"{folder}/logs/validation": accuracy(EPOCHS, lift) - 0.05}
    assert curves_of(board.port, "accuracy") == pytest.approx(expected, abs=1e-4)


def test_every_run_and_trial_is_a_row(board, shown):
    await_until(lambda: _is_complete(shown.page), 30, "the table")
    rows = table_of(shown.page)
    assert trouble(shown, board) == []
    shown_first = ["Trial ID", "Show Metrics", *FIRST, "best val_accuracy", "images_per_s", "val_accuracy", "accuracy", "val_loss"]
    assert list(rows[0]) == shown_first
    assert [[row[name] for name in ("Trial ID", "model.name", "reduction.name")] for row in rows] == [
        ["first", "task_cnn", "powersgd"],
        ["pi.w1.r1", "deep_cnn", "packed"],
    ]
    numbers = ("workers", "train.global_batch", "optimizer.learning_rate", "best val_accuracy", "images_per_s", "accuracy")
    assert [[float(row[name]) for name in numbers] for row in rows] == [
        pytest.approx([2, 128, 0.01, 0.65, 1000, 0.7], abs=1e-4),
        pytest.approx([1, 64, 0.01, 0.75, 500, 0.8], abs=1e-4),
    ]


def test_what_is_new_appears_in_the_running_one(board):
    again = board.play()
    assert not again.changed
    assert board.address in again.stdout
    assert "result/test_accuracy" not in session_groups(board.port)["first"]
    evaluated = f"epoch,split,loss,accuracy,images,seconds,evaluated_at\n{EPOCHS},test,1.0,0.625,100,1.0,2026-11-21\n"
    write_text(board.project.run("first") / "evaluations.csv", evaluated)
    make_run(board.project.run("later"), 1, "task_cnn", 0.0)
    more = board.play()
    assert more.changed
    assert board.address in more.stdout
    await_until(lambda: session_groups(board.port).get("first", {}).get("result/test_accuracy") == 0.625, 30, "the test accuracy")
    await_until(lambda: len(session_groups(board.port).get("later", {})) == len(METRICS) - 1, 30, "the new run's row")


def _rows(port: int) -> set[str]:
    try:
        return set(session_groups(port))
    except OSError:
        return set()


def test_an_unreadable_run_is_named(board):
    make_run(board.project.run("torn"), 1, "task_cnn", 0.0)
    (board.project.run("torn") / "summary.json").write_text("{")
    done = board.play()
    assert "torn: no row in TensorBoard's HParams table, for its files can't be read (JSONDecodeError: " in done.stdout
    assert board.address in done.stdout


def test_a_taken_port_is_refused(board):
    stopped = board.play("state=absent")
    assert "TensorBoard is stopped" in stopped.stdout
    assert not _rows(board.port)
    (port,) = free_ports(1)
    server = subprocess.Popen([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], stderr=subprocess.DEVNULL)
    try:
        await_until(lambda: _listens(port), 20, "another server")
        refused = board.project.refusal("tensorboard", f"tensorboard_port={port}")
    finally:
        server.terminate()
        server.wait(timeout=60)
    assert f"port {port} is taken at 127.0.0.1; name another with -e tensorboard_port=N" in refused
    assert "TensorBoard was not running" in board.play("state=absent").stdout


def _listens(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
    except OSError:
        return False
    return True
