"""Snapshots from the chief to evaluators: real connections, a test that only counts."""

import contextlib
import hashlib
import json
import socket
import threading
from types import SimpleNamespace

import pytest

from trainer.common import files
from trainer.parameter_server.evaluator import ChiefGone, Evaluator, follow
from trainer.parameter_server.roles import Task
from trainer.parameter_server.snapshot_offers import HEADER, LOSSES, REFUSED, SEND, Offers, Place
from trainer.rundir.layout import EVALUATIONS, snapshot_path
from trainer.rundir.metrics_log import Metrics

SECRET, ANOTHER = b"s" * 32, b"n" * 32
PATIENCE_S = 60.0
WEIGHT = SimpleNamespace(value=SimpleNamespace(shape=SimpleNamespace(num_elements=lambda: 1000), dtype=SimpleNamespace(size=4)))
"""What an evaluator asks of a weight."""


class Counting:
    """A run's test examples: an evaluation is the digest of the snapshot."""

    model = SimpleNamespace(weights=[WEIGHT])

    def __init__(self):
        self.epochs = []

    def record(self, epoch, path):
        """Write down what was asked."""
        content = path.read_bytes()
        if content.startswith(b"bad"):
            raise OSError("it is no snapshot")
        self.epochs.append(epoch)
        return {"epoch": epoch, "metrics": {"loss": 0.5}, "sha256": hashlib.sha256(content).hexdigest()}


class Launch:
    """The chief's run directory and the evaluator's folder, with what the evaluator has tested."""

    def __init__(self, folder, port, clock):
        self.run, self.folder, self.clock, self.test = folder / "run", folder, clock, Counting()
        places = {"chief": "1", "worker": "2", "ps": "3", "evaluator": port}
        self._cluster = {role: [f"127.0.0.1:{number}"] for role, number in places.items()}
        (self.run / "checkpoints").mkdir(parents=True)

    def write(self, epoch, content=None):
        snapshot_path(self.run, epoch).write_bytes(content or bytes(f"epoch {epoch}", "ascii") * 300_000)

    def place(self, role, secret=SECRET):
        return Place(Task(role, 0, self._cluster), secret, self.clock)

    def offer(self, *epochs, secret=SECRET):
        """What the chief offers of these epochs."""
        given = Offers(self.place("chief", secret), self.run, Metrics(self.run / "chief.jsonl"), PATIENCE_S)
        for epoch in epochs:
            given.offer(epoch)
        return given

    def evaluate(self, secret=SECRET):
        """Start an evaluator, as a thread that ends with the clock."""
        metrics, task = Metrics(self.folder / "metrics.jsonl"), Task("evaluator", 0, self._cluster)
        threading.Thread(target=follow, args=[task, self.test, self.folder, secret, metrics, self.clock], daemon=True).start()

    def record_path(self, epoch):
        return self.folder / EVALUATIONS / f"epoch-{epoch:04d}.json"

    def record(self, epoch):
        return json.loads(self.record_path(epoch).read_text())


@pytest.fixture
def launch(tmp_path, port, clock):
    return Launch(tmp_path, port, clock)


def left(given):
    """Epochs that nobody evaluated before the run ended."""
    return given.wait(lambda: False)


def test_each_snapshot_is_evaluated_and_the_run_waits_for_it(launch, tmp_path):
    for epoch in (1, 2, 3):
        launch.write(epoch)
    given = launch.offer(1, 2, 3)
    launch.evaluate()
    assert left(given) == []
    assert launch.test.epochs == [3, 2, 1], "the newest first"
    assert launch.record(2)["sha256"] == hashlib.sha256(b"epoch 2" * 300_000).hexdigest()
    kinds = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [one["epoch"] for one in kinds if one["kind"] == "evaluation"] == [3, 2, 1]
    assert {path.suffix for path in (tmp_path / EVALUATIONS).iterdir()} == {".json"}


def test_what_was_evaluated_before_is_not_evaluated_again_unless_it_is_another(launch, clock):
    launch.evaluate()
    for content in (None, None, b"other"):
        launch.write(1, content)
        given = launch.offer(1)
        assert left(given) == []
        for thread in given._threads:
            clock.join(thread)
    assert launch.test.epochs == [1, 1]
    assert launch.record(1)["sha256"] == hashlib.sha256(b"other").hexdigest()


@pytest.mark.parametrize(("damaged", "epochs"), [(False, []), (True, [1])])
def test_in_the_next_launch_what_was_evaluated_is_known(launch, damaged, epochs):
    """If it can be read."""
    launch.write(1)
    launch.record_path(1).parent.mkdir()
    sha256 = hashlib.sha256(snapshot_path(launch.run, 1).read_bytes()).hexdigest()
    launch.record_path(1).write_text("[1, 2" if damaged else json.dumps({"epoch": 1, "snapshot_sha256": sha256}))
    given = launch.offer(1, secret=ANOTHER)
    launch.evaluate(secret=ANOTHER)
    assert left(given) == []
    assert launch.test.epochs == epochs


def test_a_snapshot_that_is_not_kept_any_more_is_not_waited_for(launch):
    given = launch.offer(1)
    launch.evaluate()
    assert left(given) == []
    assert launch.test.epochs == []


def test_what_can_not_be_read_is_reported_and_the_next_one_evaluated(launch, capfd):
    launch.write(1)
    launch.write(2, b"bad")
    launch.evaluate()
    assert left(launch.offer(1, 2)) == []
    assert launch.test.epochs == [1]
    output = capfd.readouterr().out
    assert "error: the snapshot of epoch 2: it is no snapshot" in output
    assert "warning: epoch 2 is not evaluated" in output


@pytest.mark.parametrize(("stopped", "waits"), [(False, PATIENCE_S), (True, 0)])
def test_without_an_evaluator_the_run_ends_after_its_patience(launch, clock, stopped, waits):
    """A stopped one at once."""
    launch.write(4)
    given, began = launch.offer(4), clock.monotonic()
    assert given.wait(lambda: stopped) == [4]
    assert waits <= clock.monotonic() - began < waits + 2


def test_an_evaluator_of_another_launch_gets_nothing(launch):
    launch.write(1)
    given = launch.offer(1)
    launch.evaluate(secret=ANOTHER)
    assert left(given) == [1]
    assert launch.test.epochs == []


def test_a_lost_evaluator_is_called_again_and_gets_what_it_lacks(launch):
    launch.write(1)
    place, given = launch.place("evaluator"), launch.offer(1)
    with place.chief(0) as connection:
        assert place.read(connection.recv(HEADER))[0] == 1
        connection.sendall(SEND)
    launch.evaluate()
    assert left(given) == []
    assert launch.test.epochs == [1]


def test_a_snapshot_that_every_evaluator_is_lost_with_is_given_up(launch, capfd):
    launch.write(1)
    place, given = launch.place("evaluator"), launch.offer(1)
    for _ in range(LOSSES):
        with place.chief(0) as connection:
            connection.recv(HEADER)
            connection.sendall(SEND)
    assert left(given) == []
    assert "warning: epoch 1 is not evaluated" in capfd.readouterr().out


def test_a_full_disk_refuses_a_snapshot_and_takes_the_next(launch, monkeypatch, capfd):
    launch.write(1)
    launch.write(2)
    refused = []

    def write_json(path, record):
        if not refused:
            refused.append(record["epoch"])
            raise OSError(28, "No space left on device")
        files.write_json(path, record)

    monkeypatch.setattr("trainer.parameter_server.evaluator.write_json", write_json)
    given = launch.offer(1, 2)
    launch.evaluate()
    assert left(given) == []
    (kept,) = {1, 2} - set(refused)
    assert launch.record(kept)["epoch"] == kept
    assert f"the snapshot of epoch {refused[0]}: [Errno 28] No space left on device" in capfd.readouterr().out


def test_a_long_evaluation_gives_signs_of_life(launch, clock):
    begun = launch.test.record
    launch.test.record = lambda epoch, path: clock.sleep(3 * PATIENCE_S) or begun(epoch, path)
    launch.write(1)
    launch.evaluate()
    assert left(launch.offer(1)) == []
    assert launch.test.epochs == [1]


# --- a hostile chief, or someone between


def answer(launch, sent):
    """What an evaluator answers to bytes."""
    ours, its = socket.socketpair()
    evaluator = Evaluator(Counting(), launch.folder, launch.place("chief"), Metrics(launch.folder / "metrics.jsonl"))

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


def test_changed_bytes_are_refused(launch, tmp_path, capfd):
    assert answer(launch, launch.place("chief").header(1, 5, hashlib.sha256(b"right").digest()) + b"wrong") == SEND + REFUSED
    assert "its bytes are not those that the chief meant" in capfd.readouterr().out
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["metrics.jsonl"]


def test_a_changed_header_is_refused(launch, tmp_path):
    header = launch.place("chief").header(1, 5, hashlib.sha256(b"right").digest())
    assert answer(launch, b"\0\0\0\2" + header[4:] + b"right") == REFUSED
    assert not (tmp_path / EVALUATIONS).exists()


def test_more_bytes_than_a_snapshot_can_have_are_not_taken(launch, capfd):
    assert answer(launch, launch.place("chief").header(1, 2**50, bytes(32))) == REFUSED
    assert "has 1,125,899,906,842,624 bytes, and the model's at most 67,140,864" in capfd.readouterr().out
