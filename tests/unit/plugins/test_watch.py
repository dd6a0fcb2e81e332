"""Watching a worker: when it counts as having failed."""

from types import SimpleNamespace

import pytest

from control.remote.follow import FollowingFailed, HostUnreachable
from control.runs.results.outcome import Verdict
from control.runs.show.progress import Progress
from plugins.action import watch_run
from plugins.action.watch_run import OTHERS_GRACE_S, Watch, Watched
from tests.unit.control.remote.test_remote import history
from trainer.common.clock import CLOCK
from trainer.common.errors import DONE, FAILED, RESTART
from trainer.rundir.phases import Phase


def watcher(clock):
    watch = Watch.__new__(Watch)
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
    watch, shown = Watch.__new__(Watch), []
    watch.rank, watch.host, watch.phase, watch.step, watch.trained, watch.local = rank, "pi3", "training", 7, False, tmp_path
    watch.progress = Progress(SimpleNamespace(print=shown.append), {})
    monkeypatch.setattr(watch, "_collect", lambda: None)
    watch._follow([{"kind": "warning", "text": "the disk is full"}])
    assert shown == ["pi3: the disk is full"]


def test_phase_and_step_are_those_of_last_records():
    """Of a node that another holds, too: a field that a kind of record need not have may hold anything."""
    watch = Watch.__new__(Watch)
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


def test_a_following_program_that_fails_is_quoted_at_once(clock):
    """Once: its host is tried again every second, and counts as unreachable when its silence is over."""

    def failed(*_):
        raise FollowingFailed("what reads the worker's files there ended with exit code 1: no module trainer")

    watch, shown = watcher(clock), []
    watch.host, watch.rank, watch.worker, watch.arguments = "pi3", 1, SimpleNamespace(watch=failed), {"silence": 60}
    watch.answered_at = watch.heard_at = clock.monotonic()
    watch.progress = Progress(SimpleNamespace(print=shown.append), {})
    assert (watch._once(), watch._once()) == (None, None)
    assert shown == ["pi3: what reads the worker's files there ended with exit code 1: no module trainer"]


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
    watch.watched, watch.answered_at = Watched(["pi2", "pi3"], 2, clock), clock.monotonic() - silent
    watch.watched.note_failure("pi2")
    clock.sleep(30.0)
    watch.answered_at += 30.0
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


@pytest.mark.parametrize(("parents", "ended"), [([7, 7, 7], True), ([7, 7, 1], False)])
def test_a_killed_command_leaves_its_watches(parents, ended, monkeypatch):
    waited, parents = [], iter(parents)
    thread = SimpleNamespace(is_alive=lambda: len(waited) < 2, join=waited.append)
    monkeypatch.setattr(watch_run.os, "getppid", lambda: next(parents))
    assert watch_run.join([thread]) == ended
    assert all(seconds < 1 for seconds in waited), "else Ctrl-C is handled late"


HOSTS = ["pi0", "pi1", "pi2"]


@pytest.fixture
def watched(clock, tmp_path, monkeypatch):
    monkeypatch.setattr("plugins.action.watch_run.project.PRIVATE", tmp_path)
    return Watched(HOSTS, 3, clock)


def elastic(watched, rank, clock=CLOCK):
    watch = watcher(clock)
    watch.elastic, watch.rejoin_wait, watch.arguments = True, 300.0, {"silence": 45, "run": "one"}
    watch.rank, watch.host, watch.watched, watch.local = rank, f"pi{rank}", watched, None
    watch.phase, watch.step, watch.trained = "training", 7, False
    watch.workers = 3
    return watch


def verdict(state, code=None):
    return Verdict("pi1", 1, state, exit_code=code)


def test_the_chief_of_the_newest_generation_is_shown(watched, monkeypatch):
    """The old chief's records do not change any more; the newer ones of the other hosts overrule them."""
    shown, collected, watches = [], [], [elastic(watched, rank) for rank in range(3)]
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
    watch = Watch.__new__(Watch)
    assert watch._ended(SimpleNamespace(exit={"exit_code": 0}, more=True)) is None


def test_generations_are_silent_unless_elastic(watched):
    watch = elastic(watched, 1)
    watch.elastic = False
    watch._follow([{"kind": "generation", "number": 9, "rank": 0, "hosts": ["pi1"]}])
    assert not watch._is_chief()
    assert not watched.generations


def test_one_hosts_failure_ends_no_elastic_run(watched):
    watch = elastic(watched, 1)
    for state in ("gone", "silent", "ended", "unreachable", "running"):
        watch._mark_failure(verdict(state))
    for code in (RESTART, 137):
        watch._mark_failure(verdict("failed", code))
    assert not watched.is_over()
    assert watched.since_failure("pi2") is None


def test_an_error_ends_an_elastic_runs_wait(watched):
    elastic(watched, 1)._mark_failure(verdict("failed", FAILED))
    assert elastic(watched, 2)._may_be_gone() == 0.0


def test_spare_that_missed_the_end_is_ended(watched, monkeypatch, clock):
    spare, worker = elastic(watched, 2, clock), elastic(watched, 1, clock)
    ended = []
    for watch in (spare, worker):
        watch.workers, watch.answered_at = 2, clock.monotonic()
        monkeypatch.setattr(watch, "_end_it", lambda state, message, by_us, host=watch.host: ended.append((host, state)))
    watched.note_end()
    spare._abandoned()
    assert not ended, "it may have been told, and end by itself"
    clock.sleep(OTHERS_GRACE_S + 1)
    spare.answered_at = worker.answered_at = clock.monotonic()
    worker._abandoned()
    spare._abandoned()
    assert ended == [("pi2", "ended")]


def test_a_spare_that_stands_by_is_under_way(watched, clock):
    spare = elastic(watched, 2, clock)
    spare.phase, spare.phases_began, spare.arguments = Phase.STANDING_BY, {}, {**spare.arguments, "detach": True}
    spare.heard_at = clock.monotonic()
    assert spare._under_way().state == "running"


def test_nobody_waits_once_the_others_are_done(watched, clock):
    lost, other = elastic(watched, 2, clock), elastic(watched, 1, clock)
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


@pytest.fixture
def collect(tmp_path, monkeypatch):
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
    watched, taken = Watched(HOSTS, 3), []

    def watch(host, state="done"):
        def fetch(into, only=None, wanted=None):
            taken.extend((host, name) for name in (names[only] if only else ["all"]) if not only or wanted(name))

        made = Watch.__new__(Watch)
        made.host, made.local, made.watched, made.verdict = host, run, watched, Verdict(host, HOSTS.index(host), state)
        made.worker = SimpleNamespace(collect=fetch)
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
