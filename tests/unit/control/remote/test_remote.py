"""Fetching a run's files: what is new or changed, whole, and where TensorBoard keeps reading."""

import errno
import os
import re
import shutil

import pytest
from ansible.utils.display import Display

from control.remote.worker_access import Worker
from tests.unit import hosts
from tests.unit.samples import HISTORY, flip_a_bit, read_state, write_state

WAIT = 10.0
"""Seconds within which a host answers."""
JOINING = {"kind": "phase", "phase": "joining", "note": ""}


def history(*epochs):
    """The text of a history.csv."""
    rows = [",".join([str(epoch), *["0.5"] * (len(HISTORY) - 1)]) for epoch in epochs]
    return "\n".join([",".join(HISTORY), *rows]) + "\n"


@pytest.fixture
def worker(tmp_path):
    """A worker whose host is this machine."""
    remote = tmp_path / "there"
    for name, text in {
        "history.csv": history(1),
        "config.yml": "a: 1\n",
        "checkpoints/epoch-0001.keras": "weights",
        "logs/train/events.out.tfevents.1": "one",
        "workers/pi1/metrics.jsonl": '{"t": 1.0, "kind": "phase", "phase": "joining", "note": ""}\n',
    }.items():
        (remote / name).parent.mkdir(parents=True, exist_ok=True)
        (remote / name).write_text(text)
    write_state(remote / "state" / "step-1.npz")
    made = Worker(hosts.action(), str(remote), str(remote / "workers/pi1"), "s")
    yield made, remote, tmp_path / "here"
    made.close()


@pytest.fixture
def alive(tmp_path, monkeypatch):
    """The process of the worker's session."""
    process = hosts.session(tmp_path, monkeypatch)
    yield process
    end(process)


def end(process):
    """End a worker's process."""
    process.kill()
    process.wait()


def test_what_is_new_is_fetched_once(worker):
    made, remote, here = worker
    fetched = made.collect(here)
    assert sorted(fetched) == [
        *(
            "checkpoints/epoch-0001.keras",
            "history.csv",
            "logs/train/events.out.tfevents.1",
            "state/step-1.npz",
            "workers/pi1/metrics.jsonl",
        )
    ]
    assert made.collect(here) == []
    (remote / "history.csv").write_text(history(1, 2))
    assert made.collect(here) == ["history.csv"]
    assert (here / "history.csv").read_text() == history(1, 2)


@pytest.mark.parametrize("only", [None, "workers/pi1"])
def test_replaced_states_are_dropped_and_lost_ones_kept(worker, only):
    made, remote, here = worker
    for step in (1, 2, 3):
        for folder in ("state", "workers/pi1/memory"):
            (remote / folder).mkdir(exist_ok=True)
            write_state(remote / folder / f"step-{step}.npz")
            if step > 1:
                (remote / folder / f"step-{step - 1}.npz").unlink()
        made.collect(here, only)
    assert [path.name for path in (here / "workers/pi1/memory").iterdir()] == ["step-3.npz"]
    assert [path.name for path in (here / "state").iterdir()] == ["step-3.npz"] if only is None else not (here / "state").exists()
    shutil.rmtree(remote / "workers")
    (remote / "workers/pi1").mkdir(parents=True)
    made.collect(here, only)
    assert [path.name for path in (here / "workers/pi1/memory").iterdir()] == ["step-3.npz"]


def test_what_is_wanted_is_fetched_once(worker):
    """Of a host that was the chief for a while; the later chief's snapshot of the same epoch stays."""
    made, remote, here = worker
    (here / "checkpoints").mkdir(parents=True)
    (here / "checkpoints" / "epoch-0001.keras").write_text("of a later chief")
    for epoch in (2, 999_999_999):
        (remote / "checkpoints" / f"epoch-{epoch:04d}.keras").write_text("weights")
    wanted = {"checkpoints/epoch-0001.keras", "checkpoints/epoch-0002.keras"}
    assert made.collect(here, "checkpoints", wanted=wanted.__contains__) == ["epoch-0002.keras"]
    assert (here / "checkpoints" / "epoch-0001.keras").read_text() == "of a later chief"


def test_a_trials_weights_stay_where_they_are(worker):
    made, _, here = worker
    made.collect(here, without=("checkpoints", "state"))
    assert sorted(path.name for path in here.iterdir()) == ["history.csv", "logs", "workers"]


def test_only_a_workers_own_folder(worker):
    made, _, here = worker
    assert made.collect(here, "workers/pi1") == ["metrics.jsonl"]
    assert [path.name for path in here.iterdir()] == ["workers"]


def test_an_event_file_grows_in_place(worker):
    """TensorBoard keeps it open; of a file that took its place it would see nothing."""
    made, remote, here = worker
    made.collect(here)
    with (here / "logs/train/events.out.tfevents.1").open() as opened:
        assert opened.read() == "one"
        events = remote / "logs/train/events.out.tfevents.1"
        events.write_text("one, two")
        assert made.collect(here) == ["logs/train/events.out.tfevents.1"]
        assert opened.read() == ", two"
    assert made.collect(here) == []
    assert not list(here.rglob(".part-*"))


def test_a_hosts_clock_is_compared_with_this_machines(worker):
    made, remote, _ = worker
    (remote / "workers/pi1/exit.json").write_text('{"exit_code": 0, "ended_at": 5.0}')
    seen = made.poll()
    assert abs(seen.ahead) < 1
    assert (seen.exit["ended_at"], seen.records, seen.alive) == (5.0, [{"t": 1.0, **JOINING}], False)


def test_new_lines_of_log_come_once_and_whole(worker, alive):
    made, remote, _ = worker
    log = remote / "workers/pi1/worker.log"
    log.write_text("=== launch 1\nold\n=== launch 2, now\n" + "".join(f"line {number}\n" for number in range(5)) + "torn")
    assert made.new_lines(3, WAIT) == (["line 2", "line 3", "line 4"], True)
    with log.open("a") as stream:
        stream.write(" ü no more\nnext")
    assert made.new_lines(3, WAIT) == (["torn ü no more"], True)
    log.write_text("another\n")
    assert made.new_lines(3, WAIT) == (["another"], True)
    with log.open("a") as stream:
        stream.write("the last words")
    end(alive)
    news = [made.new_lines(3, WAIT)]
    while news[-1][1]:
        news.append(made.new_lines(3, WAIT))
    assert [lines for lines, _ in news if lines] == [["the last words"]]


def test_log_of_any_length_is_shown_whole(worker, monkeypatch):
    made, remote, _ = worker
    monkeypatch.setattr("control.remote.worker_access.TAIL", 1000)
    lines = [f"line {number} ü" for number in range(500)]
    assert made.new_lines(3, WAIT) == ([], False)
    (remote / "workers/pi1/worker.log").write_text("\n".join(lines))
    shown, last = [], ""
    while last != lines[-1][-len(last) :] or not last:
        shown += made.new_lines(3, WAIT)[0]
        last = shown[-1] if shown else ""
    assert "".join(shown) == "".join(lines)


@pytest.fixture
def warnings(monkeypatch):
    heard = []
    monkeypatch.setattr(Display, "display", lambda self, text, *more, **options: heard.append(text))
    return heard


def test_damaged_state_never_takes_place_of_one_whole(worker, warnings):
    made, remote, here = worker
    made.collect(here)
    (remote / "state/step-1.npz").write_bytes((remote / "state/step-1.npz").read_bytes()[:-30])
    for _ in range(3):
        assert made.collect(here) == []
    assert read_state(here / "state/step-1.npz") == "state"
    assert len(warnings) == 1
    assert re.fullmatch(r"\[WARNING\] pi1: state/step-1\.npz is damaged \(.+\); what was collected before stays", warnings[0])
    write_state(remote / "state/step-1.npz", "fixed")
    assert made.collect(here) == ["state/step-1.npz"]
    assert read_state(here / "state/step-1.npz") == "fixed"


def test_older_states_stay_while_the_newest_is_damaged(worker, warnings):
    made, remote, here = worker
    made.collect(here)
    (remote / "state/step-1.npz").unlink()
    write_state(remote / "state/step-2.npz")
    flip_a_bit(remote / "state/step-2.npz")
    made.collect(here)
    assert [path.name for path in (here / "state").iterdir()] == ["step-1.npz"]
    write_state(remote / "state/step-3.npz")
    made.collect(here)
    assert [path.name for path in (here / "state").iterdir()] == ["step-3.npz"]
    flip_a_bit(here / "state/step-3.npz")
    write_state(here / "state/step-2.npz")
    made.collect(here)
    assert sorted(path.name for path in (here / "state").iterdir()) == ["step-2.npz", "step-3.npz"]


def test_what_a_host_put_aside_stays_there(worker):
    made, remote, here = worker
    (remote / "damaged").mkdir()
    (remote / "damaged/state-step-2.npz").write_text("broken")
    assert "damaged/state-step-2.npz" not in made.collect(here)


@pytest.mark.parametrize(("transport", "names"), [("local", 2), ("ssh", 1)])
def test_local_snapshot_is_one_file_with_two_names(worker, transport, names):
    made, remote, here = worker
    made.action._connection.transport = transport
    made.collect(here)
    assert (here / "checkpoints/epoch-0001.keras").stat().st_nlink == names
    # What grows, or is what a run goes on from if the other copy is damaged, is never shared.
    for name in ("workers/pi1/metrics.jsonl", "logs/train/events.out.tfevents.1", "history.csv", "state/step-1.npz"):
        assert (here / name).stat().st_nlink == 1
    (remote / "new").write_text("other weights")
    (remote / "new").replace(remote / "checkpoints/epoch-0001.keras")
    made.collect(here)
    assert (here / "checkpoints/epoch-0001.keras").read_text() == "other weights"
    assert made.collect(here) == []
    assert not list(here.rglob(".part-*"))


def test_a_snapshot_on_another_disk_is_copied(worker, monkeypatch):
    made, _, here = worker
    made.action._connection.transport = "local"

    def refuse(*_, **__):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    made.collect(here)
    assert (here / "checkpoints/epoch-0001.keras").read_text() == "weights"


def test_snapshots_that_are_not_kept_go_here_too(worker):
    made, remote, here = worker
    made.collect(here)
    (here / "config.yml").write_text("checkpoint: {snapshots: best}\n")
    (remote / "checkpoints/epoch-0001.keras").unlink()
    (remote / "checkpoints/epoch-0002.keras").write_text("better")
    rows = [",".join(str({"epoch": epoch, "val_accuracy": epoch / 9}.get(key, 0.5)) for key in HISTORY) for epoch in (1, 2)]
    (remote / "history.csv").write_text("\n".join([",".join(HISTORY), *rows]) + "\n")
    made.collect(here)
    assert [path.name for path in (here / "checkpoints").iterdir()] == ["epoch-0002.keras"]


def test_worker_that_only_touches_its_file_is_heard(worker):
    made, remote, _ = worker
    records = remote / "workers/pi1/metrics.jsonl"
    os.utime(records, (100, 100))
    assert made.poll().heard > 1e6
    os.utime(records)
    assert made.poll().heard < 60


def test_last_lines_are_those_of_present_launch(worker):
    made, remote, _ = worker
    log = remote / "workers/pi1/worker.log"
    log.write_text("=== launch 1, then\nerror: of the launch before\n" * 3 + "=== launch 4, now\nkilled early\n")
    assert made.last_lines() == ["=== launch 4, now", "killed early"]
    log.write_text("".join(f"line {number}\n" for number in range(30)))
    assert made.last_lines(3) == ["line 27", "line 28", "line 29"]


def test_a_worker_is_followed_until_it_ends(worker, alive):
    made, remote, _ = worker
    shown, checks = [], []

    def check():
        checks.append(1)
        (remote / "workers/pi1/exit.json").write_text('{"exit_code": 0, "ended_at": 2.0}')

    assert made.follow(shown.append, check).exit["exit_code"] == 0
    assert shown == [{"t": 1.0, **JOINING}]
    assert checks


def test_a_worker_is_left_when_the_check_raises(worker, alive):
    def check():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker[0].follow(print, check)
