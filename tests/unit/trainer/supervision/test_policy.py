import dataclasses
import itertools
import json

import pytest

from trainer.common.errors import DIVERGED, FAILED, PREEMPTED, RESTART, LockstepError
from trainer.common.files import write_json
from trainer.supervision.failure import LOST
from trainer.supervision.restart_policy import FRUITLESS, LONG_AGO, Limits, Report, backoff, decide, failure, may_go_on
from trainer.supervision.supervisor import History

HOSTS = ("node1", "node2", "node3")
LIMITS = Limits(restarts=10, per_hour=5)
PEER = Report(4, RESTART, 310, "training", "", 1.0, restarts=3, in_last_hour=3, fruitless=0, reached=200, members=[0, 1, 2])
KILLED = dataclasses.replace(PEER, code=137, ago=3.0)
NOBODY_KNOWS = dataclasses.replace(PEER, code=LOST, ago=LONG_AGO, step=0, phase="starting")


def changed(report=PEER, **fields):
    return dataclasses.replace(report, **fields)


def decision(*reports, limits=LIMITS):
    return decide(dict(enumerate(reports)), HOSTS, len(HOSTS), limits)


FAULTY = changed(KILLED, restarts=10)
OFTEN = changed(KILLED, in_last_hour=5)
ENDS = "rank {} ({}) ended with exit code {} at step 310; nothing starts again after that"
KILL = "rank 1 (node2) was killed by SIGKILL at step 310"
ONCE_LOST = changed(members=[1, 2])
DECISIONS = {
    "all start again at once, and who was killed is named": ([PEER, KILLED, PEER], 5, KILL),
    "an error would come again": ([PEER, PEER, changed(KILLED, code=FAILED)], 0, ENDS.format(2, "node3", FAILED)),
    "what is no number would come again": ([PEER, PEER, changed(KILLED, code=DIVERGED)], 0, ENDS.format(2, "node3", DIVERGED)),
    "a worker was asked to end": ([PEER, PEER, changed(KILLED, code=PREEMPTED)], 0, ENDS.format(2, "node3", PREEMPTED)),
    "an error that follows from a kill": ([changed(code=FAILED, ago=1.0), changed(KILLED, ago=2.0), PEER], 5, KILL),
    "asked to end after a kill": ([changed(code=PREEMPTED), changed(KILLED, ago=2.0), PEER], 0, f"{KILL}; a worker was asked to end"),
    "who ended first is the cause": (
        [changed(code=137), changed(code=139, ago=9.0), PEER],
        5,
        "rank 1 (node2) was killed by SIGSEGV at step 310",
    ),
    "of losses at once the first rank": ([PEER, PEER, PEER], 5, "rank 0 (node1) lost another worker at step 310"),
    "of losses the earliest": ([PEER, changed(ago=5.0), PEER], 5, "rank 1 (node2) lost another worker at step 310"),
    "a supervisor that returned knows little, the others the rest": (
        [NOBODY_KNOWS, PEER, PEER],
        5,
        "rank 0 (node1) was lost with its supervisor, or its host restarted",
    ),
    "max_restarts is reached": ([PEER, FAULTY, PEER], 0, f"{KILL}; recovery.max_restarts=10 is reached"),
    "max_restarts_per_hour is reached": ([PEER, OFTEN, PEER], 0, f"{KILL}; recovery.max_restarts_per_hour=5 is reached"),
    "a host does not come back": ([None, KILLED, PEER], 5, f"{KILL}; rank 0 (node1) did not come back"),
    "a host that was lost before is not named again": ([None, changed(KILLED, members=[1, 2]), ONCE_LOST], 5, KILL),
    "members that there are not": ([PEER, changed(KILLED, members=[-1, 0, 1, 2, 99]), PEER], 5, KILL),
}


@pytest.mark.parametrize(("reports", "generation", "why"), DECISIONS.values(), ids=DECISIONS)
def test_whether_and_why_all_start_again(reports, generation, why):
    """A worker may meet the loss of a peer as an exception of TensorFlow's that nobody foresaw."""
    there = {rank: report for rank, report in enumerate(reports) if report}
    decided = decide(there, HOSTS, len(HOSTS), LIMITS)
    assert (decided.generation, decided.why) == (generation, why)
    if generation:
        assert (decided.wait, decided.fruitless, decided.reached, decided.members) == (0.0, 0, 310, list(there))


def test_a_run_that_gets_no_further_ends():
    stuck, waits = changed(KILLED, step=200), []
    for fruitless in range(FRUITLESS - 1):
        decided = decision(changed(step=200, fruitless=fruitless), changed(stuck, fruitless=fruitless), changed(step=150))
        assert decided.generation == 5
        assert decided.fruitless == fruitless + 1
        waits.append(decided.wait)
    assert waits == [1.0, 3.0], "each wait is longer"
    decided = decision(changed(step=200), changed(stuck, fruitless=FRUITLESS - 1), changed(step=200))
    assert decided.generation == 0
    assert decided.why.endswith("the run got no further than step 200 3 times in a row")


def test_native_code_that_crashes_twice_in_one_place_is_not_started_a_third_time():
    crashed = changed(KILLED, code=139, step=200)
    assert decision(crashed, *2 * [changed(step=200)]).why.endswith("was killed by SIGSEGV at step 200; it would crash there again")
    first = [changed(one, step=200, reached=100) for one in (crashed, PEER, PEER)]
    assert decision(*first).generation == 5


def test_all_decide_the_same_in_whatever_order_the_reports_come():
    reports = {0: PEER, 1: KILLED, 2: changed(code=139, ago=2.0)}
    assert decide(reports, HOSTS, len(HOSTS), LIMITS) == decide(dict(reversed(reports.items())), HOSTS, len(HOSTS), LIMITS)


def test_who_returns_is_a_member_again():
    """It knows of an older generation, in which there were other workers."""
    others = changed(members=[1, 2], message="made room")
    decided = decide({0: changed(NOBODY_KNOWS, generation=2, restarts=1), 1: others, 2: others}, HOSTS, len(HOSTS), LIMITS)
    assert (decided.generation, decided.members, decided.restart) == (5, [0, 1, 2], 4)
    assert decided.why == "rank 1 (node2) made room, at step 310"


@pytest.mark.parametrize(
    ("there", "members", "words"),
    [
        ((0, 1, 2), [0, 1], ""),
        ((0, 2), [0, 2], "; rank 1 (node2) did not come back; rank 2 (node3) takes the place of a lost host"),
        ((1, 2), [1, 2], "; rank 0 (node1) did not come back; rank 2 (node3) takes the place of a lost host"),
    ],
)
def test_a_spare_takes_the_place_of_a_lost_worker_and_no_other(there, members, words):
    waits = changed(NOBODY_KNOWS, generation=1, restarts=0, members=[0, 1])
    reports = {rank: changed(KILLED, members=[0, 1]) if rank < 2 else waits for rank in there}
    decided = decide(reports, HOSTS, 2, LIMITS)
    assert (decided.generation, decided.members) == (5, members)
    assert decided.why == f"rank {there[0]} ({HOSTS[there[0]]}) was killed by SIGKILL at step 310{words}"


def test_a_worker_that_is_back_gets_its_place_again_and_a_spare_that_trains_keeps_one_else():
    trains = changed(KILLED, members=[1, 2])
    returned = changed(NOBODY_KNOWS, generation=1, members=[0, 1])
    assert decide({1: trains, 2: trains}, HOSTS, 2, LIMITS).members == [1, 2]
    assert decide({0: returned, 1: trains, 2: trains}, HOSTS, 2, LIMITS).members == [0, 1]


def test_spares_do_not_count_among_those_that_may_go_on():
    assert may_go_on([0, 3], 2, 1)
    assert not may_go_on([1, 2, 3], 2, 1), "the other half has the first"
    assert not may_go_on([2, 3, 4], 2, 1)
    assert may_go_on([0, 1, 3], 3, 3), "of the fewest that go on they do"


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
def test_of_two_groups_without_a_common_host_at_most_one_goes_on(workers):
    groups = [set(group) for size in range(workers + 1) for group in itertools.combinations(range(workers), size)]
    able = [group for group in groups if may_go_on(group, workers, 1)]
    assert all(one & other for one in able for other in able)
    assert all(may_go_on(group, workers, 1) or may_go_on(set(range(workers)) - group, workers, 1) for group in groups), "one of two does"
    assert all(may_go_on(group | {one}, workers, 1) for group in able for one in range(workers)), "more hosts never hinder"
    assert not may_go_on(range(1, workers), workers, workers), "fewer than the least"


def test_waits_grow_to_a_minute():
    assert [backoff(number) for number in (0, 1, 2, 5, 6, 60)] == [0.0, 1.0, 3.0, 31.0, 60.0, 60.0]


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (changed(code=137, phase="joining"), "was killed by SIGKILL while joining"),
        (changed(code=137, message="gave no heartbeat for 46 s"), "gave no heartbeat for 46 s, at step 310"),
        (changed(code=99), "ended with exit code 99 at step 310"),
        (changed(phase="\x1b[31mred"), "lost another worker while \\x1b[31mred"),
    ],
)
def test_how_a_worker_ended(report, words):
    assert failure(report).words == words


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"{}", b"null", json.dumps({**dataclasses.asdict(PEER), "more": 1}).encode()]
    + [
        json.dumps({**dataclasses.asdict(PEER), name: value}).encode()
        for name, value in [("step", "9"), ("code", True), ("phase", 3), ("members", {}), ("members", ["0"])]
    ],
)
def test_what_is_no_report_is_refused(data):
    with pytest.raises(LockstepError, match="report"):
        Report.from_bytes(data)


def test_restarts_of_the_last_hour_when_the_clock_was_set_back():
    """Restarts an hour from now were before that: they must not count for ever."""
    assert History("x", restarts=[6_399.0, 6_401.0, 9_000.0, 10_001.0, 13_600.0]).recent(10_000.0) == 2


def test_a_new_launch_begins_without_restarts(tmp_path):
    """A supervisor that was killed knows of those of its own launch."""
    before = History("first", generation=3, restarts=[1.0])
    write_json(tmp_path / "supervisor.json", {"history": vars(before)})
    assert History.read(tmp_path / "supervisor.json", "first") == before
    assert History.read(tmp_path / "supervisor.json", "second") == History("second")
