"""Supervisors that meet over real connections, on a fake clock and with fake workers.

With real processes and signals: `tests/contract/test_recovery.py`.
"""

import asyncio
import json
import signal
from types import SimpleNamespace

import pytest

from tests.unit.trainer.supervision.supervised import CANCELLED, NAMES, PREEMPTED, SUCCEEDED, FakeForks, Run, post
from trainer.host.claims import MARK, SUPERVISED
from trainer.host.fork_server import KEY
from trainer.host.process import LET_IN
from trainer.rundir.phases import Phase
from trainer.supervision import supervisor as product
from trainer.supervision.child import Pulse
from trainer.supervision.restart_policy import Elasticity, Limits
from trainer.supervision.supervisor import HANGUP_S, MISSED_S, SAVE_S, SIGNALLED, TELL_S, EndRequest, Supervisor
from trainer.supervision.supervisor import MADE_ROOM as ROOM_WAS_MADE

ELASTIC = {"elastic": Elasticity(wait=2.0, least=1)}


@pytest.fixture
def begin(tmp_path, clock, monkeypatch):
    def start(**options):
        run = Run(tmp_path, clock, **options)
        monkeypatch.setattr(product, "say", run.say)
        run.await_generation(1)
        return run

    return start


@pytest.fixture
def run(begin):
    """Two workers, and a spare that stands by."""
    made = begin(workers=2, spares=1, **ELASTIC)
    made.await_phase(2, Phase.STANDING_BY)
    return made


# --- starting again


def test_a_run_without_faults_ends_with_its_workers(begin):
    run = begin()
    for rank in (0, 1):
        cluster = {"cluster": {"worker": ["first", "second"]}, "task": {"type": "worker", "index": rank}}
        assert run.workers[rank, 1].cluster == cluster
    run.all_do(1, SUCCEEDED)
    assert run.ends() == [0, 0]
    assert not any((own / SUPERVISED).exists() for own in run.folders)
    assert run.log(0) == ""


def test_a_killed_worker_and_its_peer_start_again(begin):
    run = begin()
    run.kill(1, 1)
    run.await_generation(2)
    run.all_do(2, SUCCEEDED)
    assert run.ends() == [0, 0]
    words = "rank 1 (second) was killed by SIGKILL at step 10; all workers start again from the last saved state (restart 1 of this launch)"
    assert words in run.log(0)
    assert words in run.log(1)
    assert [record["text"] for record in run.records(0, "warning")] == [words], "whoever watches is told once"
    assert not run.records(1, "warning")
    assert Phase.REJOINING in run.phases(1)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_worker_lost_while_joining_is_not_awaited(lost, begin):
    """What starts does not look after the others: as TensorFlow, it waits for them, for minutes."""
    run = begin(workers=3, join=[2])
    run.kill(1, 1)
    run.await_generation(2)
    run.kill(lost, 2)
    run.await_generation(3)
    run.all_do(3, SUCCEEDED)
    assert run.ends() == [0, 0, 0]
    for rank in range(3):
        assert f"rank {lost} ({NAMES[lost]}) was killed by SIGKILL while joining; all workers start again" in run.log(rank)


def test_time_counts_from_the_launch(begin):
    """Also for a later supervisor, of a host that restarted."""
    run = begin()
    run.lose(1)
    state = json.loads((run.folders[1] / SUPERVISED).read_text())
    state["history"]["began"] -= 1000.0
    (run.folders[1] / SUPERVISED).write_text(json.dumps(state))
    run.begin(1)
    run.await_generation(2)
    elapsed = [[run.workers[rank, generation].elapsed for generation in (1, 2)] for rank in (0, 1)]
    assert elapsed[0][0] <= elapsed[0][1] < 100.0
    assert 1000.0 < elapsed[1][1] < 1100.0


@pytest.fixture
def made(monkeypatch):
    """What was prepared beside workers, with its arguments."""
    prepared = []
    monkeypatch.setattr(product.ForkServer, "beside", lambda *given: prepared.append(given) or given)
    return prepared


@pytest.mark.parametrize(("standby", "longest", "count"), [(["program"], 0.0, 0), ([], 5.0, 0), (["program"], 5.0, 1)])
def test_the_next_worker_is_prepared_after_first_steps(standby, longest, count, tmp_path, made):
    """Its import must not slow the start, and it is there only where it is asked for."""
    supervisor = Supervisor(post(tmp_path, standby=standby))
    for _ in range(2):
        supervisor._look(SimpleNamespace(phase="training", longest=longest))
    assert len(made) == count


def test_the_hosts_server_is_enough(tmp_path, made, monkeypatch):
    """Nothing is prepared beside a worker that was forked from it."""
    monkeypatch.setenv(KEY, "of this host")
    monkeypatch.setattr(product.ForkServer, "of_host", lambda key, _: key)
    supervisor = Supervisor(post(tmp_path, standby=["program"]))
    supervisor._look(SimpleNamespace(phase="training", longest=5.0))
    assert (supervisor._forks, made) == ("of this host", [])


def test_next_workers_are_forked(begin, clock, monkeypatch):
    """From what was prepared, again and again; if it is gone, the next worker starts anew, and another is prepared."""
    made = []
    monkeypatch.setattr(product.ForkServer, "beside", lambda *given: made.append(FakeForks(run, given[-1])) or made[-1])
    run = begin(standby=["program"])

    def prepare(generation, count):
        """All that was prepared, once the workers have taken steps."""
        for worker in run.of(generation):
            worker.take_steps()
        clock.until(lambda: len(made) == count, "the next workers")

    prepare(1, 2)
    first, second = sorted(made, key=lambda one: one.rank)
    for generation in (1, 2):
        run.kill(1, generation)
        run.await_generation(generation + 1)
    assert [one.workers for one in (first, second)] == [[run.workers[rank, generation] for generation in (2, 3)] for rank in (0, 1)]
    first.gone = True
    run.kill(1, 3)
    run.await_generation(4)
    assert (first.ended, second.workers[2:]) == (True, [run.workers[1, 4]])
    assert "the worker imports TensorFlow itself: it is gone" in run.log(0)
    prepare(4, 3)
    run.all_do(4, SUCCEEDED)
    assert run.ends() == [0, 0]
    assert [one.ended for one in made] == [True, True, True]


FAILED = "error: rank 0 (first) ended with exit code 1 at step 10; "


@pytest.mark.parametrize(
    ("options", "lost", "codes", "why"),
    [({}, [], [1, 75], FAILED), ({"workers": 3, **ELASTIC}, [2], [1, 75], ""), ({"spares": 1, **ELASTIC}, [], [1, 75, 75], "")],
    ids=["all there", "with a lost host", "with a spare"],
)
def test_an_error_for_the_user_ends_all(begin, options, lost, codes, why):
    run = begin(**options)
    if "spares" in options:
        run.await_phase(2, Phase.STANDING_BY)
    run.do(0, 1, 1)
    for rank in lost:
        run.lose(rank)
    assert [run.end(rank) for rank in range(len(codes))] == codes
    assert f"{why}nothing starts again after that" in run.log(len(codes) - 1)
    assert (0, 2) not in run.workers


def test_a_host_that_stays_away_ends_the_run(begin, clock):
    run = begin(rejoin_wait=300.0)
    run.lose(1)
    before = clock.monotonic()
    assert run.end(0) == 75
    assert 300 <= clock.monotonic() - before < 310
    assert "not all workers came back within 300 s (recovery.rejoin_wait)" in run.log(0)


def test_a_worker_that_somebody_kills_politely_starts_again(begin):
    """Nobody asked for the run's end: an early out-of-memory killer sends SIGTERM, too."""
    run = begin()
    run.all_do(1, PREEMPTED)
    run.await_generation(2)
    run.all_do(2, SUCCEEDED)
    assert run.ends() == [0, 0]
    assert f"{SIGNALLED}, at step 10; all workers start again" in run.log(0)


def test_a_failed_worker_tells_others_a_while(begin, clock):
    """Not for as long as a host may be away: the other is lost, and need not come back."""
    run = begin(rejoin_wait=3000.0)
    run.do(0, 1, 1)
    run.lose(1)
    began = clock.monotonic()
    assert run.end(0) == 1
    assert TELL_S <= clock.monotonic() - began < TELL_S + 5


# --- requests to end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("waits", [False, True])
def test_a_request_ends_a_supervisor(begin, waits, number):
    """With a mark from `stop.yml`; or by somebody at the terminal, for whom it leaves the mark, so that its worker tells the others."""
    run = begin()
    if waits:
        run.lose(1)
        run.await_phase(0, Phase.REJOINING)
    if number == signal.SIGTERM:
        (run.folders[0] / MARK).touch()
    run.signal(0, number)
    assert run.end(0) == PREEMPTED
    assert waits or run.workers[0, 1].signals == [number]
    assert not (run.folders[0] / SUPERVISED).exists()
    assert (run.folders[0] / MARK).exists()


def test_a_request_that_came_before_starts_nothing(begin):
    """Somebody asked while no supervisor was there."""
    run = begin()
    run.lose(1)
    (run.folders[1] / MARK).touch()
    run.begin(1)
    assert run.end(1) == PREEMPTED
    assert not (run.folders[1] / SUPERVISED).exists()
    assert (1, 2) not in run.workers


def test_a_cancelled_run_ends_everywhere(begin):
    """Though only one worker was asked."""
    run = begin()
    run.all_do(1, CANCELLED)
    assert run.ends() == [PREEMPTED, PREEMPTED]
    assert not any((own / SUPERVISED).exists() for own in run.folders)


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGHUP], [signal.SIGHUP, signal.SIGTERM]])
@pytest.mark.parametrize("waits", [False, True])
def test_a_host_that_goes_down_joins_again(begin, signals, waits):
    """A host that goes down ends all processes, the tmux server too, in any order; another that was not signalled waits for it."""
    run = begin()
    if waits:
        run.lose(0)
        run.await_phase(1, Phase.REJOINING)
    for number in signals:
        run.signal(1, number)
        run.clock.sleep(HANGUP_S / 2)
    if not waits:
        run.clock.until(lambda: signal.SIGTERM in run.workers[1, 1].signals, "the signal")
        run.do(0, 1, PREEMPTED)
    assert run.end(1) == PREEMPTED
    assert run.phases(1)[-1] == Phase.DOWN
    if waits:
        run.begin(0)
    run.await_phase(0, Phase.REJOINING)
    run.begin(1)
    run.await_generation(2)
    run.all_do(2, SUCCEEDED)
    assert run.ends() == [0, 0]
    assert "was lost with its supervisor, or its host restarted; all workers start again" in run.log(0)


@pytest.mark.parametrize("saves", [True, False])
def test_a_session_ended_by_hand_ends_its_worker(begin, saves, clock):
    """The mark says that its end is wanted; a worker that does not save its state in time is killed."""
    run, began = begin(), clock.monotonic()
    for own in run.folders:
        (own / MARK).touch()
    for rank in (0, 1):
        run.deaf |= set() if saves else {rank}
        run.signal(rank, signal.SIGHUP)
    assert run.ends() == [PREEMPTED, PREEMPTED]
    assert (clock.monotonic() - began > SAVE_S) == (not saves)
    assert [run.phases(rank)[-1] for rank in (0, 1)] == ["ended", "ended"]
    assert not any((own / SUPERVISED).exists() for own in run.folders)
    ends = [json.loads((own / "exit.json").read_text()) for own in run.folders]
    assert [(end["host"], end["rank"], end["exit_code"]) for end in ends] == [("first", 0, PREEMPTED), ("second", 1, PREEMPTED)]
    assert not run.of(1)


def test_a_signal_alone_means_a_lost_session(tmp_path, clock):
    """A host that goes down sends another; until then the worker may save its state."""
    supervisor = Supervisor(post(tmp_path), clock)
    pulse = Pulse(tmp_path / "metrics.jsonl")
    supervisor._hang_up()
    assert supervisor._look(pulse) == ""
    clock.advance(HANGUP_S)
    assert supervisor._look(pulse) == "lost its tmux server"
    supervisor._stop(signal.SIGTERM, None)
    assert supervisor._look(pulse) == ""


def test_a_request_reaches_who_waits():
    """asyncio keeps an Exception of a task until somebody asks for its result."""

    async def asked():
        raise EndRequest

    async def wait():
        asking = asyncio.create_task(asked())
        await asyncio.Event().wait()
        await asking

    with pytest.raises(EndRequest):
        asyncio.run(wait())


# --- without a lost host


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_two_of_three_go_on_without_one(lost, begin):
    """Also without the chief: who comes first after it takes its rank."""
    run, others = begin(workers=3, **ELASTIC), [rank for rank in range(3) if rank != lost]
    run.lose(lost)
    run.await_generation(2, others)
    for index, rank in enumerate(others):
        cluster = {"worker": [NAMES[other] for other in others]}
        assert run.workers[rank, 2].cluster == {"cluster": cluster, "task": {"type": "worker", "index": index}}
    run.all_do(2, SUCCEEDED)
    assert [run.end(rank) for rank in others] == [0, 0]
    words = f"rank {lost} ({NAMES[lost]}) did not come back; 2 of 3 workers start again from the last saved state"
    warnings = [[one["text"] for one in run.records(rank, "warning")] for rank in others]
    assert len(warnings[0]) == 1, "only the first rank records the warning"
    assert words in warnings[0][0]
    assert not warnings[1]


def test_a_host_back_in_time_is_waited_for(begin, clock):
    run = begin(workers=3, elastic=Elasticity(15.0, 1), rejoin_wait=60.0)
    run.lose(2)
    clock.sleep(10.0)
    run.begin(2)
    run.await_generation(2)
    assert run.workers[2, 2].cluster["task"]["index"] == 2


def test_a_second_fault_waits_only_a_moment(begin, clock):
    """A host that was lost before is waited for only a moment."""
    run = begin(workers=3, elastic=Elasticity(60.0, 1), rejoin_wait=90.0)
    run.lose(1)
    run.await_generation(2, (0, 2))
    began = clock.monotonic()
    run.kill(2, 2)
    run.await_generation(3, (0, 2))
    assert clock.monotonic() - began < 15
    assert run.workers[2, 3].cluster["cluster"] == {"worker": ["first", "third"]}


def test_who_waited_alone_waits_for_the_rest(clock, tmp_path):
    """Otherwise it would take the first that comes away from those that train, or that come a moment later."""
    supervisor, began = Supervisor(post(tmp_path, elastic=Elasticity(wait=60.0, least=1)), clock), clock.monotonic()
    steps = [
        (0, {0}, False),
        (500, {0}, False),
        (501, {0, 2}, False),
        (550, {0, 2}, False),
        (562, {0, 2}, True),
        (563, {0}, False),
        (564, {0, 2}, False),
    ]
    for now, there, goes_on in steps:
        clock.advance(began + now - clock.monotonic())
        assert supervisor._enough(there) == goes_on


@pytest.mark.parametrize(("least", "lost"), [(1, 0), (2, 1)])
def test_too_few_wait_and_then_end(least, lost, begin):
    """Of two, only the first may go on alone: the other could be behind a broken network."""
    run = begin(elastic=Elasticity(2.0, least), rejoin_wait=30.0)
    run.lose(lost)
    assert run.end(1 - lost) == 75
    expected = f"not enough of the 2 workers (at least {least}, and more than half or half with first) came back within 30 s"
    assert expected in run.log(1 - lost)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_lost_host_that_returns_joins_again(lost, begin):
    run, others = begin(workers=3, **ELASTIC), [rank for rank in range(3) if rank != lost]
    run.lose(lost)
    run.await_generation(2, others)
    run.begin(lost)
    run.await_generation(3)
    assert run.workers[lost, 3].cluster["cluster"] == {"worker": [*NAMES]}
    run.all_do(3, SUCCEEDED)
    assert run.ends() == [0, 0, 0]
    words = f"{ROOM_WAS_MADE}, at step 20; all workers start again from the last saved state (restart 2 of this launch)"
    assert all(words in run.log(rank) for rank in range(3))


def test_a_host_back_at_the_end_is_told(begin, clock):
    run = begin(workers=3, **ELASTIC | {"rejoin_wait": 60.0})
    run.lose(2)
    run.await_generation(2, (0, 1))
    run.busy = {0, 1}
    run.begin(2)
    clock.until(lambda: any(LET_IN in run.workers[rank, 2].signals for rank in (0, 1)), "the request")
    run.all_do(2, SUCCEEDED)
    assert run.ends() == [0, 0, 75]
    assert "error: the others have ended the run without this host" in run.log(2)


# --- spares


def test_a_spare_takes_a_lost_workers_place(run):
    run.lose(1)
    run.await_generation(2, (0, 2))
    assert run.workers[2, 2].cluster == {"cluster": {"worker": ["first", "third"]}, "task": {"type": "worker", "index": 1}}
    run.all_do(2, SUCCEEDED)
    assert [run.end(rank) for rank in (0, 2)] == [0, 0]
    words = "rank 1 (second) did not come back; rank 2 (third) takes the place of a lost host; all workers start again"
    assert all(words in run.log(rank) for rank in (0, 2))


@pytest.mark.parametrize(("order", "code"), [(SUCCEEDED, 0), (CANCELLED, PREEMPTED)])
def test_a_spare_waits_behind_doors_to_the_end(run, order, code):
    """Of a run that has lost nobody: it ends with it."""
    run.kill(1, 1)
    run.await_generation(2)
    assert run.workers[1, 2].cluster["cluster"] == {"worker": ["first", "second"]}
    run.await_visit(2)
    assert not any(LET_IN in run.workers[rank, 2].signals for rank in (0, 1)), "nobody makes room for it"
    run.all_do(2, order)
    assert run.ends() == [code, code, 0]
    assert not any(rank == 2 for rank, _ in run.workers)
    assert "error" not in run.log(2)


def test_a_spare_that_comes_after_a_loss_joins(begin):
    """With the next epoch."""
    run = begin(workers=2, spares=1, **ELASTIC)
    run.lose(2)
    run.lose(1)
    run.await_generation(2, [0])
    run.begin(2)
    run.await_generation(3, (0, 2))
    assert run.workers[2, 3].cluster["cluster"] == {"worker": ["first", "third"]}


def test_a_worker_joins_after_the_next_fault(run):
    """One that is back while a spare has its place: whoever meets the first in time trains, the other waits behind a door."""
    run.lose(1)
    run.await_generation(2, (0, 2))
    run.begin(1)
    run.await_phase(1, Phase.REJOINING)
    run.await_visit(1)
    run.kill(0, 2)
    run.await_generation(3, (0,))
    # Whoever meets the first in time.
    other = {"second": 1, "third": 2}[run.workers[0, 3].cluster["cluster"]["worker"][1]]
    run.await_generation(3, (0, other))
    run.await_visit(3 - other)
    run.all_do(3, SUCCEEDED)
    assert run.ends() == ([0, 0, 0] if other == 1 else [0, 75, 0])


@pytest.mark.parametrize("limits", [Limits(5, 5), Limits(0, 5)])
def test_one_that_misses_the_end_is_told(limits, begin, clock):
    """Until `MISSED_S` after the decision; else it would wait for minutes."""
    run = begin(workers=2, spares=1, limits=limits, **ELASTIC)
    run.lose(2)
    if limits.restarts:
        run.do(1, 1, 1)
    else:
        run.kill(1, 1)
    code = 1 if limits.restarts else 137
    run.await_phase(1, Phase.REJOINING)
    began = clock.monotonic()
    clock.sleep(MISSED_S / 3)
    run.begin(2)
    assert run.ends() == [75, code, 75]
    assert clock.monotonic() - began < MISSED_S + 1
    assert "error: the others have ended the run after a fault; nothing starts again after that" in run.log(2)


def test_a_spare_waits_longer_than_others(run, clock):
    """All may be lost, and nobody could tell it."""
    began = clock.monotonic()
    for rank in (0, 1):
        run.lose(rank)
    assert run.end(2) == 75
    assert 2.5 * 20 < clock.monotonic() - began < 3.5 * 20


def test_a_host_behind_a_door_may_wait_long(begin, clock):
    """Its time counts anew from the end of that generation."""
    run = begin(workers=3, **ELASTIC)
    run.lose(2)
    run.await_generation(2, (0, 1))
    run.busy = {0, 1}
    run.begin(2)
    run.await_visit(2)
    clock.sleep(300.0)
    run.lose(1)
    run.await_generation(3, (0, 2))
    assert run.workers[2, 3].cluster["cluster"] == {"worker": ["first", "third"]}


def test_a_spare_can_be_asked_to_end(run):
    (run.folders[2] / MARK).touch()
    run.signal(2, signal.SIGTERM)
    assert run.end(2) == PREEMPTED
