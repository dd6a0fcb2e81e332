"""Equal commands train equal weights: nothing that a busy machine measures decides what is trained."""

import json
import socket
import subprocess
import sys

import pytest

from tests.project import EXHAUSTIVE

SAME = ("config=task_cnn", "set=train.global_batch=20,train.steps=16,train.steps_per_call=2,seed=3")


@pytest.fixture
def busy():
    """Processes that take what the machine has, or none."""
    burners: list[subprocess.Popen[bytes]] = []

    def begin(count):
        burners.extend(subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count))

    yield begin
    for burner in burners:
        burner.kill()
        burner.wait()


def decision(project, name, kind="reduction"):
    """What the chief recorded of a choice."""
    lines = (project.run(name) / "workers/worker1/metrics.jsonl").read_text().splitlines()
    (actual,) = [record for record in map(json.loads, lines) if record["kind"] == kind]
    return actual


@EXHAUSTIVE
def test_equal_commands_give_one_digest_when_busy(project, pictures, busy):
    digests = []
    for number, load in enumerate((0, 4)):
        busy(load)
        done = project.play("train", f"run=equal-{number}", f"dataset={pictures}", *SAME, "-v")
        assert "gradients     packed (all workers are on this one machine)" in done.stdout
        assert decision(project, f"equal-{number}")["measured"] is False
        digests.append(project.summary(f"equal-{number}")["weights_sha256"])
    assert len(set(digests)) == 1


def own_address() -> str:
    """An address of this machine that is not of the loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but the loopback's")
        return str(probe.getsockname()[0])


@EXHAUSTIVE
def test_the_first_measurement_holds_for_later_runs(project, pictures, busy):
    network = f"worker_address={own_address()}"
    settings = (*SAME[:1], SAME[1] + ",train.batch_sizes=auto")
    first = project.play("train", f"dataset={pictures}", *settings, network, "run=measures", "-v")
    assert "gradients     auto: measured at the start of this training, and kept for later ones on these hosts" in first.stdout
    assert (decision(project, "measures")["measured"], decision(project, "measures", "shares")["measured"]) == (True, True)
    busy(3)
    second = project.play("train", f"dataset={pictures}", *settings, network, "run=keeps", "-v")
    chosen = decision(project, "measures")["name"]
    assert f"gradients     {chosen}" in second.stdout
    assert second.stdout.count("by run measures; measure again: -e remeasure=true)") >= 2
    assert decision(project, "keeps")["measured"] is False
    assert project.summary("keeps")["weights_sha256"] == project.summary("measures")["weights_sha256"]
    again = project.play("train", f"dataset={pictures}", *settings, network, "run=renews", "remeasure=true", "quick=true", "-v")
    assert "gradients     auto: measured at the start" in again.stdout
    assert decision(project, "renews")["measured"] is True
