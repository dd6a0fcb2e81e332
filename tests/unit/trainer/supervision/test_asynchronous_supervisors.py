"""What keeps the supervisors of an asynchronous run together, over real sockets."""

import dataclasses
import secrets
import signal
import threading
from pathlib import Path

import pytest

from tests.ports import free_ports
from trainer.common.errors import DONE, FAILED, PREEMPTED, RESTART
from trainer.supervision import parameter_server
from trainer.supervision.child import Patience
from trainer.supervision.failure import LOST
from trainer.supervision.parameter_server import ENDED, Attendance, ChiefSupervisor, WorkerSupervisor
from trainer.supervision.rejoin import EntryPort
from trainer.supervision.restart_policy import Limits, Report
from trainer.supervision.supervisor import Post

SECRET = secrets.token_bytes(32)
ENDPOINTS = ["10.0.0.1:12345", "10.0.0.2:12345", "10.0.0.3:12345"]


@pytest.fixture
def addresses():
    return [("127.0.0.1", port) for port in free_ports(3)]


def door(addresses, clock):
    return EntryPort(0, addresses, SECRET, {1, 2}, lambda: None, clock)


@pytest.mark.parametrize("word", [*ENDED.values(), b""])
def test_all_others_hear_how_the_chief_has_ended(addresses, word, clock):
    """Without a word it was lost."""
    chief = door(addresses, clock)
    with Attendance(1, addresses, SECRET, clock) as first, Attendance(2, addresses, SECRET, clock) as second:
        clock.until(lambda: first.present and second.present, "both")
        assert not first.over
        chief.close(word)
        clock.until(lambda: first.over and second.over, "the word")
        assert (first.word, second.word) == (word, word)


def test_one_that_comes_back_takes_its_own_place(addresses, clock):
    chief = door(addresses, clock)
    for _ in range(2):
        with Attendance(1, addresses, SECRET, clock) as attendance:
            clock.until(lambda here=attendance: here.present, "the chief")
    with Attendance(1, addresses, SECRET, clock) as attendance:
        clock.until(lambda: attendance.present, "the chief")
        chief.close(ENDED[DONE])
        clock.until(lambda: attendance.over, "the word")
        assert attendance.word == ENDED[DONE]


def test_a_stranger_hears_nothing(addresses, clock):
    chief = door(addresses, clock)
    with Attendance(1, addresses, bytes(32), clock) as stranger, Attendance(2, addresses, SECRET, clock) as attendance:
        clock.until(lambda: attendance.present, "the chief")
        chief.close(ENDED[DONE])
        clock.until(lambda: attendance.over, "the word")
        assert not stranger.present


def post(folder: Path, rank: int, servers=None) -> Post:
    given = [["node1", "node2", "node3"], 3, ENDPOINTS, [("127.0.0.1", 1)] * 3, SECRET, "launch", ["python"], [], [], []]
    return Post(folder, rank, *given, Limits(2, 2), Patience(1.0, 1.0), 1.0, None, servers or {0: "10.0.0.1:12845", 2: "10.0.0.3:12845"})


def test_each_host_has_its_role_and_its_server(tmp_path):
    chief, worker, both = (parameter_server.of(post(tmp_path, rank)) for rank in range(3))
    assert (type(chief), type(worker)) == (ChiefSupervisor, WorkerSupervisor)
    assert [one._cluster()["task"] for one in (chief, worker, both)] == [
        {"type": "chief", "index": 0},
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    ]
    assert chief._cluster()["cluster"]["ps"] == ["10.0.0.1:12845", "10.0.0.3:12845"]
    assert [one._more_arguments() for one in (chief, worker, both)] == [["--server", "0"], [], ["--server", "1"]]


def test_hosts_apart_have_no_server_beside_them(tmp_path):
    given = dataclasses.replace(post(tmp_path, 2, {2: "10.0.0.3:12845"}), apart={2: "ps"})
    server = parameter_server.of(given)
    assert server._cluster()["task"] == {"type": "ps", "index": 0}
    assert server._more_arguments() == []
    evaluator = parameter_server.of(dataclasses.replace(post(tmp_path, 2, {0: "10.0.0.1:12845"}), apart={2: "evaluator"}))
    assert evaluator._cluster() == {
        "cluster": {"chief": ENDPOINTS[:1], "worker": ENDPOINTS[1:2], "ps": ["10.0.0.1:12845"], "evaluator": ENDPOINTS[2:]},
        "task": {"type": "evaluator", "index": 0},
    }


def test_all_start_again_without_an_absent_evaluator(tmp_path, addresses, clock):
    lost = Report(1, RESTART, 7, "training", "", 0.0, 0, 0, 0, -1, [0, 1, 2])
    decided = {}

    def meet(rank: int, folder: Path) -> None:
        folder.mkdir()
        given = dataclasses.replace(post(folder, rank, {0: "10.0.0.1:12845"}), peers=addresses, apart={2: "evaluator"})
        decision, start = parameter_server.of(given, clock)._agree(lost, 60.0)
        decided[rank] = decision
        start.close(trains=True)

    threads = [threading.Thread(target=meet, args=[rank, tmp_path / str(rank)]) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        clock.join(thread)
    assert decided[0] == decided[1]
    assert (decided[0].generation, decided[0].members) == (2, [0, 1])


def test_not_without_a_worker(tmp_path):
    given = dataclasses.replace(post(tmp_path, 0, {0: "10.0.0.1:12845"}), apart={2: "evaluator"})
    supervisor = parameter_server.of(given)
    supervisor._enough_at = 0.0
    assert not supervisor._enough({0, 2})
    assert supervisor._enough({0, 1, 2})


def test_a_worker_ends_as_its_chief_did(tmp_path, clock):
    supervisor = WorkerSupervisor(post(tmp_path, 1), clock)
    supervisor._attendance = attendance = Attendance(1, [("127.0.0.1", 1)], SECRET, clock)
    killed = Report(1, 137, 0, "training", "ended", 0.0, 0, 0, 0, -1, [0, 1, 2])
    assert supervisor._as_the_chief(killed) is killed, "the chief is still there"
    attendance.over = True
    for word, code in {ENDED[DONE]: DONE, ENDED[PREEMPTED]: PREEMPTED, b"": RESTART, b"\x00": RESTART}.items():
        attendance.word = word
        assert supervisor._as_the_chief(killed).code == code


@pytest.mark.parametrize(("code", "expected"), [(LOST, None), (RESTART, None), (137, None), (FAILED, FAILED)])
def test_a_worker_joins_a_chief_that_trains(tmp_path, addresses, code, expected, clock):
    """Unless it would fail again."""
    supervisor = WorkerSupervisor(dataclasses.replace(post(tmp_path, 1), peers=addresses, rejoin_wait=60.0), clock)
    chief = door(addresses, clock)
    try:
        assert supervisor._meet(Report(1, code, 0, "starting", "", 0.0, 0, 0, 0, -1, [0, 1, 2])) == expected
    finally:
        chief.close()


def test_a_request_ends_the_pause_before_a_start(tmp_path, clock):
    supervisor = WorkerSupervisor(post(tmp_path, 1), clock)
    supervisor._attendance = Attendance(1, [("127.0.0.1", 1)], SECRET, clock)
    threading.Thread(target=lambda: [clock.sleep(3.0), supervisor._stop(signal.SIGTERM, None)], daemon=True).start()
    begun = clock.monotonic()
    supervisor._pause(60.0)
    assert 3 <= clock.monotonic() - begun < 4


def test_a_worker_killed_too_often_is_given_up(tmp_path, clock):
    supervisor = WorkerSupervisor(post(tmp_path, 1), clock)
    assert supervisor._limit() == ""
    supervisor._history.restarts = [0.0, 1.0]
    assert supervisor._limit() == "recovery.max_restarts=2 is reached"
