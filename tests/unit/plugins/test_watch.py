"""Watching a worker: when it counts as having failed."""

import time
from types import SimpleNamespace

import pytest

from control.remote.follow import HostUnreachable
from control.runs.results.generations import Generations
from control.runs.results.outcome import Verdict
from control.runs.show.progress import Progress
from plugins.action.watch_run import OTHERS_GRACE_S, ActionModule
from trainer.common.clock import CLOCK
from trainer.common.errors import DONE, FAILED, RESTART
from trainer.rundir.phases import Phase


def watcher(clock):
    watch = ActionModule.__new__(ActionModule)
    watch.clock = clock
    return watch


@pytest.mark.parametrize(("state", "ago"), [("silent", 90), ("gone", 90), ("unreachable", 90), ("ended", 0), ("running", 0)])
def test_lost_worker_counts_from_its_last_sign(state, ago, clock):
    watch = watcher(clock)
    watch.heard_at = clock.monotonic()
    clock.sleep(90)
    assert watch._happened(state) == clock.time() - ago


@pytest.mark.parametrize("rank", [0, 3])
def test_a_warning_is_shown_at_once(rank, tmp_path, monkeypatch):
    watch, shown = ActionModule.__new__(ActionModule), []
    watch.rank, watch.host, watch.phase, watch.step, watch.trained, watch.local = rank, "pi3", "training", 7, False, tmp_path
    watch.progress = Progress(SimpleNamespace(print=shown.append), {})
    monkeypatch.setattr(watch, "_collect", lambda: None)
    watch._follow([{"kind": "warning", "text": "the disk is full"}])
    assert shown == ["pi3: the disk is full"]


def test_phase_and_step_are_those_of_last_records():
    """Of a node that another holds, too: a field that a kind of record need not have may hold anything."""
    watch = ActionModule.__new__(ActionModule)
    watch.rank, watch.host, watch.phase, watch.step, watch.trained = 1, "pi3", "starting", 0, False
    watch._follow([{"kind": "phase", "phase": "tracing", "note": ""}, {"kind": "phase", "phase": "training", "note": "", "step": "\x1b"}])
    assert (watch.phase, watch.step) == ("training", 0)
    watch._follow([{"kind": "heartbeat", "phase": "saving", "step": 40}])
    assert (watch.phase, watch.step) == ("saving", 40)


def test_what_trains_again_has_not_ended(clock):
    """Of a run that started again, all that followed the first failure was called the time after training."""
    watch = watcher(clock)
    watch.phases_began = {}
    phases = [("training", 10.0), ("ended", 20.0), ("training", 30.0), ("ended", 60.0), ("ended", 61.0)]
    records = [{"kind": "phase", "phase": phase, "t": t} for phase, t in phases]
    watch._note_phases(SimpleNamespace(records=records, ahead=1.0))
    assert watch.phases_began == {"training": 9.0, "ended": 59.0}


def test_lost_host_is_tried_again_after_a_pause(clock):
    def lost(*_):
        raise HostUnreachable("gone")

    watch = watcher(clock)
    watch.host, watch.rank, watch.worker, watch.arguments = "pi3", 1, SimpleNamespace(watch=lost), {"silence": 60}
    watch.answered_at = watch.heard_at = clock.monotonic()
    assert watch._once() is None
    assert clock.monotonic() - watch.answered_at == 1.0
    clock.sleep(90)
    watch.phase, watch.step, watch.phases_began = "training", 7, {}
    verdict = watch._once()
    assert (verdict.state, verdict.message) == ("unreachable", "pi3 can't be reached: gone")


def test_silent_host_is_unreachable_after_its_silence(clock):
    watch = watcher(clock)
    watch.host, watch.rank, watch.worker, watch.arguments = "pi3", 1, SimpleNamespace(watch=lambda *_: None), {"silence": 60}
    watch.answered_at = watch.heard_at = clock.monotonic() - 90
    watch.phase, watch.step, watch.phases_began = "training", 7, {}
    assert watch._once().message == "pi3 can't be reached: no answer for 90 s"


@pytest.mark.parametrize(("silent", "state"), [(0, "ended"), (40, None)])
def test_only_answering_workers_beside_a_failure_are_ended(silent, state, tmp_path, monkeypatch, clock):
    """One that does not answer is what the others failed of; it was called ended by us when they noticed sooner than we."""
    watch = watcher(clock)
    watch.host, watch.rank, watch.worker, watch.arguments = "pi3", 1, SimpleNamespace(watch=lambda *_: None), {"silence": 60}
    watch.marks, watch.answered_at = Generations(tmp_path), clock.monotonic() - silent
    monkeypatch.setattr("plugins.action.watch_run.since_failure", lambda *_: 30.0)
    monkeypatch.setattr(watch, "_end_it", lambda state, *_, **__: state)
    assert watch._once() == state


@pytest.mark.parametrize(("phase", "heard", "late"), [("training", 46, True), ("ended", 46, False), ("ended", 181, True)])
def test_ended_worker_may_take_longer_to_leave(phase, heard, late, monkeypatch, clock):
    """Python's shutdown reads from the disk; on a slow one it took 50 s, and a run with all its weights was called FAILED."""
    watch = watcher(clock)
    watch.phase, watch.heard_at, watch.arguments = phase, clock.monotonic() - heard, {"silence": 45, "start_deadline": 300}
    monkeypatch.setattr(watch, "_end_it", lambda state, _: state)
    assert watch._late(SimpleNamespace(heard=heard, fault="")) == ("silent" if late else None)


@pytest.mark.parametrize(("rejoin_wait", "since", "state"), [(0.0, 0.0, "gone"), (300.0, 10.0, None), (300.0, 20.0, "gone")])
def test_a_supervisor_may_return_in_a_new_session(rejoin_wait, since, state, monkeypatch, clock):
    watch = watcher(clock)
    watch.rejoin_wait, watch.gone_at, watch.phase = rejoin_wait, clock.monotonic() - since, "training"
    monkeypatch.setattr(watch, "_verdict", lambda state, **_: state)
    assert watch._ended(SimpleNamespace(exit=None, alive=False, unclear="")) == state
    assert watch._ended(SimpleNamespace(exit=None, alive=True, unclear="")) is None
    assert watch.gone_at is None


def test_an_end_is_told_in_our_time(monkeypatch, clock):
    """Of several ends the earliest is the cause, and a host's clock may be ahead of ours."""
    watch, seen = watcher(clock), SimpleNamespace(exit={"exit_code": FAILED, "ended_at": 1000.0}, more=False, ahead=30.0)
    monkeypatch.setattr(watch, "_verdict", lambda _, **verdict: verdict["at"])
    assert watch._ended(seen) == 970.0


@pytest.mark.parametrize(("phase", "away"), [(Phase.DOWN, False), ("training", True)])
def test_restarting_host_may_take_the_others_wait(phase, away, monkeypatch, clock):
    watch = watcher(clock)
    watch.rejoin_wait, watch.phase, watch.was_away = 300.0, phase, away
    monkeypatch.setattr(watch, "_verdict", lambda state, **_: state)
    for since, state in ((320.0, None), (340.0, "gone")):
        watch.gone_at = clock.monotonic() - since
        assert watch._ended(SimpleNamespace(exit=None, alive=False, unclear="")) == state


@pytest.mark.parametrize(("rejoin_wait", "lost", "state"), [(300.0, 20, None), (300.0, 50, "silent"), (0.0, 20, "silent")])
def test_returned_supervisor_is_not_called_silent(rejoin_wait, lost, state, monkeypatch, clock):
    """The last heartbeat is from before the restart."""
    watch = watcher(clock)
    watch.rejoin_wait, watch.lost_at, watch.heard_at = rejoin_wait, clock.monotonic() - lost, clock.monotonic() - 200
    watch.phase, watch.arguments = "training", {"silence": 45, "start_deadline": 300}
    monkeypatch.setattr(watch, "_end_it", lambda state, _: state)
    assert watch._late(SimpleNamespace(heard=200.0, fault="")) == state


def test_host_may_be_away_while_others_wait(clock):
    watch = watcher(clock)
    watch.rejoin_wait, watch.arguments = 300.0, {"silence": 45}
    watch.answered_at = clock.monotonic() - 200
    assert watch._unreachable("pi3 can't be reached") is None


def elastic(tmp_path, rank, clock=CLOCK):
    watch = watcher(clock)
    watch.elastic, watch.rejoin_wait, watch.arguments = True, 300.0, {"silence": 45, "hosts": ["pi0", "pi1", "pi2"]}
    watch.rank, watch.host, watch.marks, watch.local = rank, f"pi{rank}", Generations(tmp_path), tmp_path
    watch.phase, watch.step, watch.trained = "training", 7, False
    watch.workers = 3
    return watch


def verdict(state, code=None):
    return Verdict("pi1", 1, state, exit_code=code)


def test_the_chief_of_the_newest_generation_is_shown(tmp_path, monkeypatch):
    """The old chief's records do not change any more; the newer ones of the other hosts overrule them."""
    shown, collected, watches = [], [], [elastic(tmp_path, rank) for rank in range(3)]
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


def test_an_end_waits_for_all_records():
    watch = ActionModule.__new__(ActionModule)
    assert watch._ended(SimpleNamespace(exit={"exit_code": 0}, more=True)) is None


def test_generations_are_silent_unless_elastic(tmp_path):
    watch = elastic(tmp_path, 1)
    watch.elastic = False
    watch._follow([{"kind": "generation", "number": 9, "rank": 0, "hosts": ["pi1"]}])
    assert not watch._is_chief()
    assert not [*tmp_path.iterdir()]


def test_one_hosts_failure_ends_no_elastic_run(tmp_path):
    watch = elastic(tmp_path, 1)
    for state in ("gone", "silent", "ended", "unreachable", "running"):
        watch._mark_failure(verdict(state))
    for code in (RESTART, 137):
        watch._mark_failure(verdict("failed", code))
    assert not [*tmp_path.iterdir()]


def test_an_error_ends_an_elastic_runs_wait(tmp_path):
    elastic(tmp_path, 1)._mark_failure(verdict("failed", FAILED))
    assert elastic(tmp_path, 2)._may_be_gone() == 0.0


def test_spare_that_missed_the_end_is_ended(tmp_path, monkeypatch, clock):
    spare, worker = elastic(tmp_path, 2, clock), elastic(tmp_path, 1, clock)
    ended = []
    for watch in (spare, worker):
        watch.workers, watch.answered_at = 2, clock.monotonic()
        monkeypatch.setattr(watch, "_end_it", lambda state, message, by_us, host=watch.host: ended.append((host, state)))
    watch.marks.note_end()
    spare._abandoned()
    assert not ended, "it may have been told, and end by itself"
    later = time.time() + OTHERS_GRACE_S + 1
    monkeypatch.setattr("control.runs.results.generations.time.time", lambda: later)
    worker._abandoned()
    spare._abandoned()
    assert ended == [("pi2", "ended")]


def test_a_spare_that_stands_by_is_under_way(tmp_path, clock):
    spare = elastic(tmp_path, 2, clock)
    spare.phase, spare.phases_began, spare.arguments = Phase.STANDING_BY, {}, {**spare.arguments, "detach": True}
    spare.heard_at = clock.monotonic()
    assert spare._under_way().state == "running"


def test_nobody_waits_once_the_others_are_done(tmp_path, clock):
    lost, other = elastic(tmp_path, 2, clock), elastic(tmp_path, 1, clock)
    assert lost._may_be_gone() > 300
    other._mark_failure(verdict("done", DONE))
    assert lost._may_be_gone() == 0.0
    lost.answered_at = lost.heard_at = clock.monotonic() - 60
    lost.phases_began = {}
    assert lost._unreachable("pi2 can't be reached").state == "unreachable"


@pytest.mark.parametrize(("fault", "rejoin_wait", "ended"), [("removed", 0.0, True), ("removed", 300.0, False), ("read-only", 0.0, False)])
def test_a_folder_that_is_gone_is_named(fault, rejoin_wait, ended, monkeypatch, clock):
    """At once where nobody supervises the worker; on a read-only file system its silence means nothing."""
    watch, words = watcher(clock), []
    watch.phase, watch.rejoin_wait, watch.heard_at = "training", rejoin_wait, clock.monotonic()
    watch.arguments = {"silence": 45, "start_deadline": 300, "folder": "/w/runs/mine"}
    monkeypatch.setattr(watch, "_end_it", lambda state, message: words.append(message))
    watch._late(SimpleNamespace(heard=900.0 if fault == "read-only" else 1.0, fault=fault))
    assert words == (["somebody removed or moved /w/runs/mine while it trains: what it writes is lost"] if ended else [])


def test_a_read_only_file_system_is_told_once(clock):
    """By this machine: its worker can't write a warning."""
    watch, shown = watcher(clock), []
    watch.host, watch.arguments, watch.progress = "pi3", {"folder": "/w"}, Progress(SimpleNamespace(print=shown.append), {})
    for fault in ("", "read-only", "read-only", ""):
        watch._tell_fault(fault)
    told = "pi3: the file system of /w is read-only: nothing is saved. Fix there: dmesg, then mount -o remount,rw"
    assert shown == [told, "pi3: its file system takes files again"]
