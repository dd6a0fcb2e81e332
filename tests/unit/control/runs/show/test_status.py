"""What the files of a run's workers say of it."""

import dataclasses
from pathlib import Path

import pytest

from control.runs.results.run_folder import RunFolder
from control.runs.show import status
from control.runs.show.status import WorkerSeen
from trainer.rundir.launch_record import Host
from trainer.rundir.phases import Phase


def seen(host: str, ended: int | None = None, alive: bool = False, records: bool = True) -> WorkerSeen:
    phases = [{"kind": "phase", "phase": "training"}] if records else []
    return WorkerSeen.of(host, phases, None if ended is None else {"exit_code": ended}, alive, 1.0)


def looks(actual, launched, workers: int = 3) -> status.Looks:
    return status.Looks(list(actual), list(launched), workers)


def left_alone(*actual: WorkerSeen) -> tuple[list[str], list[str]]:
    return looks(actual, [one.host for one in actual]).left_alone()


def test_workers_survive_one_that_ended_early():
    """Workers are left alone by one that ended before its time."""
    assert left_alone(seen("a", alive=True), seen("b", ended=137), seen("c", alive=True)) == (["b"], ["a", "c"])
    assert left_alone(seen("a", alive=True), seen("b")) == (["b"], ["a"])
    assert left_alone(WorkerSeen("b", "unreachable"), seen("c", ended=1)) == (["c"], [])


def test_departing_or_unasked_worker_leaves_none_alone():
    """None is left alone by one that is done or about to start or cannot be asked."""
    assert left_alone(seen("a", alive=True), seen("b", alive=True)) == ([], [])
    assert left_alone(seen("a", alive=True), seen("b", ended=0)) == ([], [])
    assert left_alone(seen("a", alive=True), seen("b", records=False)) == ([], [])
    assert left_alone(seen("a", alive=True), WorkerSeen("b", "unreachable")) == ([], [])


@pytest.mark.parametrize("launched", [[], ["a"], ["b", "a"], ["a", "c"], ["a", "b", "c"]])
def test_host_of_an_older_launch_leaves_none_alone(launched):
    assert looks([seen("a", alive=True), seen("b", ended=137)], launched).left_alone() == ([], [])


def member(host: str, number: int, hosts: list[str], alive: bool = True) -> WorkerSeen:
    record = {"kind": "generation", "number": number, "rank": hosts.index(host), "hosts": hosts}
    steps = {"kind": "steps", "step": 12 if alive else 3, "epoch": 1, "images_per_s": 5.0, "input_wait": 0.0, "seconds": 1.0, "metrics": {}}
    return WorkerSeen.of(host, [record, {"kind": "phase", "phase": "training"}, steps], None, alive, 1.0)


def test_lost_host_and_new_chief_are_named():
    hosts = [Host(rank=rank, name=name) for rank, name in enumerate("abc")]
    seen = [member("a", 1, ["a", "b", "c"], alive=False), member("b", 2, ["b", "c"]), member("c", 2, ["b", "c"])]
    shown = status.table(RunFolder(Path("run")), hosts, seen, {"epochs": 3, "total_steps": 30, "steps_per_epoch": 10, "global_batch": 4})
    assert "step 12/30" in shown
    (line,) = [line for line in shown.splitlines() if "lost: the others go on without it" in line]
    assert line.split()[:3] == ["0", "a", "gone"]


@pytest.mark.parametrize(("numbers", "restarts"), [([1], 0), ([1, 2, 3], 2), ([1, 1, 1], 2), ([1, 1, 2], 2), ([1, 4], 3), ([], 0)])
def test_restarts_of_all_and_of_one_worker_alone(numbers, restarts):
    """Of an asynchronous run, a worker starts again in the same generation; a lost one has missed some."""
    generations = [{"kind": "generation", "number": number, "rank": 0, "hosts": ["a"]} for number in numbers]
    assert WorkerSeen.of("a", generations, None, True, 1.0).restarts == restarts


def test_a_spare_stands_by():
    hosts = [Host(rank=rank, name=name) for rank, name in enumerate("abc")]
    actual = [member(host, 1, ["a", "b"]) for host in "ab"] + [dataclasses.replace(seen("c"), phase=Phase.STANDING_BY)]
    shown = status.table(RunFolder(Path("run")), hosts, actual, {"epochs": 3, "total_steps": 30, "steps_per_epoch": 10, "global_batch": 4})
    (line,) = [line for line in shown.splitlines() if line.endswith("spare: takes the place of a lost host")]
    assert line.split()[:2] == ["2", "c"]
    assert "lost:" not in shown
    assert not looks([seen("a", alive=False), seen("b"), seen("c")], "abc", 2).goes_on(), "the half without the first"


@pytest.mark.parametrize(("alive", "expected"), [("abc", False), ("ab", True), ("bc", True), ("a", False), ("c", False), ("", False)])
def test_run_goes_on_with_enough_workers_alive(alive, expected):
    actual = [seen(host, alive=host in alive) for host in "abc"]
    assert looks(actual, "abc").goes_on() is expected
    assert not looks(actual, "abd").goes_on(), "of an older launch"


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["running", "gone"], True),
        (["running", "unreachable"], True),
        (["running", "gone", "unreachable"], True),
        (["running", "running"], False),
        (["gone", "gone"], False),
        (["running", "failed"], False),
        (["running", "gone", "failed"], False),
        (["running", "not started"], False),
    ],
)
def test_workers_wait_for_one_that_may_come_back(states, expected):
    actual = [WorkerSeen(host, state) for host, state in zip("abc", states, strict=False)]
    launched = [one.host for one in actual]
    away = [one.host for one in actual if one.state in ("gone", "unreachable")]
    assert looks(actual, launched).waits_for() == (away if expected else [])
    assert not looks(actual, [*launched, "d"]).waits_for(), "of an older launch"


def done(host: str, step: int = 30) -> WorkerSeen:
    steps = {"kind": "steps", "step": step, "epoch": 3, "images_per_s": 5.0, "input_wait": 0.0, "seconds": 1.0, "metrics": {}}
    return WorkerSeen.of(host, [steps], {"exit_code": 0}, False, 1.0)


@pytest.mark.parametrize(
    ("last", "elastic", "expected"),
    [
        (done("c"), False, True),
        (done("c", step=20), False, False),
        (seen("c", ended=0), False, False),
        (seen("c", ended=1), False, False),
        (seen("c"), False, False),
        (seen("c"), True, True),
        (seen("c", alive=True), True, False),
        (WorkerSeen("c", "unreachable"), True, True),
        (done("d"), False, False),
    ],
)
def test_run_ended_if_its_workers_made_all_steps(last, elastic, expected):
    assert looks([done("a"), done("b"), last], "abc").has_ended(30, elastic) is expected
