"""Watching a worker: when it counts as having failed."""

import dataclasses
from types import SimpleNamespace

import pytest

from control.remote.follow import FollowingFailed, HostUnreachable
from control.runs.results.outcome import Verdict
from control.runs.show.progress import Progress
from plugins.action import watch_run
from plugins.action.watch_run import OTHERS_GRACE_S, Target, Watch, Watched
from tests.unit.control.remote.test_remote import history
from trainer.common.errors import DONE, FAILED, RESTART
from trainer.rundir.phases import Phase

HOSTS = ["pi0", "pi1", "pi2"]


@pytest.fixture
def watcher(clock, tmp_path):
    """A function that makes a watch of a host; it notes what it shows in `shown`, and what it ends in `ended`."""

    def make(rank=1, watched=None, see=lambda *_: None, **target):
        given = {"run": "one", "root": "/w", "run_folder": "/w/runs/one", "session": "s", "local": tmp_path}
        seconds = {"silence": 60.0, "start_deadline": 300.0}
        shown, ended = [], []
        line = SimpleNamespace(print=shown.append, update=lambda _: None, end=lambda: None)
        files = SimpleNamespace(watch=see, action=None)
        made = Target(host=f"pi{rank}", rank=rank, **given | seconds | target)
        watch = Watch(made, watched or Watched(HOSTS, 3, clock), files, line, Progress(line, {}), clock)
        watch.phase, watch.shown, watch.ended = "training", shown, ended
        watch._end_it = lambda state, message, **_: ended.append((state, message)) or state
        watch._collect = lambda **_: None
        watch._last_lines = list
        return watch

    return make


def test_a_hosts_limits_are_its_own(tmp_path):
    """What the inventory sets for one host is no other host's default."""
    arguments = {"run": "one", "run_kind": "runs", "hosts": [{"name": name} for name in HOSTS], "local": tmp_path, "detach": False}
    slow = {"worker_root": "/w", "worker_silence": "300", "worker_start_deadline": 900}
    targets = [Target.of(arguments, 0, slow), Target.of(arguments, 1, {"worker_root": "/w"})]
    assert [(one.silence, one.start_deadline) for one in targets] == [(300.0, 900.0), (45.0, 300.0)]


@pytest.mark.parametrize(("state", "ago"), [("silent", 90), ("gone", 90), ("unreachable", 90), ("ended", 0), ("running", 0)])
def test_lost_worker_counts_from_its_last_sign(state, ago, watcher, clock):
    watch = watcher()
    clock.sleep(90)
    assert watch._happened(state) == clock.time() - ago


@pytest.mark.parametrize("rank", [0, 2])
def test_a_warning_is_shown_at_once(rank, watcher):
    watch = watcher(rank)
    watch._follow([{"kind": "warning", "text": "the disk is full"}])
    assert watch.shown == [f"pi{rank}: the disk is full"]


def test_phase_and_step_are_those_of_last_records(watcher):
    """Of a node that another holds, too: a field that a kind of record need not have may hold anything."""
    watch = watcher()
    watch._follow([{"kind": "phase", "phase": "tracing", "note": ""}, {"kind": "phase", "phase": "training", "note": "", "step": "\x1b"}])
    assert (watch.phase, watch.step) == ("training", 0)
    watch._follow([{"kind": "heartbeat", "phase": "saving", "step": 40}])
    assert (watch.phase, watch.step) == ("saving", 40)


def test_what_trains_again_has_not_ended(watcher):
    """Of a run that started again, all that followed the first failure was called the time after training."""
    watch = watcher()
    phases = [("training", 10.0), ("ended", 20.0), ("training", 30.0), ("ended", 60.0), ("ended", 61.0)]
    records = [{"kind": "phase", "phase": phase, "t": t} for phase, t in phases]
    watch._note_phases(SimpleNamespace(records=records, ahead=1.0))
    assert watch.phases_began == {"training": 9.0, "ended": 59.0}


def failing(error):
    """What a watch sees of a host that is not reached."""

    def see(*_):
        raise error

    return see


def test_lost_host_is_unreachable_after_its_silence(watcher, clock):
    """It is tried again after a pause; while the others wait for it, it may be away for longer."""
    silent, gone, awaited = watcher(), watcher(see=failing(HostUnreachable("gone"))), watcher(rejoin_wait=300.0)
    began = clock.monotonic()
    assert gone._once() is None
    assert clock.monotonic() - began == 1.0
    clock.sleep(90)
    assert silent._once().message == "pi1 can't be reached: no answer for 91 s"
    lost = gone._once()
    assert (lost.state, lost.message) == ("unreachable", "pi1 can't be reached: gone")
    assert awaited._unreachable("pi1 can't be reached") is None


def test_following_that_fails_is_quoted_at_once(watcher):
    """Once: its host is tried again every second, and counts as unreachable when its silence is over."""
    watch = watcher(see=failing(FollowingFailed("what reads the worker's files there ended with exit code 1: no module trainer")))
    assert (watch._once(), watch._once()) == (None, None)
    assert watch.shown == ["pi1: what reads the worker's files there ended with exit code 1: no module trainer"]


@pytest.mark.parametrize(("silent", "state"), [(0, "ended"), (40, None)])
def test_only_answering_workers_beside_a_failure_are_ended(silent, state, watcher, clock):
    """One that does not answer is what the others failed of; it was called ended by us when they noticed sooner than we."""
    watch = watcher()
    watch.watched.note_failure("pi2")
    clock.sleep(30.0)
    watch.answered_at = clock.monotonic() - silent
    assert watch._once() == state


@pytest.mark.parametrize(("phase", "heard", "late"), [("training", 61, True), ("ended", 61, False), ("ended", 241, True)])
def test_ended_worker_may_take_longer_to_leave(phase, heard, late, watcher, clock):
    """Python's shutdown reads from the disk; on a slow one it took 50 s, and a run with all its weights was called FAILED."""
    watch = watcher()
    watch.phase, watch.heard_at = phase, clock.monotonic() - heard
    assert watch._late(SimpleNamespace(heard=heard, fault="")) == ("silent" if late else None)


GONE = SimpleNamespace(exit=None, alive=False, unclear="")


@pytest.mark.parametrize(
    ("rejoin_wait", "since", "phase", "away", "state"),
    [
        (0.0, 0.0, "training", False, "gone"),
        (300.0, 10.0, "training", False, None),
        (300.0, 20.0, "training", False, "gone"),
        (300.0, 320.0, Phase.DOWN, False, None),
        (300.0, 340.0, Phase.DOWN, False, "gone"),
        (300.0, 320.0, "training", True, None),
        (300.0, 340.0, "training", True, "gone"),
    ],
)
def test_a_session_may_return(rejoin_wait, since, phase, away, state, watcher, clock):
    """That of a supervisor soon, that of a host that restarts within the others' wait."""
    watch = watcher(rejoin_wait=rejoin_wait)
    watch.gone_at, watch.phase, watch.was_away = clock.monotonic() - since, phase, away
    verdict = watch._ended(GONE)
    assert (verdict.state if verdict else None) == state
    assert watch._ended(SimpleNamespace(exit=None, alive=True, unclear="")) is None
    assert watch.gone_at is None


def test_an_end_is_told_in_our_time(watcher):
    """Of several ends the earliest is the cause, and a host's clock may be ahead of ours."""
    seen = SimpleNamespace(exit={"exit_code": FAILED, "ended_at": 1000.0}, more=False, ahead=30.0)
    assert watcher()._ended(seen).at == 970.0


@pytest.mark.parametrize(("rejoin_wait", "lost", "state"), [(300.0, 20, None), (300.0, 70, "silent"), (0.0, 20, "silent")])
def test_returned_supervisor_is_not_called_silent(rejoin_wait, lost, state, watcher, clock):
    """The last heartbeat is from before the restart."""
    watch = watcher(rejoin_wait=rejoin_wait)
    watch.lost_at, watch.heard_at = clock.monotonic() - lost, clock.monotonic() - 200
    assert watch._late(SimpleNamespace(heard=200.0, fault="")) == state


@pytest.mark.parametrize(("parents", "ended"), [([7, 7, 7], True), ([7, 7, 1], False)])
def test_a_killed_command_leaves_its_watches(parents, ended, monkeypatch):
    waited, parents = [], iter(parents)
    thread = SimpleNamespace(is_alive=lambda: len(waited) < 2, join=waited.append)
    monkeypatch.setattr(watch_run.os, "getppid", lambda: next(parents))
    assert watch_run.join([thread]) == ended
    assert all(seconds < 1 for seconds in waited), "else Ctrl-C is handled late"


@pytest.fixture
def watched(clock, tmp_path, monkeypatch):
    monkeypatch.setattr("plugins.action.watch_run.project.PRIVATE", tmp_path)
    return Watched(HOSTS, 3, clock)


@pytest.fixture
def elastic(watcher, watched):
    """A function that makes the watch of a host of one elastic run."""
    return lambda rank: watcher(rank, watched, elastic=True, rejoin_wait=300.0)


def verdict(state, code=None):
    return Verdict("pi1", 1, state, exit_code=code)


def test_the_chief_of_the_newest_generation_is_shown(elastic, monkeypatch):
    """The old chief's records do not change any more; the newer ones of the other hosts overrule them."""
    shown, collected, watches = [], [], [elastic(rank) for rank in range(3)]
    monkeypatch.setattr("plugins.action.watch_run.kept_choices.keep_of", lambda *_: None)
    for watch in watches:
        watch.progress = SimpleNamespace(show=lambda host, record: shown.append(host))
        monkeypatch.setattr(watch, "_collect", lambda host=watch.host: collected.append(host))
    news = {"kind": "phase", "phase": "training", "note": ""}
    for rank, watch in enumerate(watches):
        watch._follow([{"kind": "generation", "number": 1, "rank": rank, "hosts": ["pi0", "pi1", "pi2"]}, news])
    assert {*shown} == {"pi0"} == {*collected}
    shown.clear()
    for rank, watch in enumerate(watches[1:]):
        watch._follow([{"kind": "generation", "number": 2, "rank": rank, "hosts": ["pi1", "pi2"]}])
    for watch in watches:
        watch._follow([news])
    assert shown == ["pi1"]
    assert collected == ["pi0", "pi1"]
    watches[1].target = dataclasses.replace(watches[1].target, elastic=False)
    assert not watches[1]._is_chief(), "only an elastic run has generations"


def test_an_end_waits_for_all_records(watcher):
    assert watcher()._ended(SimpleNamespace(exit={"exit_code": 0}, more=True)) is None


def test_one_hosts_failure_ends_no_elastic_run(elastic, watched):
    watch = elastic(1)
    for state in ("gone", "silent", "ended", "unreachable", "running"):
        watch._mark_failure(verdict(state))
    for code in (RESTART, 137):
        watch._mark_failure(verdict("failed", code))
    assert not watched.is_over()
    assert watched.since_failure("pi2") is None


@pytest.mark.parametrize("code", [FAILED, DONE])
def test_nobody_waits_once_the_run_is_over(code, elastic, clock):
    """After an error, and once the others are done."""
    lost = elastic(2)
    assert lost._may_be_gone() > 300
    elastic(1)._mark_failure(verdict("ended", code))
    assert lost._may_be_gone() == 0.0
    clock.sleep(90)
    assert lost._unreachable("pi2 can't be reached").state == "unreachable"


def test_spare_that_missed_the_end_is_ended(elastic, watched, clock):
    spare, worker = elastic(2), elastic(1)
    watched.workers = 2
    watched.note_end()
    spare._abandoned()
    assert not spare.ended, "it may have been told, and end by itself"
    clock.sleep(OTHERS_GRACE_S + 1)
    spare.answered_at = worker.answered_at = clock.monotonic()
    worker._abandoned()
    spare._abandoned()
    assert (spare.ended, worker.ended) == ([("ended", "the run has ended")], [])


def test_a_spare_that_stands_by_is_under_way(watcher):
    spare = watcher(detach=True)
    spare.phase = Phase.STANDING_BY
    assert spare._under_way().state == "running"


@pytest.mark.parametrize(("fault", "rejoin_wait", "ended"), [("removed", 0.0, True), ("removed", 300.0, False), ("read-only", 0.0, False)])
def test_a_folder_that_is_gone_is_named(fault, rejoin_wait, ended, watcher):
    """At once where nobody supervises the worker; on a read-only file system its silence means nothing."""
    watch = watcher(rejoin_wait=rejoin_wait)
    watch._late(SimpleNamespace(heard=900.0 if fault == "read-only" else 1.0, fault=fault))
    words = "somebody removed or moved /w/runs/one/workers/pi1 while it trains: what it writes is lost"
    assert watch.ended == ([("silent", words)] if ended else [])


def test_a_read_only_file_system_is_told_once(watcher):
    """By this machine: its worker can't write a warning."""
    watch = watcher()
    for fault in ("", "read-only", "read-only", ""):
        watch._tell_fault(fault)
    told = "pi1: the file system of /w/runs/one/workers/pi1 is read-only: nothing is saved. Fix there: dmesg, then mount -o remount,rw"
    assert watch.shown == [told, "pi1: its file system takes files again"]


@pytest.fixture
def collect(watcher, tmp_path):
    """Collect from a host of a run whose last chief was pi1; what was fetched."""
    run = tmp_path / "runs" / "one"
    (run / "checkpoints").mkdir(parents=True)
    (run / "logs" / "train").mkdir(parents=True)
    (run / "history.csv").write_text(history(1, 2, 3))
    (run / "config.yml").write_text("checkpoint: {snapshots: all}\nrecovery: {elastic: true, max_restarts: 5}\n")
    (run / "checkpoints" / "epoch-0003.keras").touch()
    (run / "logs" / "train" / "events.out.tfevents.1").touch()
    names = {
        "checkpoints": [f"checkpoints/epoch-{epoch:04d}.keras" for epoch in (1, 3, 4, 999_999_999)],
        "logs": ["logs/train/events.out.tfevents.1", "logs/train/events.out.tfevents.2"],
    }
    taken = []

    def watch(host, state):
        def fetch(into, only=None, wanted=None):
            taken.extend((host, name) for name in (names[only] if only else ["all"]) if not only or wanted(name))

        made = watcher(HOSTS.index(host), local=run)
        made.verdict, made.files.collect = Verdict(host, HOSTS.index(host), state), fetch
        return made

    def act(states, chief):
        taken.clear()
        watch_run._collect_chiefs([watch(host, state) for host, state in zip(HOSTS, states, strict=True)], chief)
        return taken

    return act


MISSING = ["checkpoints/epoch-0001.keras", "logs/train/events.out.tfevents.2"]


def test_the_last_chiefs_directory_comes_first_and_whole(collect):
    assert collect(["done", "done", "unreachable"], "pi1") == [("pi1", "all"), *(("pi0", name) for name in MISSING)]


def test_only_missing_history_of_others_is_taken(collect):
    """A host that was the chief before can neither replace a file nor add an epoch."""
    assert collect(["done", "unreachable", "gone"], "pi1") == [(host, name) for host in ("pi0", "pi2") for name in MISSING]
