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

from control.sweep import settings, timings
from tests.contract.held import finish
from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, await_until

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


def test_each_trial_is_measured_once(project, pictures):
    done = project.play("sweep", *asked(pictures, "pi", "workers=1,2", "repeats=1"))
    first = rows(project, "pi")
    assert sorted((row.workers, row.repeat, row.state) for row in first) == [(1, 1, "SUCCEEDED"), (2, 1, "SUCCEEDED")]
    for row in first:
        assert row.seconds_end_to_end > row.seconds_training > 0
        assert row.images_per_s > 0
    assert {row.hosts for row in first} == {"worker1", "worker1 worker2"}
    assert "No answer" in done.stdout, done.stdout
    assert "ansible-playbook sweep.yml -e sweep=pi" in done.stdout, done.stdout
    folder = project.root / "sweeps" / "pi"
    assert {"analysis.md", "config.yml", "summary.json", "time_mean.png", "time_median.png", "speedup.png"} <= {
        path.name for path in folder.iterdir()
    }
    assert nothing_is_left(project, "pi")
    # An epoch is the whole training set at every number of workers.
    images = {json.loads((folder / "trials" / f"pi.w{n}-e1-r1" / "cluster.json").read_text())["counts"]["train_images"] for n in (1, 2)}
    assert len(images) == 1
    assert not list(folder.glob("trials/*/checkpoints"))
    # A trial is no run of a person's.
    assert not (project.root / "runs").exists() or not [path for path in (project.root / "runs").iterdir() if path.name.startswith("pi.")]


@EXHAUSTIVE
def test_more_repeats_are_added(project, pictures):
    first = rows(project, "pi")
    more = project.play("sweep", *asked(pictures, "pi", "workers=2", "repeats=2"))
    assert "2: 2 workers x 2 repeats x 1 epoch, 1 of them measured already" in more.stdout, more.stdout
    after = rows(project, "pi")
    assert after[:2] == first
    assert [(row.workers, row.repeat) for row in after[2:]] == [(2, 2)]


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
    await_until(lambda: playbook.poll() is not None or bool(rows(project, name)), 120, "one trial measured")
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


def await_running(project: LocalProject, name: str, playbook: Popen[str], after: str = "") -> str:
    """Name of a sweep's trial of which a worker has started, other than `after`; fail if the command ends before."""
    found: list[str] = []

    def running() -> bool:
        with contextlib.suppress(FileNotFoundError):  # a trial that has ended is being removed
            paths = [*(project.root / ".lockstep").glob(f"worker*/trials/{name}/*/workers/*/metrics.jsonl")]
            trials = [(path.parents[2].name, path) for path in paths]
            found.extend(trial for trial, path in trials if trial != after and '"restoring"' in path.read_text())
        return bool(found)

    await_until(lambda: playbook.poll() is not None or running(), 120, "a trial to run")
    assert playbook.poll() is None, playbook.communicate()[0]
    return found[0]


@pytest.fixture
def broken(project):
    """The second worker's Python does not run."""
    python = project.root / "broken-python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    variables = project.root / "inventory" / "local" / "host_vars" / "worker2.yml"
    variables.parent.mkdir()
    variables.write_text(f"worker_python: {python}\n")
    yield variables
    variables.unlink(missing_ok=True)
    variables.parent.rmdir()


@EXHAUSTIVE
def test_warm_up_that_fails_ends_the_sweep(project, pictures, broken):
    lost = project.play("sweep", *asked(pictures, "lame", "workers=1,2", "repeats=1"), check=False)
    assert lost.returncode != 0
    assert "the warm-up failed, and nothing was measured" in lost.stdout, lost.stdout
    assert rows(project, "lame") == []
    assert nothing_is_left(project, "lame")
    broken.unlink()
    project.play("sweep", *asked(pictures, "lame", "workers=2", "repeats=1"))
    assert [row.state for row in rows(project, "lame")] == ["SUCCEEDED"]


@EXHAUSTIVE
def test_saved_states_are_a_column_of_their_own(project, pictures):
    done = project.play("sweep", *asked(pictures, "saved", "workers=2", "repeats=1", "checkpoint_every=1,0"))
    assert sorted(row.checkpoint_every for row in rows(project, "saved")) == [0, 1]
    assert (project.root / "sweeps" / "saved" / "checkpoints.png").is_file()
    assert re.search(
        r"Training time with the state saved, against at the end of an epoch: every 1 step [+-][\d.]+%, noise unknown", done.stdout
    )
    assert (project.root / "sweeps" / "saved" / "analysis.md").read_text().startswith("# What do saved states cost?\n")


@EXHAUSTIVE
def test_next_command_measures_more(project, pictures):
    folder = project.root / "sweeps" / "pi"
    shown = project.play("sweep", "sweep=pi", "measure=false").stdout
    command = re.search(r"measure for an answer +ansible-playbook sweep\.yml((?: -e \S+)+)", shown)
    assert command, shown
    assert shown.count("ansible-playbook ") == 1, "one next command"
    words = [word for word in command.group(1).split() if word != "-e"]
    plan = project.play("sweep", *words, "--check", "preflight=false").stdout
    assert "1, 2, 3 workers" in plan, plan
    assert "x 1 epoch" in plan, plan
    assert (folder / "timings.csv").is_file()


# --- settings

VARY = "vary=optimizer.learning_rate=0.05,1e30,0.02"
"""Three trials, of which one diverges."""


def results(project: LocalProject) -> dict[str, settings.Result]:
    return {row.run: row for row in settings.STORE.read(project.root / "sweeps" / "best" / settings.FILE)}


def test_killed_sweep_of_settings_goes_on(project, pictures):
    """Two trials run side by side; one has ended and the third begun when the command is killed."""
    folder = project.root / "sweeps" / "best"
    trials = [settings.run_name("best", {"optimizer.learning_rate": rate}) for rate in (0.05, 1e30, 0.02)]
    for trial in trials:
        project.hold(trial, 0)
    playbook = project.start("sweep", *asked(pictures, "best", VARY, "workers=2", "config=task_cnn"))

    def under_way() -> set[str]:
        return {path.stem for path in folder.glob("under_way/*.json")}

    await_until(lambda: playbook.poll() is not None or len(under_way()) == 2, 120, "two trials at once")
    assert under_way() == set(trials[:2]), playbook.communicate()[0]
    project.release(trials[1])
    await_until(
        lambda: playbook.poll() is not None or (bool(results(project)) and trials[2] in under_way()), 120, "one to end, one to begin"
    )
    assert playbook.poll() is None, playbook.communicate()[0]
    playbook.send_signal(signal.SIGKILL)
    finish(playbook)
    await_until(lambda: nothing_is_left(project, "best"), 60, "the trials under way are taken away")
    assert not list(folder.glob("trials/*/checkpoints"))
    kept = results(project)
    assert list(kept) == [trials[1]]
    for trial in trials:
        project.release(trial)
    done = project.play("sweep", "sweep=best", "preflight=false").stdout
    rows = results(project)
    assert {run: rows[run] for run in kept} == kept
    states = {row.values["optimizer.learning_rate"]: row.state for row in rows.values()}
    assert states == {0.05: "SUCCEEDED", 1e30: "DIVERGED", 0.02: "SUCCEEDED"}
    assert {row.hosts for row in rows.values()} == {"worker1 worker2", "worker3 worker4"}
    assert nothing_is_left(project, "best")
    (diverged,) = (row.reason for row in rows.values() if row.state == "DIVERGED")
    assert "the loss became nan at step 2 with learning rate 1e+30" in diverged, diverged
    assert re.search(r"The best of them is learning_rate=0.0[25]: validation accuracy \d\.\d{4} in epoch 1", done), done
    assert (folder / "settings.png").stat().st_size > 10_000
    # Each trial is a row of TensorBoard's table.
    shown = {path.parent.parent.name for path in folder.glob("trials/*/logs/*.hparams")}
    assert shown >= {run for run, row in rows.items() if row.state == "SUCCEEDED"}
    command = re.search(r"train the best +ansible-playbook train\.yml -e config=(\S+) -e workers=2", done)
    assert command, done
    assert (project.root / command[1]).is_file()
