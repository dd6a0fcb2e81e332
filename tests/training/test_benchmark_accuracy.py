"""`benchmarks/accuracy.yml` with real trainings: ended half-way, continued, compared.

What it refuses: tests/unit/benchmarks/test_planned.py.
"""

import json
import signal

from tests.project import EXHAUSTIVE, SLOWEST, await_during, await_until

SETTINGS = ("accuracy=compared", "configs=task_cnn", "seeds=1", "epochs=15", "workers=2", "set=train.global_batch=20")


@EXHAUSTIVE  # the peers' benchmark is ended and continued by the same code
def test_ended_half_way_it_leaves_no_worker(project, pictures):
    asked = (*SETTINGS, f"dataset={pictures}")
    process = project.start("benchmarks/accuracy", *asked)
    run = "compared.task_cnn.packed.s1"
    await_during(process, lambda: project.steps(1, run) > 20, 90, "the first training")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60 * SLOWEST)
    assert process.returncode != 0
    # Its child outlives it, and stops the workers.
    await_until(lambda: not list((project.root / ".lockstep").glob("worker*/locks/*.json")), 60, "the workers have ended")
    await_until(lambda: project.summary(run)["state"] != "RUNNING", 30, "the stop is concluded")
    assert project.summary(run)["state"] == "CANCELLED"

    done = project.play("benchmarks/accuracy", *asked)
    assert "2/2  task_cnn  powersgd  seed 1  test accuracy" in done.stdout
    results = project.root / "benchmarks" / "results" / "compared"
    assert [line.split(",")[:3] for line in (results / "results.csv").read_text().splitlines()[1:]] == [
        ["task_cnn", "packed", "1"],
        ["task_cnn", "powersgd", "1"],
    ]
    assert json.loads((results / "summary.json").read_text())["workers"] == 2
    assert (results / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert project.summary(run)["epochs_done"] == 15
