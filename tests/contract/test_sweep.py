"""Sweeps of trials of one and two workers: measured once each, whatever happens meanwhile.

What is refused, and that nothing is left to measure: tests/contract/test_refusals.py. That a real loss becomes no number:
tests/training/test_diverged.py.
"""

import contextlib
import json
import re
import signal
from pathlib import Path
from subprocess import Popen

import pytest

from control.campaign import timings
from control.sweep.settings import trial_settings
from tests.contract.held import finish
from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, await_during, await_until

QUICK = ("config=task_cnn", "set=train.batch_size=10", "epochs=1", "preflight=false")


def rows(project: LocalProject, name: str) -> list[timings.Timing]:
    return timings.read(project.root / "sweeps" / name / "timings.csv")


def asked(pictures, name, *more):
    return (f"dataset={pictures}", f"sweep={name}", *QUICK, *more)


def nothing_is_left(project: LocalProject, name: str) -> bool:
    """No file of a trial on any worker, no claim, no trial noted as under way."""
    try:
        return not _left(project, name)
    except FileNotFoundError:
        return False  # it is being removed


def _left(project: LocalProject, name: str) -> list[Path]:
    files = [path for path in (project.root / ".lockstep").glob(f"worker*/trials/{name}/**/*") if path.is_file()]
    claims = [path for path in (project.root / ".lockstep").glob("worker*/locks/*.json") if f'"{name}.' in path.read_text()]
    return files + claims + list((project.root / "sweeps" / name).glob("under_way/*.json"))


@pytest.fixture(scope="module")
def measured(project, pictures) -> str:
    """What the sweep `pi` prints, of one trial."""
    return project.play("sweep", *asked(pictures, "pi", "workers=2", "repeats=1")).stdout


def test_each_trial_is_measured_once(project, measured):
    (row,) = rows(project, "pi")
    assert (row.workers, row.repeat, row.state, row.hosts) == (2, 1, "SUCCEEDED", "worker1 worker2")
    assert row.seconds_end_to_end > row.seconds_training > 0
    assert row.images_per_s > 0
    assert "No answer" in measured, measured
    assert "ansible-playbook sweep.yml -e sweep=pi" in measured, measured
    folder = project.root / "sweeps" / "pi"
    assert {"analysis.md", "config.yml", "summary.json"} <= {path.name for path in folder.iterdir()}
    assert nothing_is_left(project, "pi")
    assert not list(folder.glob("trials/*/checkpoints"))
    # A trial is no run of a person's.
    assert not (project.root / "runs").exists() or not [path for path in (project.root / "runs").iterdir() if path.name.startswith("pi.")]


@EXHAUSTIVE
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, id="Ctrl-C"), pytest.param(signal.SIGKILL, id="kill -9")])
def test_ended_half_way_leaves_nothing_and_continues(project, pictures, number):
    name = f"cut-{number.value}"
    arguments = asked(pictures, name, "workers=1,2", "repeats=1", "seed=5")
    trials = [f"{name}.w{workers}-e1-r1" for workers in (1, 2)]
    for trial in trials:
        project.hold(trial, 0)
    playbook = project.start("sweep", *arguments)
    first = await_running(project, name, playbook)
    project.release(first)
    await_during(playbook, lambda: rows(project, name), 120, "one trial measured")
    await_running(project, name, playbook, after=first)
    playbook.send_signal(number)
    finish(playbook)
    await_until(lambda: nothing_is_left(project, name), 60, "the trial under way is taken away")
    kept = rows(project, name)
    assert len(kept) == 1
    for trial in trials:
        project.release(trial)
    project.play("sweep", *arguments)
    after = rows(project, name)
    assert after[:1] == kept
    assert sorted((row.workers, row.state) for row in after) == [(1, "SUCCEEDED"), (2, "SUCCEEDED")]
    # An epoch is the whole training set at every number of workers.
    clusters = [json.loads((project.root / f"sweeps/{name}/trials/{trial}/cluster.json").read_text()) for trial in trials]
    assert clusters[0]["counts"]["train_images"] == clusters[1]["counts"]["train_images"]


def await_running(project: LocalProject, name: str, playbook: Popen[str], after: str = "") -> str:
    """Name of a sweep's trial of which a worker has started, other than the warm-up and `after`; fail if the command ends before."""
    found: list[str] = []

    def running() -> bool:
        with contextlib.suppress(FileNotFoundError):  # a trial that has ended is being removed
            paths = [*(project.root / ".lockstep").glob(f"worker*/trials/{name}/*/workers/*/metrics.jsonl")]
            trials = [(path.parents[2].name, path) for path in paths]
            others = (after, f"{name}.warm-up")
            found.extend(trial for trial, path in trials if trial not in others and '"restoring"' in path.read_text())
        return bool(found)

    await_during(playbook, running, 120, "a trial to run")
    return found[0]


# --- settings

VARY = "vary=optimizer.learning_rate=0.05,1e30"
"""Two trials, of which one diverges."""


def results(project: LocalProject) -> dict[str, trial_settings.Result]:
    return {row.run: row for row in trial_settings.STORE.read(project.root / "sweeps" / "best" / trial_settings.FILE)}


def test_killed_sweep_of_settings_goes_on(project, pictures):
    """Two trials run side by side; one has ended when the command is killed, and the same command trains the other once more."""
    folder = project.root / "sweeps" / "best"
    good, bad = trials = [trial_settings.Settings({"optimizer.learning_rate": rate}).run_name("best") for rate in (0.05, 1e30)]
    for trial in trials:
        project.hold(trial, 0)
    playbook = project.start("sweep", *asked(pictures, "best", VARY, "workers=1", "config=task_cnn"))

    def under_way() -> set[str]:
        return {path.stem for path in folder.glob("under_way/*.json")}

    await_during(playbook, lambda: under_way() == set(trials), 120, "two trials at once")
    project.release(bad)
    await_during(playbook, lambda: results(project), 120, "one to end")
    await_running(project, "best", playbook, after=bad)
    playbook.send_signal(signal.SIGKILL)
    finish(playbook)
    await_until(lambda: nothing_is_left(project, "best"), 60, "the trial under way is taken away")
    assert not list(folder.glob("trials/*/checkpoints"))
    kept = results(project)
    assert list(kept) == [bad]
    project.release(good)
    done = project.play("sweep", "sweep=best", "preflight=false").stdout
    rows = results(project)
    assert {run: rows[run] for run in kept} == kept
    assert {run: row.state for run, row in rows.items()} == {good: "SUCCEEDED", bad: "DIVERGED"}
    assert rows[bad].hosts == "worker2"
    assert nothing_is_left(project, "best")
    assert "the loss became nan at step 2 with learning rate 1e+30" in rows[bad].reason
    assert re.search(r"The best of them is learning_rate=0.05: validation accuracy \d\.\d{4} in epoch 1", done), done
    assert (folder / "settings.png").stat().st_size > 10_000
    # Each trial is a row of TensorBoard's table.
    assert good in {path.parent.parent.name for path in folder.glob("trials/*/logs/*.hparams")}
    command = re.search(r"train the best +ansible-playbook train\.yml -e config=(\S+) -e workers=1", done)
    assert command, done
    assert (project.root / command[1]).is_file()
