"""What a person reads: tables, the plan, progress, failures, the run's outcome and its status."""

import dataclasses
import re
from pathlib import Path

import pytest

from control.common import command_line, progress_line, project, text
from control.common.plan import Plan
from control.common.terminal_lines import wrapped
from control.runs.results import next_steps, outcome
from control.runs.results.outcome import Verdicts
from control.runs.results.run_folder import RunFolder
from control.runs.results.summary import Summary
from control.runs.show import plan_text, result_text, status
from control.runs.show.status import WorkerSeen
from tests.unit.samples import HISTORY
from trainer.common.errors import DIVERGED
from trainer.common.files import write_json, write_rows
from trainer.rundir.launch_record import Host

COUNTS = {"epochs": 3, "steps_per_epoch": 70, "total_steps": 210, "global_batch": 128, "workers": 2, "train_images": 48000}
STEPS = {
    "kind": "steps",
    "epoch": 2,
    "step": 1400,
    "images_per_s": 1234.5,
    "metrics": {"loss": 0.51234, "accuracy": 0.8},
    "input_wait": 0.1,
    "seconds": 1.0,
}


def row(epoch, val_accuracy=0.5):
    return {**dict.fromkeys(HISTORY, 0.25), "epoch": epoch, "val_accuracy": val_accuracy, "images_per_s": 1234.0}


# --- tables and fields


@pytest.mark.parametrize(
    ("header", "rows", "lines"),
    [
        (["name", "n"], [["a", 5], ["long name", 1000]], ["  name          n", "  a             5", "  long name  1000"]),
        (["a", "much longer"], [["x", "y"]], ["  a  much longer", "  x  y"]),
        (["a", "b"], [], ["  a  b"]),
    ],
)
def test_table_aligns_text_left_and_numbers_right(header, rows, lines):
    assert text.table(header, rows).splitlines() == lines


def test_fields_align_their_values():
    assert text.fields([("run", "x"), ("dataset", "y")]) == "  run      x\n  dataset  y"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (-3, "0:00"), (59.4, "0:59"), (59.5, "1:00"), (75, "1:15"), (3599.6, "1:00:00"), (3700, "1:01:40"), (90000, "25:00:00")],
)
def test_duration(seconds, shown):
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(("value", "decimals", "shown"), [(0.12345, 4, "0.1235"), (1234.5, 0, "1,234"), (2, 1, "2.0")])
def test_numbers_have_fixed_decimals(value, decimals, shown):
    assert str(text.Number(value, decimals)) == shown


# --- the plan


def made_plan(**more):
    dataset = {"name": "digits", "digest": "0123456789abcdef0123", "classes": ["a"] * 10, "test": 10000, "ignored": 0, "left_out": 0}
    known = {
        "config": {"model": {"name": "lecture_cnn"}, "data": {"image_size": [28, 28, 1]}},
        "hosts": [Host(name="node01", address="10.0.0.1", port=12345), Host(name="node02", address="10.0.0.2", port=23456)],
        "counts": {**COUNTS, "validation_images": 12000},
        "parameters": {"total": 2770634},
        "dataset": dataset,
    }
    return Plan(**{"run": "my-run", "folder": Path("runs/my-run"), "config_name": "lecture_cnn", **known, **more})


def test_plan_says_what_will_be_done():
    shown = plan_text.plan(made_plan(), "runs").splitlines()
    assert shown == [
        "  run           my-run (new, configuration lecture_cnn)",
        "  hosts         2 (rank host address): 0 node01 10.0.0.1:12345, 1 node02 10.0.0.2:23456",
        "  model         lecture_cnn, 2,770,634 parameters, input 28x28x1",
        "  dataset       digits (0123456789abcdef): 10 classes, 48,000 training, 12,000 validation, 10,000 test images",
        "  global batch  128 images per step on 2 workers",
        "  steps         70 per epoch x 3 epochs = 210",
        "  results       runs/my-run",
    ]


def test_short_plan_has_what_was_asked_for():
    """And what is unusual; where ports, digests and defaults matter, there is the whole plan."""
    made = made_plan(gradients="packed (all workers are on this one machine)", differing=["train.epochs=3 instead of 5"])
    made.dataset["left_out"] = 2
    assert plan_text.plan(made, "runs", ["mind the port"], whole=False).splitlines() == [
        "  run       my-run (new, configuration lecture_cnn)",
        "  settings  train.epochs=3 instead of 5",
        "  hosts     2: node01, node02",
        "  model     lecture_cnn, 2,770,634 parameters, input 28x28x1",
        "  dataset   digits: 10 classes, 48,000 training, 12,000 validation, 10,000 test images",
        "  steps     70 per epoch x 3 epochs = 210, of 128 images on 2 workers",
        "  results   runs/my-run",
        "  left out  2 images that can't be read",
        "  warning   mind the port",
    ]


def test_plan_tells_of_resuming_data_and_warnings():
    """Plan tells of a resumed run a new dataset ignored files and warnings."""
    made = made_plan(resume=True)
    made.dataset["digest"], made.dataset["ignored"], made.dataset["left_out"] = None, 3, 1
    shown = plan_text.plan(made, "runs", ["mind the port"])
    assert "my-run (continues, configuration lecture_cnn)" in shown
    assert "digits (to be published now)" in shown
    assert "ignored       3 entries of class folders that are no image files" in shown
    assert shown.endswith("warning       mind the port")


def test_plan_names_a_persons_own_functions_once():
    """Plan names the functions of a persons own files and counts one as one."""
    made = made_plan()
    made.config["model"] = {"name": "own", "file": "mine.py", "function": "build", "source": "..."}
    made.config["data"] |= {"source": "own", "path": "/home/me/images.py:pairs"}
    made.counts.update(workers=1, epochs=1)
    shown = plan_text.plan(made, "runs")
    assert "model         mine.py:build, 2,770,634 parameters" in shown
    assert "dataset       digits, images from images.py:pairs (0123456789abcdef)" in shown
    assert "128 images per step on 1 worker\n" in shown
    assert "70 per epoch x 1 epoch = 210" in shown


@pytest.mark.parametrize(("last", "layers"), [(1, "layer"), (2, "2 layers")])
def test_plan_says_how_many_parameters_train(last, layers):
    made = made_plan()
    made.parameters["trainable"], made.config["train"] = 5130, {"last_layers": last}
    assert f"2,770,634 parameters, of which 5,130 in the last {layers} train, input" in plan_text.plan(made, "runs")


# --- progress


def progress(*epochs, width=None, **counts):
    """The progress of a run after these epochs."""
    made = result_text.RunProgress({**COUNTS, **counts}, width=width)
    for epoch in epochs:
        made.end_epoch(epoch)
    return made


def test_progress_line_before_the_first_validation():
    assert progress(total_steps=2100).line(STEPS) == (
        "epoch 2/3  step 1,400/2,100  1,234 images/s  ETA 1:13  loss 0.5123  accuracy 0.8000  val accuracy -"
    )
    assert "  ETA -  " in progress().line({**STEPS, "images_per_s": 0.0})


def test_progress_line_later():
    assert progress(row(1, 0.75)).line(STEPS).endswith("val accuracy 0.7500")


def test_epochs_are_a_table_while_they_end():
    """With a header again where the columns change."""
    table, lines = progress(), []
    for epoch in ({**row(1, 0.5), "t": 0.0}, {**row(2, 0.75), "t": 3700.0}, {**row(3, 0.75), "t": 7400.0, "top_5": 0.5}):
        table.end_epoch(epoch)
        lines += table.epoch_lines()
    assert lines[:3] == [
        "    epoch     loss  accuracy  val loss  val accuracy  seconds  images/s     left",
        "      1/3   0.2500    0.2500    0.2500        0.5000      0.2     1,234     0:15",
        "      2/3   0.2500    0.2500    0.2500        0.7500      0.2     1,234  1:01:40",
    ]
    assert len(lines) == 5


def test_narrow_table_keeps_the_first_metrics():
    (header, _) = progress(row(1, 0.5), width=50).epoch_lines()
    assert header == "    epoch     loss  seconds  images/s     left"


def test_epochs_that_were_told_are_no_table_again():
    shown = [
        result_text.result("a", "runs/a", Summary(state="SUCCEEDED"), [row(1, 0.5)], printed=printed, commands=False)
        for printed in ([1, 2], [2])
    ]
    assert ["val accuracy" in one for one in shown] == [False, True]
    assert [one.splitlines()[0] for one in shown] == ["", "a: SUCCEEDED"], "a line ends the table above"


def test_history_shows_every_epoch_of_a_short_run():
    shown = result_text._history([row(epoch) for epoch in range(1, 25)]).splitlines()
    assert shown[0].split() == ["epoch", "loss", "accuracy", "val", "loss", "val", "accuracy", "seconds", "images/s"]
    assert [int(line.split()[0]) for line in shown[1:]] == list(range(1, 25))


def test_history_of_a_long_run_keeps_key_epochs():
    """History of a long run keeps first best and last."""
    rows = [row(epoch, 0.9 if epoch in (17, 20) else 0.5) for epoch in range(1, 41)]
    epochs = [int(line.split()[0]) for line in result_text._history(rows).splitlines()[1:]]
    assert epochs == [1, 2, 3, 17, *range(31, 41)]


class Display:
    """Records what Ansible's Display is asked to show."""

    def __init__(self):
        self.shown = []

    def display(self, line, newline=True):
        self.shown.append((line, newline))


def test_terminal_line_is_redrawn_cut_and_removed(monkeypatch):
    monkeypatch.setattr(command_line, "columns", lambda: 10)
    display = Display()
    line = progress_line.Line(display, terminal=True)
    line.update("0123456789abc")
    line.update("one  two  three")
    line.update("short")
    line.print("stays")
    line.print("this too, in full")
    line.end()
    clear = "\r\x1b[2K"
    assert display.shown == [
        (clear + "012345678", False),
        (clear + "one  two", False),
        (clear + "short", False),
        (clear, False),
        ("stays", True),
        ("this too, in full", True),
    ]


def test_line_elsewhere_is_rare_and_plain():
    """Line elsewhere is written rarely and without control characters."""
    display = Display()
    line = progress_line.Line(display, terminal=False, every=1e9)
    line.update("too early")
    line.print("stays")
    line.end()
    assert display.shown == [("stays", True)]


def test_line_elsewhere_is_written_in_its_time():
    display = Display()
    line = progress_line.Line(display, terminal=False, every=0)
    line.update("0123456789" * 30)
    assert display.shown == [("0123456789" * 30, True)]


def test_time_left_from_the_current_speed():
    estimate = progress({"t": 100.0, "epoch": 1})
    assert estimate.left(110, 1280.0) == 10.0
    assert estimate.left(210, 1280.0) == 0.0
    assert estimate.left(110, 0.0) is None


def test_time_left_counts_validation_and_saving():
    estimate = progress({"t": 100.0, "epoch": 1}, {"t": 170.0, "epoch": 2})
    assert estimate.left(140, 1e9) == 70.0
    assert estimate.left(175, 1e9) == 35.0


def test_time_left_after_an_epoch_came_twice():
    """A run that starts again may train its first epoch again."""
    assert progress({"t": 100.0, "epoch": 1}, {"t": 170.0, "epoch": 1}).left(110, 1280.0) == 10.0


# --- results and what to type next


SUMMARY = {
    "state": "SUCCEEDED",
    "workers": 2,
    "epochs": 3,
    "best": {"epoch": 2, "val_accuracy": 0.8765},
    "seconds_total": 75.0,
    "seconds_training": 60.0,
    "images_per_s": 2345.6,
    "weights_sha256": "0123456789abcdef" * 4,
    "weights_sha256_by_rank": ["0123456789abcdef" * 4] * 2,
}


def summary(**more):
    return Summary.of({**SUMMARY, **more})


def result(rows, name="r", **more):
    return result_text.result(name, f"runs/{name}", summary(**more), rows).splitlines()


def test_result_of_a_run_that_succeeded():
    shown = result([row(1), row(2, 0.8765)], "my-run")
    assert shown[0] == "my-run: SUCCEEDED"
    assert "  best epoch  2 (validation accuracy 0.8765)" in shown
    assert "  time        1:15 of the chief's process, 1:00 of it training" in shown
    assert "  speed       2,346 images/s in training steps" in shown
    assert "  weights     equal on all 2 workers (sha256 0123456789abcdef)" in shown
    assert "  results     runs/my-run" in shown
    assert shown[shown.index("Next") :] == [
        "Next",
        "  metrics on the test examples  ansible-playbook evaluate.yml -e run=my-run -e epoch=first,best,last",
        "  curves                        ansible-playbook tensorboard.yml",
        "  train longer                  ansible-playbook train.yml -e run=my-run -e epochs=6",
    ]


def test_a_run_on_columns_counts_examples(tmp_path, monkeypatch):
    (tmp_path / "r").mkdir()
    write_json(tmp_path / "r" / "cluster.json", {"dataset": {"spec": {}}})
    write_json(tmp_path / "r" / "summary.json", SUMMARY)
    write_rows(tmp_path / "r" / "history.csv", HISTORY, [row(1)])
    monkeypatch.setattr(project, "RUNS", tmp_path)
    shown = result_text.shown_result(RunFolder(tmp_path / "r"), summary(predicted_images_per_s=1234.0, steps=100))
    assert (shown.count("examples/s"), status.all_runs().count("examples/s")) == (3, 1)
    assert "images/s" not in shown + status.all_runs()


@pytest.mark.parametrize(
    ("here", "state", "said"),
    [([1, 2, 3], "SUCCEEDED", False), ([3], "SUCCEEDED", True), ([3], "RUNNING", False), ([], "SUCCEEDED", False)],
    ids=["all here", "lost", "may be collected later", "none was ever kept"],
)
def test_lost_snapshots_are_named(here, state, said, tmp_path):
    run = tmp_path / "r"
    (run / "checkpoints").mkdir(parents=True)
    write_rows(run / "history.csv", HISTORY, [row(epoch) for epoch in (1, 2, 3)])
    for epoch in here:
        (run / "checkpoints" / f"epoch-000{epoch}.keras").touch()
    words = "  snapshots   none here of epoch 1-2: removed, or lost with the chief's disk before they were collected"
    assert (words in result_text.shown_result(RunFolder(run), summary(state=state)).splitlines()) == said


def test_model_without_validation_shows_each_metric_once():
    """A model without validation shows no metric twice and has nothing to evaluate."""
    own = {"epoch": 1, "generator": 0.5, "near": 0.25, "learning_rate": 0.1, "seconds": 1.0, "images_per_s": 10.0}
    steps = {**own, "step": 1, "metrics": {"generator": 0.5, "near": 0.25}}
    assert progress(own).line(steps).count("generator 0.5000") == 1
    assert not any("evaluate.yml" in line for line in result([own]))
    assert any("metrics on the test examples  ansible-playbook evaluate.yml" in line for line in result([{**own, "val_mae": 1.0}]))


def test_incomplete_result_says_so():
    """A result that is not exact or not all saved says so."""
    more = {
        "exact": False,
        "inexact_because": ["what was not sent at step 8 started anew"],
        "unsaved": {"the snapshot of epoch 1": "/d: full"},
    }
    shown = result([row(1)], **more)
    assert "  not exact   what was not sent at step 8 started anew; the weights differ a little from those without interruption" in shown
    assert "  not saved   the snapshot of epoch 1 (/d: full)" in shown


def test_plan_says_what_run_takes_of_disk():
    needs = {"states_mb": 30.0, "snapshots": 60, "snapshot_mb": 5.0}
    config = {**made_plan().config, "checkpoint": {"snapshots": "all"}}
    assert (
        "  disk          at most 330 MB on the chief and here: 60 snapshots of 5.0 MB (checkpoint.snapshots: all), training states 30.0 MB"
    ) in plan_text.plan(made_plan(config=config, needs=needs), "runs").splitlines()


def test_unfinished_epoch_is_left_out_of_the_mean():
    rows = [{**row(epoch), "seconds": seconds} for epoch, seconds in ((1, 10.0), (2, 20.0), (3, 1.0))]
    assert "  mean epoch  15.0 s of training steps" in result(rows, epochs_done=2)


def commands(state, best=True):
    return commands_after(state=state, best=SUMMARY["best"] if best else None)


def commands_after(**more):
    return [command for _, command in next_steps.after_run("r", summary(**more))]


CONTINUE, LOGS = "ansible-playbook train.yml -e run=r", "ansible-playbook logs.yml -e run=r"
EVALUATE, CURVES = "ansible-playbook evaluate.yml -e run=r -e epoch=first,best,last", "ansible-playbook tensorboard.yml"


@pytest.mark.parametrize(
    ("state", "best", "expected"),
    [
        ("SUCCEEDED", True, [EVALUATE, CURVES, "ansible-playbook train.yml -e run=r -e epochs=6"]),
        ("CANCELLED", True, [CONTINUE, EVALUATE, CURVES]),
        ("PREEMPTED", False, [CONTINUE]),
        ("FAILED", False, [CONTINUE, LOGS]),
        ("FAILED", True, [CONTINUE, EVALUATE, CURVES, LOGS]),
    ],
)
def test_next_commands_by_state(state, best, expected):
    assert commands(state, best) == expected


def test_slurm_run_is_continued_by_slurm():
    assert commands_after(state="FAILED", best=None, started_by="playbooks/slurm.yml") == ["ansible-playbook playbooks/slurm.yml -e run=r"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"ended_by": "EarlyStopping(monitor=val_loss, patience=2)"}, "by EarlyStopping(monitor=val_loss, patience=2)"),
        ({"ended_by": ""}, "by a callback"),
        ({"stalled": True}, "none since epoch 1 was better (train.patience)"),
    ],
)
def test_early_end_says_who_ended_it(more, why):
    ended = Summary.of({"ended_early": True, "epochs_done": 3, "epochs": 9, "best": {"epoch": 1}, **more})
    assert result_text.early(ended) == [("ended early", f"{why}, after 3 epochs of 9")]


def test_result_of_a_run_without_an_epoch():
    """Result of a run that failed before its first epoch."""
    shown = result_text.result("r", "runs/r", Summary(state="FAILED", workers=2), [])
    assert shown == (f"r: FAILED\n  results  runs/r\n\nNext\n  continue where it stopped  {CONTINUE}\n  all logs                   {LOGS}")


def test_under_way_names_the_run_in_each_command():
    shown = next_steps.under_way("r").splitlines()
    assert shown == [
        "Next",
        "  watch  ansible-playbook train.yml -e run=r",
        "  look   ansible-playbook status.yml -e run=r",
        "  stop   ansible-playbook stop.yml -e run=r",
    ]


def test_no_commands_no_heading():
    assert text.next_commands([]) == ""


# --- failures


def verdict(host, rank, state="failed", **more):
    return outcome.Verdict(host, rank, state, **more)


def test_failure_shows_the_cause_and_the_others():
    """Failure shows the first cause its last lines and the others."""
    cause = verdict("node02", 1, exit_code=1, message="out of memory", last_lines=["Traceback", "MemoryError"])
    others = [verdict("node01", 0, exit_code=75), verdict("node03", 2, "unreachable")]
    assert Verdicts([cause, *others]).failure_text.splitlines() == [
        "First failure: node02 (rank 1) ended with exit code 1",
        "  out of memory",
        "  last lines of node02/worker.log:",
        "    Traceback",
        "    MemoryError",
        "  node01 (rank 0) lost another worker",
        "  node03 (rank 2): unreachable",
    ]


@pytest.mark.parametrize(
    ("ends", "last"),
    [
        ([verdict("a", 0, "silent")], "First failure: a (rank 0), silent"),
        ([verdict("a", 0, exit_code=137)], "First failure: a (rank 0) was killed by SIGKILL"),
        ([verdict("a", 0, exit_code=1), verdict("b", 1, "done", exit_code=0)], "  b (rank 1) ended with exit code 0"),
    ],
)
def test_failure_shows_how_each_worker_ended(ends, last):
    assert Verdicts(ends).failure_text.splitlines()[-1] == last


@pytest.mark.parametrize(
    ("code", "shown"),
    [(137, " (killed by SIGKILL)"), (139, " (killed by SIGSEGV)"), (143, " (killed by SIGTERM)"), (1, ""), (128, ""), (255, "")],
)
def test_signal_names(code, shown):
    assert outcome.signal_name(code) == shown


def crash(code=139, **more):
    return verdict("a", 0, exit_code=code, phase="tracing", step=0, **more)


def test_crash_of_native_code_names_phase_and_mend():
    assert Verdicts([crash(), verdict("b", 1, exit_code=75)]).failure_text.splitlines() == [
        "First failure: a (rank 0) was killed by SIGSEGV while tracing",
        "  Native code crashed. oneDNN, TensorFlow's library for CPUs, crashes with some layers (strided 1x1 convolutions).",
        "  Fix: train without it: -e set=train.environment.TF_ENABLE_ONEDNN_OPTS=0, "
        "or worker_environment: {TF_ENABLE_ONEDNN_OPTS: 0} in the inventory",
        "  b (rank 1) lost another worker",
    ]


def test_a_crash_without_onednn_says_something_else():
    lines = Verdicts([crash(-4, again=True, environment={"TF_ENABLE_ONEDNN_OPTS": "0"})]).failure_text.splitlines()
    assert lines == [
        "First failure: a (rank 0) was killed by SIGILL while tracing",
        "  The previous launch ended the same way; continued as it is, the run will end like that again.",
        "  Native code crashed, but not in oneDNN (TF_ENABLE_ONEDNN_OPTS=0 is set). Fix: check what the model's own code calls",
    ]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (crash(), [CONTINUE, f"{CONTINUE} -e set=train.environment.TF_ENABLE_ONEDNN_OPTS=0", LOGS]),
        (crash(again=True), [f"{CONTINUE} -e set=train.environment.TF_ENABLE_ONEDNN_OPTS=0", LOGS]),
        (crash(again=True, environment={"TF_ENABLE_ONEDNN_OPTS": "0"}), [LOGS]),
        (crash(137), [CONTINUE, LOGS]),
        (crash(DIVERGED), [LOGS]),
    ],
)
def test_next_commands_after_a_crash(failure, expected):
    assert commands_after(state="FAILED", best=None, failure=failure.in_summary) == expected


@pytest.mark.parametrize(
    ("now", "before", "again"),
    [
        ({}, {}, True),
        ({}, None, False),
        ({}, {"phase": "restoring"}, False),
        ({}, {"step": 7}, False),
        ({}, {"exit_code": 132}, False),
        ({"exit_code": 137}, {"exit_code": 137}, False),
        ({"exit_code": 1}, {"exit_code": 1}, False),
        ({"exit_code": None}, {"exit_code": None}, False),
    ],
)
def test_the_same_crash_twice(now, before, again):
    previous = None if before is None else crash().to_dict() | before
    assert dataclasses.replace(crash(), **now).crashed_again(previous) is again


# --- weights, models


def test_only_equal_weights_of_several_workers_are_equal():
    assert result_text._weights(["a" * 64, "a" * 64], 2) == f"equal on all 2 workers (sha256 {'a' * 16})"
    assert result_text._weights(["a" * 64], 1) == f"of the only worker (sha256 {'a' * 16})"
    assert result_text._weights(["a" * 64], 3) == f"kept by the servers (sha256 {'a' * 16})"
    assert result_text._weights(["a" * 64, "b" * 64], 2) == f"DIFFERENT on 2 workers, which must not happen: sha256 {'a' * 16}, {'b' * 16}"


# --- times


ENTERED = 1000.0
BEGAN = {"starting": 1012.0, "training": 1031.0, "validating": 1050.0, "ended": 1075.0}


def ended(at, **phases):
    return Verdicts([verdict("a", 0, "done", at=at, phases_began=phases), verdict("b", 1, "done", at=at + 1)])


def test_launch_is_timed_from_enter_to_result():
    launch = ended(1080.0, **BEGAN).launch_times(ENTERED, 1086.4)
    assert launch == {
        "until": "result",
        "seconds_from_enter": 86.4,
        "seconds_to_training": 31.0,
        "seconds_training": 44.0,
        "seconds_after_training": 11.4,
    }
    assert result_text._times(Summary.of({"launch": launch, "seconds_total": 50.0, "seconds_training": 44.0})) == (
        "1:26 from Enter to this result, 0:44 of it training with validation and saving (0:31 before, 0:11 after)"
    )


def test_resumed_command_counts_to_its_last_worker():
    """A command that came back to a run counts to the end of its last worker."""
    launch = ended(1080.0, **BEGAN).launch_times(ENTERED, None)
    assert launch["until"] == "last worker's end"
    assert (launch["seconds_from_enter"], launch["seconds_after_training"]) == (81.0, 6.0)
    line = result_text._times(Summary.of({"launch": launch, "restarts": 2, "seconds_training": 131.0}))
    assert line.startswith("1:21 from Enter to the end of the last worker, 0:44 of it training ")
    assert line.endswith("; all 3 launches trained 2:11")


def test_launch_that_never_trained_or_is_unknown():
    """A launch that never trained and one of which nothing is known."""
    assert result_text._times(Summary.of({"launch": ended(1030.0, starting=1012.0).launch_times(ENTERED, 1040.0)})) == (
        "0:40 from Enter to this result, no step was trained"
    )
    of_slurm = Verdicts([verdict("a", 0, "done", at=5.0)])
    assert of_slurm.launch_times(ENTERED, 1040.0) is None
    assert ended(1080.0, **BEGAN).launch_times(None, 1090.0) is None
    assert result_text._times(Summary.of({"launch": None, "state": "FAILED"})) == ""


# --- who is to blame, and the run's state


GONE = {"state": "ended", "ended_by_us": True, "at": 1.0}


@pytest.mark.parametrize(
    ("ends", "host"),
    [
        ([{"state": "done"}, {"state": "preempted"}, {"state": "running"}], None),
        ([], None),
        *(([{"state": "done"}, {"state": state, "at": 1.0}], "b") for state in ("failed", "gone", "silent", "unreachable")),
        ([{"exit_code": 1, "at": 20.0}, {"exit_code": 1, "at": 10.0}, {"state": "gone", "at": 15.0}], "b"),
        ([{"exit_code": 75, "at": 1.0}, {"exit_code": 137, "at": 9.0}], "b"),
        ([{"exit_code": 75, "at": 1.0}, {"state": "unreachable", "at": 9.0}], "b"),
        ([{"exit_code": 75, "at": 5.0}, {"exit_code": 75, "at": 4.0}], "b"),
        ([{"exit_code": 75, "at": 5.0}, {"state": "done", "exit_code": 0, "at": 4.0}], "a"),
        ([GONE, {"exit_code": 1, "at": 9.0}], "b"),
        ([GONE, {"state": "silent", "ended_by_us": False, "at": 9.0}], "b"),
        ([{"exit_code": 75, "at": 1.0}, GONE | {"at": 9.0}], "a"),
    ],
)
def test_first_cause_is_blamed(ends, host):
    """The earliest failure, before the loss of a peer, before what this command has ended itself."""
    cause = Verdicts(verdict("abc"[rank], rank, **end) for rank, end in enumerate(ends)).root_cause
    assert (cause and cause.host) == host


@pytest.mark.parametrize(
    ("states", "chief", "cancelled", "expected"),
    [
        (["done", "done"], "SUCCEEDED", False, "SUCCEEDED"),
        (["running", "running"], "RUNNING", False, "RUNNING"),
        (["running", "done"], "RUNNING", False, "RUNNING"),
        (["preempted", "preempted"], "PREEMPTED", False, "PREEMPTED"),
        (["preempted", "preempted"], "CANCELLED", False, "CANCELLED"),
        (["preempted", "done"], None, True, "CANCELLED"),
        (["preempted", "failed"], "CANCELLED", True, "CANCELLED"),
        (["running", "gone"], "RUNNING", False, "FAILED"),
    ],
)
def test_state_of_a_run(states, chief, cancelled, expected):
    assert Verdicts(verdict("h", rank, state) for rank, state in enumerate(states)).run_state(chief, cancelled) == expected


# --- status


PHASE = {"kind": "phase", "phase": "training", "note": ""}
BEAT = {"kind": "heartbeat", "phase": "validating", "step": 8}


@pytest.mark.parametrize(
    ("records", "ended", "alive", "state"),
    [
        ([], None, False, "not started"),
        ([], None, True, "running"),
        ([PHASE], None, True, "running"),
        ([PHASE], None, False, "gone"),
        ([PHASE], {"exit_code": 0}, False, "done"),
        ([PHASE], {"exit_code": 42}, False, "preempted"),
        ([], {"exit_code": 1}, False, "failed"),
    ],
)
def test_state_of_a_worker(records, ended, alive, state):
    assert WorkerSeen.of("pi0", records, ended, alive, None).state == state


def test_worker_shows_the_newest_of_each_kind():
    later = {**STEPS, "step": 1408, "input_wait": 0.3, "seconds": 1.0}
    seen = WorkerSeen.of("pi0", [PHASE, STEPS, later, row(1) | {"kind": "epoch"}, BEAT], None, True, 2.0)
    assert (seen.phase, seen.steps["step"], seen.epoch["epoch"], seen.heard) == ("validating", 1408, 1, 2.0)
    assert seen.input_wait == pytest.approx(0.2)


def test_waiting_for_input_is_of_last_fifty_calls():
    records = [{**STEPS, "input_wait": 1.0}] * 50 + [{**STEPS, "input_wait": 0.0}] * 50
    assert WorkerSeen.of("pi0", records, None, True, 1.0).input_wait == 0.0


def test_a_worker_without_steps_has_no_share():
    seen = WorkerSeen.of("pi0", [PHASE], None, True, 1.0)
    assert (seen.steps, seen.epoch, seen.input_wait, seen.exit_code) == (None, None, None, None)


HOSTS = [Host(rank=rank, name=f"pi{rank}") for rank in range(4)]
RUN = RunFolder(Path("my-run"))


def test_status_table_has_a_line_for_every_host():
    seen = [
        WorkerSeen.of("pi0", [PHASE, STEPS], None, True, 2.4),
        WorkerSeen.of("pi1", [PHASE, STEPS], None, True, 20.0),
        WorkerSeen.of("pi2", [PHASE], {"exit_code": 137}, False, 99.0),
    ]
    lines = status.table(RUN, HOSTS, seen, {**COUNTS, "total_steps": 2100}).splitlines()
    assert lines[0] == "my-run: RUNNING"
    assert lines[1].startswith("  epoch 2/3  step 1,400/2,100")
    assert lines[3].split() == ["rank", "host", "state", "phase", "step", "waits", "for", "input", "heard", "note"]
    assert lines[4].split() == ["0", "pi0", "running", "training", "1,400", "10.0%", "2", "s", "ago"]
    assert lines[5].split() == ["1", "pi1", "running", "training", "1,400", "10.0%", "20", "s", "ago", "silent"]
    assert lines[6].split() == ["2", "pi2", "failed", "-", "-", "-", "-", "exit", "code", "137", "(killed", "by", "SIGKILL)"]
    assert lines[7].split() == ["3", "pi3", "unreachable", "-", "-", "-", "-"]


def test_status_says_how_often_workers_were_started_again():
    started = {"kind": "generation", "number": 3, "rank": 1, "hosts": ["pi0", "pi1"]}
    seen = [WorkerSeen.of(f"pi{rank}", [PHASE, STEPS], None, True, 2.4) for rank in (0, 1)]
    assert "restarts" not in status.table(RUN, HOSTS[:2], seen, COUNTS)
    seen[1] = WorkerSeen.of("pi1", [PHASE, started, STEPS], None, True, 2.4)
    lines = status.table(RUN, HOSTS[:2], seen, COUNTS).splitlines()
    assert lines[0] == "my-run: RUNNING; workers started again 2 times in this launch"
    assert lines[3].split()[-3:] == ["heard", "restarts", "note"]
    assert [line.split()[-1] for line in lines[4:6]] == ["0", "2"]


SPLIT = {"kind": "split", "input": 0.001, "forward_backward": 0.05, "compression": 0.002, "all_reduce": 0.08, "apply": 0.004}


def test_status_shows_parts_of_a_known_step():
    """Status says what a step is made of where that is known."""
    slow = {**SPLIT, "forward_backward": 0.08, "all_reduce": 0.05}
    seen = [
        WorkerSeen.of("pi0", [PHASE, SPLIT, STEPS], None, True, 2.4),
        WorkerSeen.of("pi1", [PHASE, slow], None, True, 2.0),
        WorkerSeen.of("pi2", [PHASE], None, True, 2.0),
        WorkerSeen("pi3", "unreachable"),
    ]
    assert status.table(RUN, HOSTS, seen, COUNTS).splitlines()[8:] == [
        "",
        "A step in milliseconds (median of the profiled steps)",
        "  host  input  forward/backward  compression  all-reduce  apply  own work   step",
        "  pi0     1.0              50.0          2.0        80.0    4.0      57.0  137.0",
        "  pi1     1.0              80.0          2.0        50.0    4.0      87.0  137.0",
        "  pi1 is the slowest: 87 ms of its own work per step, 1.53 times that of pi0; pi0 waits for it in the all-reduce.",
    ]


def test_status_without_parts_ends_with_workers():
    """Status before any step was taken apart ends with the workers."""
    seen = [WorkerSeen.of("pi0", [PHASE, STEPS], None, True, 2.4)]
    assert seen[0].split == {}
    assert status.table(RUN, HOSTS[:1], seen, COUNTS).splitlines()[-1].split()[:2] == ["0", "pi0"]


@pytest.mark.parametrize(
    ("recorded", "states", "shown"),
    [
        ("RUNNING", ["running", "gone"], "RUNNING"),
        ("FAILED", ["running"], "RUNNING"),
        ("FAILED", ["gone"], "FAILED"),
        ("SUCCEEDED", ["done"], "SUCCEEDED"),
        (None, ["done", "done"], "SUCCEEDED (results not collected yet)"),
        ("RUNNING", ["done", "gone"], "ended without being watched; continue it with train.yml"),
        (None, [], "ended without being watched; continue it with train.yml"),
    ],
)
def test_overall_state(recorded, states, shown):
    assert status._overall(recorded, [WorkerSeen("pi0", state) for state in states]) == shown


def test_a_run_among_others_is_a_line():
    best = {"epoch": 2, "val_accuracy": 0.51234}
    ended = Summary(state="CANCELLED", workers=5, epochs_done=2, steps=1500, seconds_training=75.2, images_per_s=2310.4, best=best)
    row = status._run_row("job", ended, 1_800_000_000.0)
    assert [str(cell) for cell in (*row[:2], *row[3:])] == [
        "job",
        "CANCELLED",
        "5",
        "2",
        "1,500",
        "1:15",
        "2,310",
        "2 (validation accuracy 0.5123)",
    ]
    assert str(row[2]).startswith("2027-01-1")
    assert len(row) == len(status._run_columns("image"))
    assert status._run_row("new", Summary(), None) == ["new", "-", "-", "-", "-", "-", "-", "-", "-"]


def test_result_names_hosts_without_which_run_went_on():
    lost = [{"host": "node3", "rank": 2, "step": 310, "at": 0.0}, {"host": "node4", "rank": 3, "step": None, "at": 60.0}]
    shown = result_text._lost(lost, 2)
    assert re.fullmatch(r"node3 at \d\d:\d\d:00, step 310 and node4 at \d\d:\d\d:00, step 0; the run went on with 2 workers", shown)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  run  a b c", "  run  a b c"),
        ("  warn  one two three four", "  warn  one two\n        three four"),
        ("[WARN] a  one two three four", "[WARN] a  one two\n          three four"),
        ("  ansible-playbook status.yml -e run=a", "  ansible-playbook status.yml -e run=a"),
    ],
)
def test_lines_are_wrapped_at_words(line, shown):
    """Below their last column; a command stays whole, so that it can be pasted."""
    assert wrapped(line, 20) == shown
    assert wrapped(line, None) == line
