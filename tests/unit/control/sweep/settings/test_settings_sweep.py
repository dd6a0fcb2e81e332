"""A sweep over settings from its plan to its results: files, refusals, ranking. Plans and child playbooks are stand-ins."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from control.campaign import timings
from control.campaign.store import UnderWay
from control.common import command_line, configurations, project
from control.common.child_playbooks import Playbook
from control.common.plan import Plan
from control.common.task import Task
from control.runs.planning import plan_command
from control.sweep.settings import settings_results, trial_settings
from control.sweep.settings.settings_trials import SettingsBench
from control.sweep.settings.trial_settings import Result, Settings
from control.sweep.tasks import plan as plan_sweep
from control.sweep.tasks.conclude import conclude
from control.sweep.tasks.run_trials import _run_all, _under_way
from tests.unit.refusals import refusal_of_typed as refusal
from trainer.common.files import read_json, write_json, write_rows
from trainer.rundir.launch_record import Host

HOSTS = [Host(name=f"node{number}", address=f"10.0.0.{number}", port=12345) for number in range(1, 6)]
VARY = {"vary": "optimizer.learning_rate=0.1,0.01;train.batch_size=32,64", "workers": "2", "sweep": "pi", "config": "task_cnn"}
COUNTS = {"train_images": 800, "validation_images": 200, "total_steps": 39, "epochs": 3, "workers": 2, "global_batch": 64}
HISTORY = ("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "seconds", "images_per_s")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Folder of the sweep `pi` in an empty project; the plan of a run is made of its configuration alone."""
    monkeypatch.setattr(project, "SWEEPS", tmp_path / "sweeps")
    monkeypatch.setattr(project, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(plan_sweep, "alone", contextlib.nullcontext)
    monkeypatch.setattr(plan_command, "hosts", lambda task_vars: HOSTS)
    monkeypatch.setattr(plan_command, "make_plan", made)
    monkeypatch.setattr(command_line, "operator_options", lambda command, task_vars: dict(task_vars["given"]))
    return tmp_path / "sweeps" / "pi"


def made(asked, inventory, kind, default_workers, packs, write):
    config = configurations.build(configurations.override(configurations.load(configurations.find(asked.config)), asked.overrides))
    return Plan(
        run=kind,
        folder=Path(kind),
        asked_yaml=configurations.dump(config),
        config=configurations.to_dict(config),
        config_name=asked.config,
        counts=COUNTS,
        parameters={"total": 1000, "trainable": 1000},
        dataset={"digest": asked.dataset or "d1", "name": "pictures"},
        code="c1",
        hosts=inventory.hosts[: asked.workers],
    )


def planned(given, check=False):
    return plan_sweep.plan(Task({"packs": ""}, {"given": given}, check))


def row(run, settings_of, state="SUCCEEDED", value=0.5, metric="val_accuracy", reason=""):
    numbers = (value, 2, 3, 41.0, 30.0, 1200.0) if state == "SUCCEEDED" else (None,) * 6
    return Result(run, state, metric if state == "SUCCEEDED" else "", *numbers, "node1 node2", json.dumps(settings_of), reason)


def finish(folder, **changes):
    """Rows for all planned trials, the first of which is the worst."""
    runs = sorted(path.stem for path in (folder / "configs").glob("*.yml"))
    for number, run in enumerate(runs):
        config = configurations.build(configurations.load(folder / "configs" / f"{run}.yml"))
        values = Settings.of(config, read_json(folder / "summary.json")["varied"])
        trial_settings.STORE.put(folder / trial_settings.FILE, row(run, values, value=0.5 + number / 10, **changes))
    return runs


# --- the plan


def test_the_plan_lists_trials_and_their_hosts(folder):
    returned = planned(VARY)
    shown = returned["show"]
    assert "varied       optimizer.learning_rate: 0.1, 0.01; train.batch_size: 32, 64" in shown
    assert "trials       4, every combination\n" in shown
    assert "hosts        2 per trial, 2 trials at once: node1 node2 | node3 node4; not used: node5\n" in shown
    assert "time         4 trials; how long is known once one has ended\n" in shown
    assert [line.split() for line in shown.splitlines()[-4:]] == [
        ["1", "0.1", "32", "to", "do"],
        ["2", "0.1", "64", "to", "do"],
        ["3", "0.01", "32", "to", "do"],
        ["4", "0.01", "64", "to", "do"],
    ]
    facts = returned["ansible_facts"]
    assert [host.name for host in facts["cluster"]] == ["node1", "node2", "node3", "node4"]
    assert facts["sweep_distributes"]
    assert not facts["sweep_times_steps"]
    assert facts["sweep_found"]["groups"] == [["node1", "node2"], ["node3", "node4"]]
    assert len(facts["sweep_found"]["trials"]) == 4
    assert "asked" not in facts["sweep_found"]
    assert returned["if_interrupted"].endswith("The same command continues the sweep.")
    rates = [configurations.load(folder / "configs" / f"{run}.yml")["optimizer"]["learning_rate"] for run in facts["sweep_found"]["trials"]]
    assert rates == [0.1, 0.1, 0.01, 0.01]


def test_check_writes_nothing_and_lists_all(folder):
    many = {**VARY, "vary": f"seed={','.join(map(str, range(1, 41)))}"}
    assert planned(many, check=True)["show"].splitlines()[-1].split() == ["40", "40", "to", "do"]
    assert not folder.exists()
    assert planned(many)["show"].splitlines()[-1] == "  and 20 more: --check lists them"


def test_the_same_sweep_does_what_is_missing(folder):
    planned(VARY)
    runs = finish(folder)
    again = planned({"sweep": "pi"})
    assert "trials       4, every combination, 4 of them done already" in again["show"]
    assert "time         nothing is left to do" in again["show"]
    assert again["ansible_facts"]["sweep_found"]["trials"] == []
    assert "if_interrupted" not in again
    more = planned({"sweep": "pi", "vary": "train.batch_size=32,128;optimizer.learning_rate=0.1"})
    (left,) = more["ansible_facts"]["sweep_found"]["trials"]
    assert left not in runs
    assert "time         about 0:41 for 1 trial, at 0:41 each as before" in more["show"]
    assert read_json(folder / "summary.json")["varied"] == ["optimizer.learning_rate", "train.batch_size"]


def test_failed_trial_is_repeated_and_diverged_is_not(folder):
    runs = planned(VARY)["ansible_facts"]["sweep_found"]["trials"]
    for run, state in zip(runs, ("SUCCEEDED", "FAILED", "DIVERGED"), strict=False):
        trial_settings.STORE.put(folder / trial_settings.FILE, row(run, {}, state))
    assert planned({"sweep": "pi"})["ansible_facts"]["sweep_found"]["trials"] == [runs[1], runs[3]]


def test_an_interrupted_sweep_draws_the_same_again(folder):
    given = {**VARY, "vary": "optimizer.learning_rate=log(0.001,1)", "trials": "3"}
    drawn = planned(given)["ansible_facts"]["sweep_found"]["trials"]
    assert planned(given)["ansible_facts"]["sweep_found"]["trials"] == drawn
    assert planned({**given, "trials": "5"})["ansible_facts"]["sweep_found"]["trials"][:3] == drawn


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"workers": "1"}, "number of workers per trial"),
        ({"seed": "99"}, "seed"),
        ({"epochs": "9"}, "train.epochs"),
        ({"set": "optimizer.momentum=0.5"}, "optimizer.momentum"),
        ({"config": "deep_cnn"}, "model"),
        ({"vary": "optimizer.momentum=0.5,0.8"}, "set of keys to vary"),
        ({"dataset": "fashion_mnist"}, "dataset"),
    ],
)
def test_other_conditions_are_another_sweep(folder, changes, what):
    planned({**VARY, "seed": "3"})
    finish(folder)
    problem = refusal(planned, {**VARY, "seed": "3", **changes})
    assert problem.startswith("sweep=pi: it was measured with another ")
    assert what in problem
    assert problem.endswith("measure under another name: -e sweep=pi-2")


def test_a_sweep_answers_one_question(folder):
    planned(VARY)
    assert refusal(planned, {"sweep": "pi", "config": "task_cnn", "repeats": "1"}).startswith("repeats=1: a sweep over settings (vary)")
    other = folder.with_name("old")
    write_json(other / "summary.json", {"name": "old"})
    timings.put(other / "timings.csv", timings.Timing(1, 1, 3, 40.0, 30.0, 1000.0, 0, "weak", "SUCCEEDED", "node1"))
    assert "sweep=old: it was measured with another question" in refusal(planned, {**VARY, "sweep": "old"})


def test_values_are_checked_before_anything_is_written(folder):
    given = {**VARY, "vary": "optimizer.learning_rate=0.1,0.01;train.batch_size=32,0"}
    assert refusal(planned, given) == ("vary, learning_rate=0.1 batch_size=0: train.batch_size: 0 is not allowed; it must be at least 1")
    assert refusal(planned, {**VARY, "sweep": "../../x"}).startswith("sweep=../../x: a name is 1 to 32 of A-Z a-z 0-9 . _ -")
    assert refusal(planned, {**VARY, "set": "train.time_limit=9"}).startswith(
        "train.time_limit=9.0: a training that it ends counts as failed"
    )
    assert not folder.exists()


def test_without_a_name_the_question_names_the_sweep(folder, monkeypatch):
    monkeypatch.setattr(plan_sweep, "_inventory_name", lambda: "lab")
    planned({name: value for name, value in VARY.items() if name != "sweep"})
    assert [path.name for path in folder.parent.iterdir()] == ["task_cnn-lab-learning_rate-batch"]


@pytest.mark.parametrize(("seconds", "time"), [({"seconds_end_to_end": 30.0, "seconds_training": 20.0}, "1:08"), ({}, "0:48")])
def test_an_estimate_from_an_earlier_run(folder, seconds, time):
    """The run of an earlier version may lack its seconds."""
    run = project.RUNS / "before"
    write_json(run / "summary.json", {"state": "SUCCEEDED", "workers": 2, "images_per_s": 104.0, **seconds})
    (run / "config.yml").write_text(configurations.dump(configurations.build(configurations.load(configurations.find("task_cnn")))))
    assert f"time         about {time} for 4 trials, at the speed of run before" in planned(VARY)["show"]


# --- a trial


@pytest.fixture
def bench(folder, monkeypatch):
    """The planned sweep's bench; its children leave what `leave` says: summary, rows of history.csv, output."""
    actual = planned(VARY)["ansible_facts"]["sweep_found"]
    one = SettingsBench(actual, {"worker_port": "1"}, lambda: False)
    left = SimpleNamespace(bench=one, played=[], summary={"state": "SUCCEEDED"}, history=[0.5, 0.7, 0.6], code=0, output="")

    def run(self, ended, meanwhile=lambda: None):
        left.played.append((self.path, self.variables))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text(left.output)
        if "remove" in self.path:
            return 0
        local = one.local(self.variables["run"])
        rows = [dict(zip(HISTORY, (n, 1.0, 0.5, 1.0, value, 0.1, 2.0, 900.0), strict=True)) for n, value in enumerate(left.history, 1)]
        write_rows(local / "history.csv", HISTORY, rows)
        log = local / "workers" / "problem" / "worker.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("rank 0\nerror: early\nmore\nerror: no \x1b[2Jmemory\nat all\n")
        write_json(local / "summary.json", {"seconds_end_to_end": 41.0, "epochs_done": len(rows), "images_per_s": 900.0, **left.summary})
        return left.code

    monkeypatch.setattr(Playbook, "run", run)
    return left


def test_a_trial_trains_its_configuration_on_its_hosts(bench, folder):
    trial = bench.bench.trials[0]
    run, result = trial.run, bench.bench.measure(trial, ["node3", "node4"], lambda: False)
    ((path, variables),) = bench.played
    assert path == "playbooks/stages/trial.yml"
    assert variables == {
        "worker_port": "1",
        "run": run,
        "sweep": "pi",
        "workers": "node3,node4",
        "config": str(folder / "configs" / f"{run}.yml"),
    }
    assert (result.state, result.metric, result.value, result.epoch, result.epochs) == ("SUCCEEDED", "val_accuracy", 0.7, 2, 3)
    assert (result.hosts, result.reason, result.values) == ("node3 node4", "", {"optimizer.learning_rate": 0.1, "train.batch_size": 32})
    assert bench.bench.outcome(result) == "validation accuracy 0.7000 in epoch 2, 0:41, 900 images/s"
    assert trial.label == "learning_rate=0.1 batch_size=32"


@pytest.mark.parametrize(
    ("failure", "output", "state", "reason"),
    [
        (
            {"host": "node3", "exit_code": 3, "message": "the loss became nan at step 2"},
            "",
            "DIVERGED",
            "node3: the loss became nan at step 2",
        ),
        ({"host": "node4", "exit_code": 137, "message": None}, "", "FAILED", "node4: exit code 137 (killed by SIGKILL)"),
        ({"host": "node4", "exit_code": None, "state": "silent"}, "", "FAILED", "node4: silent"),
        ({"host": "problem", "exit_code": 1, "message": None}, "", "FAILED", "problem: no \\x1b[2Jmemory"),
        (None, "--- Plan\n\nthe dataset is gone\n\n", "FAILED", "the dataset is gone"),
        (None, "", "FAILED", "its command failed and printed nothing"),
        ({"host": "n", "exit_code": 1, "message": "\x1b[2J\nevil" + "x" * 999}, "", "FAILED", r"n: \x1b[2J\nevil" + "x" * 288 + "..."),
    ],
)
def test_trial_that_fails_is_recorded_with_its_reason(bench, failure, output, state, reason):
    bench.code, bench.output, bench.summary = (
        2,
        output,
        {"state": "FAILED", "failure": failure and {"rank": 0, "state": "failed", **failure}},
    )
    run = bench.bench.trials[0]
    result = bench.bench.measure(run, ["node3", "node4"], lambda: False)
    assert (result.state, result.reason) == (state, reason)
    assert result.measured is (state == "DIVERGED")
    assert (result.value is None) is (state == "FAILED")
    assert bench.bench.outcome(result) == f"{state}: {reason}"
    assert [path for path, _ in bench.played] == ["playbooks/stages/trial.yml", "playbooks/stages/remove_trial.yml"]
    assert bench.played[1][1]["workers"] == "node3,node4"


def test_history_that_no_worker_writes_is_no_result(bench):
    bench.history = [float("nan")]
    result = bench.bench.measure(bench.bench.trials[0], ["node1"], lambda: False)
    assert (result.state, result.value) == ("SUCCEEDED", None)


def test_disjoint_trials_all_run_though_one_fails(bench, folder, monkeypatch):
    """All trials run on disjoint hosts and one that fails does not end the others."""
    monkeypatch.setattr(UnderWay, "elapsed", 41.0)
    printed, shown = [], []
    line = SimpleNamespace(print=printed.append, update=shown.append, end=lambda: None)
    play, bad = Playbook.run, bench.bench.trials[1].run

    def run(self, ended, meanwhile=lambda: None):
        code = play(self, ended, meanwhile)
        return 2 if self.variables["run"] == bad and "remove" not in self.path else code

    monkeypatch.setattr(Playbook, "run", run)
    _run_all(bench.bench, line)
    rows = trial_settings.STORE.read(folder / trial_settings.FILE)
    assert {one.run: one.state for one in rows} == {one.run: "FAILED" if one.run == bad else "SUCCEEDED" for one in bench.bench.trials}
    assert {one.hosts for one in rows} <= {"node1 node2", "node3 node4"}
    assert len(printed) == 4
    assert any("trial 2 of 4: learning_rate=0.1 batch_size=64: FAILED: its command failed" in line for line in printed)


def test_the_line_of_several_trials():
    jobs = [(3, "seed=1", 65.0, 100.0), (4, "seed=2", 5.0, 100.0)]
    assert _under_way(jobs, 9, 200.0, 2) == "trial 3 of 9: seed=1, 1:05; trial 4 of 9: seed=2, 0:05  about 2:45 left"
    assert _under_way(jobs[:1], 9, None, 2) == "trial 3 of 9: seed=1, 1:05"


# --- the results


RECORD = {"name": "pi", "varied": ["optimizer.learning_rate"], "workers": 2, "noun": "images", "drawn": None}


def rates(*values, metric="val_accuracy"):
    return [
        row(f"pi.{number}", {"optimizer.learning_rate": 10.0**-number}, value=value, metric=metric) for number, value in enumerate(values)
    ]


def test_best_comes_first_in_the_metrics_direction():
    assert [one.value for one in settings_results.rank(rates(0.2, 0.9, 0.5), RECORD, None).rows] == [0.9, 0.5, 0.2]
    assert [one.value for one in settings_results.rank(rates(0.2, 0.9, 0.5, metric="val_loss"), RECORD, None).rows] == [0.2, 0.5, 0.9]
    assert [one.value for one in settings_results.rank(rates(0.2, 0.9, metric="val_score"), RECORD, "min:val_score").rows] == [0.2, 0.9]


def test_what_has_no_result_comes_last():
    rows = [
        row("pi.a", {"optimizer.learning_rate": 9.0}, "DIVERGED", reason="node1: nan"),
        *rates(0.2, 0.9),
        replace(rates(0.99)[0], run="pi.o", metric="loss"),
        row("pi.b", {"optimizer.learning_rate": 8.0}, "FAILED", reason="node1: gone"),
    ]
    actual = settings_results.rank(rows, RECORD, None)
    assert [one.run for one in actual.rows] == ["pi.1", "pi.0", "pi.o", "pi.a", "pi.b"]
    assert actual.failures() == ["learning_rate=9: DIVERGED: node1: nan", "learning_rate=8: FAILED: node1: gone"]
    assert actual.commands == [
        ("train the best", "ansible-playbook train.yml -e config=sweeps/pi/configs/pi.1.yml -e workers=2"),
        ("curves", "ansible-playbook tensorboard.yml"),
        ("try the failed again", "ansible-playbook sweep.yml -e sweep=pi"),
    ]


def test_best_value_at_the_border_is_named():
    """A best value at the end of those tried is named."""
    assert settings_results.rank(rates(0.9, 0.8, 0.7), RECORD, None).answer == (
        "The best of them is **learning_rate=1**: validation accuracy 0.9000 in epoch 2. "
        "learning_rate=1 is the largest that was tried; a larger one may be better."
    )
    assert "tried" not in settings_results.rank(rates(0.7, 0.9, 0.8), RECORD, None).answer
    assert "tried" not in settings_results.rank(rates(0.9, 0.8), RECORD, None).answer
    assert "tried" not in settings_results.rank(rates(0.9, 0.8, 0.7), RECORD | {"drawn": 3}, None).answer


def test_trials_that_reached_the_same_are_counted():
    answer = settings_results.rank([*rates(0.9, 0.9, 0.7), replace(rates(0.9)[0], state="FAILED")], RECORD | {"drawn": 3}, None).answer
    assert answer == "The best of them is **learning_rate=1**: validation accuracy 0.9000 in epoch 2; 1 other trial reached the same."


def test_nothing_has_succeeded():
    failed = row("pi.a", {"optimizer.learning_rate": 9.0}, "FAILED", reason="node1: gone")
    assert refusal(settings_results.rank, [failed], RECORD, None) == (
        "sweep=pi: no trial has succeeded yet (1 failed, their output is in sweeps/pi/logs; pi.a: node1: gone). Fix that, then: "
        "ansible-playbook sweep.yml -e sweep=pi"
    )


def test_results_are_written_once(folder):
    planned(VARY)
    runs = finish(folder)
    first = conclude(Task({"sweep": {"folder": str(folder)}, "options": {}}))
    assert first["changed"]
    assert "The best of them is learning_rate=0.1 batch_size=64: validation accuracy 0.8000 in epoch 2." in first["show_last"]
    assert {"analysis.md", "settings.png", "summary.json", "trials.csv", "config.yml"} <= {path.name for path in folder.iterdir()}
    summary = read_json(folder / "summary.json")
    assert summary["best"]["run"] == runs[-1]
    assert summary["states"] == {"SUCCEEDED": 4}
    assert not conclude(Task({"sweep": {"folder": str(folder)}, "options": {}}))["changed"]
    assert planned({"sweep": "pi"})["ansible_facts"]["sweep_found"]["trials"] == []
    text = (folder / "analysis.md").read_text()
    assert text.startswith("# Which settings are best?\n\nThe best of them is **learning_rate=0.1 batch_size=64**")
    assert "| learning_rate | batch_size | val accuracy | epoch | end to end s | images/s | state |\n" in text


@pytest.mark.parametrize("value", ["a|b", "<script>alert(1)</script>", "`x`", "*" * 70])
def test_hostile_values_break_no_table(value):
    rows = [row(f"pi.{number}", {"model.word": word}, value=0.5) for number, word in enumerate((value, "b"))]
    actual = settings_results.rank(rows, {**RECORD, "varied": ["model.word"]}, None)
    lines = [line for line in settings_results._analysis(actual).splitlines() if line.startswith("| ")]
    assert len(lines) == 4
    assert {line.replace("\\|", "").count("|") for line in lines} == {7}
    assert len(actual.shown("sweeps/pi").splitlines()[0]) < 140
