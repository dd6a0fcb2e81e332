"""Snapshots from the chief to evaluators: real connections, a test that only counts."""

import contextlib
import hashlib
import json
import socket
import threading

import pytest

from trainer.common import files
from trainer.parameter_server.evaluator import ChiefGone, Evaluator, follow
from trainer.parameter_server.roles import Task
from trainer.parameter_server.snapshot_offers import HEADER, LOSSES, REFUSED, SEND, Offers, Place
from trainer.rundir.layout import EVALUATIONS, snapshot_path
from trainer.rundir.metrics_log import Metrics

SECRET = b"s" * 32
PATIENCE_S = 60.0


class Weight:
    """What an evaluator asks of a weight."""

    class value:  # noqa: N801
        class shape:  # noqa: N801
            @staticmethod
            def num_elements() -> int:
                return 1000

        class dtype:  # noqa: N801
            size = 4


class Counting:
    """A run's test examples: an evaluation is the digest of the snapshot."""

    class model:  # noqa: N801
        weights = (Weight,)

    def __init__(self):
        self.epochs = []

    def record(self, epoch, path):
        """Write down what was asked."""
        content = path.read_bytes()
        if content.startswith(b"bad"):
            raise OSError("it is no snapshot")
        self.epochs.append(epoch)
        return {"epoch": epoch, "metrics": {"loss": 0.5}, "sha256": hashlib.sha256(content).hexdigest()}


@pytest.fixture
def chief(tmp_path, port):
    """A run directory on the chief, and the cluster with one evaluator."""
    cluster = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"], "evaluator": [f"127.0.0.1:{port}"]}
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    return tmp_path / "run", cluster


def write(run, epoch, content=None):
    snapshot_path(run, epoch).write_bytes(content or bytes(f"epoch {epoch}", "ascii") * 300_000)


def evaluate(cluster, folder, test, clock, secret=SECRET):
    """Start an evaluator, as a thread that ends with the clock."""
    metrics = Metrics(folder / "metrics.jsonl")
    thread = threading.Thread(target=follow, args=[Task("evaluator", 0, cluster), test, folder, secret, metrics, clock], daemon=True)
    thread.start()
    return metrics


def offers(run, cluster, clock, patience=PATIENCE_S, secret=SECRET):
    return Offers(Place(Task("chief", 0, cluster), secret, clock), run, Metrics(run / "chief.jsonl"), patience)


def record(folder, epoch):
    return json.loads((folder / EVALUATIONS / f"epoch-{epoch:04d}.json").read_text())


def test_each_snapshot_is_evaluated_and_the_run_waits_for_it(chief, tmp_path, clock):
    run, cluster = chief
    test, given = Counting(), offers(run, cluster, clock)
    for epoch in (1, 2, 3):
        write(run, epoch)
        given.offer(epoch)
    evaluate(cluster, tmp_path, test, clock)
    assert given.wait(lambda: False) == []
    assert test.epochs == [3, 2, 1], "the newest first"
    assert record(tmp_path, 2)["sha256"] == hashlib.sha256(b"epoch 2" * 300_000).hexdigest()
    kinds = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [one["epoch"] for one in kinds if one["kind"] == "evaluation"] == [3, 2, 1]
    assert {path.suffix for path in (tmp_path / EVALUATIONS).iterdir()} == {".json"}


def test_what_was_evaluated_before_is_not_evaluated_again_unless_it_is_another(chief, tmp_path, clock):
    run, cluster = chief
    test = Counting()
    evaluate(cluster, tmp_path, test, clock)
    for content in (None, None, b"other"):
        write(run, 1, content)
        given = offers(run, cluster, clock)
        given.offer(1)
        assert given.wait(lambda: False) == []
        for thread in given._threads:
            clock.join(thread)
    assert test.epochs == [1, 1]
    assert record(tmp_path, 1)["sha256"] == hashlib.sha256(b"other").hexdigest()


def test_a_snapshot_that_is_not_kept_any_more_is_not_waited_for(chief, tmp_path, clock):
    run, cluster = chief
    test, given = Counting(), offers(run, cluster, clock)
    given.offer(1)
    evaluate(cluster, tmp_path, test, clock)
    assert given.wait(lambda: False) == []
    assert test.epochs == []


def test_what_can_not_be_read_is_reported_and_the_next_one_evaluated(chief, tmp_path, capfd, clock):
    run, cluster = chief
    test, given = Counting(), offers(run, cluster, clock)
    write(run, 1)
    write(run, 2, b"bad")
    evaluate(cluster, tmp_path, test, clock)
    given.offer(1)
    given.offer(2)
    assert given.wait(lambda: False) == []
    assert test.epochs == [1]
    output = capfd.readouterr().out
    assert "error: the snapshot of epoch 2: it is no snapshot" in output
    assert "warning: epoch 2 is not evaluated" in output


def test_without_an_evaluator_the_run_ends_after_its_patience(chief, clock):
    run, cluster = chief
    given, began = offers(run, cluster, clock), clock.monotonic()
    write(run, 4)
    given.offer(4)
    assert given.wait(lambda: False) == [4]
    assert PATIENCE_S <= clock.monotonic() - began < PATIENCE_S + 2


def test_a_stopped_run_does_not_wait(chief, clock):
    run, cluster = chief
    given = offers(run, cluster, clock)
    write(run, 4)
    given.offer(4)
    began = clock.monotonic()
    assert given.wait(lambda: True) == [4]
    assert clock.monotonic() == began


def test_an_evaluator_of_another_launch_gets_nothing(chief, tmp_path, clock):
    run, cluster = chief
    test, given = Counting(), offers(run, cluster, clock)
    write(run, 1)
    given.offer(1)
    evaluate(cluster, tmp_path, test, clock, secret=b"x" * 32)
    assert given.wait(lambda: False) == [1]
    assert test.epochs == []


def test_a_lost_evaluator_is_called_again_and_gets_what_it_lacks(chief, tmp_path, clock):
    run, cluster = chief
    write(run, 1)
    place = Place(Task("evaluator", 0, cluster), SECRET, clock)
    given = offers(run, cluster, clock)
    given.offer(1)
    with place.chief(0) as connection:
        assert place.read(connection.recv(HEADER))[0] == 1
        connection.sendall(SEND)
    test = Counting()
    evaluate(cluster, tmp_path, test, clock)
    assert given.wait(lambda: False) == []
    assert test.epochs == [1]


def test_a_snapshot_that_every_evaluator_is_lost_with_is_given_up(chief, capfd, clock):
    run, cluster = chief
    write(run, 1)
    place, given = Place(Task("evaluator", 0, cluster), SECRET, clock), offers(run, cluster, clock)
    given.offer(1)
    for _ in range(LOSSES):
        with place.chief(0) as connection:
            connection.recv(HEADER)
            connection.sendall(SEND)
    assert given.wait(lambda: False) == []
    assert "warning: epoch 1 is not evaluated" in capfd.readouterr().out


def test_a_full_disk_refuses_a_snapshot_and_takes_the_next(chief, tmp_path, monkeypatch, capfd, clock):
    run, cluster = chief
    write(run, 1)
    write(run, 2)
    refused = []

    def write_json(path, record):
        if not refused:
            refused.append(record["epoch"])
            raise OSError(28, "No space left on device")
        files.write_json(path, record)

    monkeypatch.setattr("trainer.parameter_server.evaluator.write_json", write_json)
    test, given = Counting(), offers(run, cluster, clock)
    given.offer(1)
    given.offer(2)
    evaluate(cluster, tmp_path, test, clock)
    assert given.wait(lambda: False) == []
    (left,) = {1, 2} - set(refused)
    assert record(tmp_path, left)["epoch"] == left
    assert f"the snapshot of epoch {refused[0]}: [Errno 28] No space left on device" in capfd.readouterr().out


def test_a_long_evaluation_gives_signs_of_life(chief, tmp_path, clock):
    run, cluster = chief
    slow = Counting()
    begun, slow.record = slow.record, lambda epoch, path: clock.sleep(3 * PATIENCE_S) or begun(epoch, path)
    write(run, 1)
    given = offers(run, cluster, clock)
    evaluate(cluster, tmp_path, slow, clock)
    given.offer(1)
    assert given.wait(lambda: False) == []
    assert slow.epochs == [1]


def test_in_the_next_launch_what_was_evaluated_is_known(chief, tmp_path, clock):
    run, cluster = chief
    write(run, 1)
    (tmp_path / EVALUATIONS).mkdir()
    sha256 = hashlib.sha256(snapshot_path(run, 1).read_bytes()).hexdigest()
    (tmp_path / EVALUATIONS / "epoch-0001.json").write_text(json.dumps({"epoch": 1, "snapshot_sha256": sha256}))
    test, given = Counting(), offers(run, cluster, clock, secret=b"n" * 32)
    given.offer(1)
    evaluate(cluster, tmp_path, test, clock, secret=b"n" * 32)
    assert given.wait(lambda: False) == []
    assert test.epochs == []


# --- a hostile chief, or someone between


def serve(folder, place, sent):
    """What an evaluator answers to bytes."""
    ours, its = socket.socketpair()
    evaluator = Evaluator(Counting(), folder, place, Metrics(folder / "metrics.jsonl"))

    def run() -> None:
        with its, contextlib.suppress(ChiefGone):
            evaluator.serve(its)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with ours:
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        thread.join()
        return ours.recv(100)


def test_changed_bytes_are_refused(chief, tmp_path, capfd):
    place = Place(Task("chief", 0, chief[1]), SECRET)
    assert serve(tmp_path, place, place.header(1, 5, hashlib.sha256(b"right").digest()) + b"wrong") == SEND + REFUSED
    assert "its bytes are not those that the chief meant" in capfd.readouterr().out
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["metrics.jsonl"]


def test_a_changed_header_is_refused(chief, tmp_path):
    place = Place(Task("chief", 0, chief[1]), SECRET)
    header = place.header(1, 5, hashlib.sha256(b"right").digest())
    assert serve(tmp_path, place, b"\0\0\0\2" + header[4:] + b"right") == REFUSED
    assert not (tmp_path / EVALUATIONS).exists()


def test_more_bytes_than_a_snapshot_can_have_are_not_taken(chief, tmp_path, capfd):
    place = Place(Task("chief", 0, chief[1]), SECRET)
    assert serve(tmp_path, place, place.header(1, 2**50, bytes(32))) == REFUSED
    assert "has 1,125,899,906,842,624 bytes, and the model's at most 67,140,864" in capfd.readouterr().out


def test_a_damaged_record_is_evaluated_again(chief, tmp_path, clock):
    run, cluster = chief
    (tmp_path / EVALUATIONS).mkdir()
    (tmp_path / EVALUATIONS / "epoch-0001.json").write_text("[1, 2")
    write(run, 1)
    given, test = offers(run, cluster, clock), Counting()
    given.offer(1)
    evaluate(cluster, tmp_path, test, clock)
    assert given.wait(lambda: False) == []
    assert test.epochs == [1]
