"""What a command shows of a run while it trains."""

from types import SimpleNamespace

import pytest

from control.runs.show.progress import Progress

COUNTS = {"epochs": 2, "steps_per_epoch": 10, "total_steps": 20, "global_batch": 8}
STEPS = {"kind": "steps", "epoch": 1, "step": 5, "images_per_s": 8.0, "metrics": {"loss": 0.5, "accuracy": 0.5}}
EPOCH = {"kind": "epoch", "t": 1.0, "epoch": 1, "images_per_s": 8.0, "loss": 0.5, "accuracy": 0.5, "val_accuracy": 0.25, "seconds": 1.5}
RECORDS = [
    {"kind": "phase", "phase": "joining", "note": ""},
    {"kind": "phase", "phase": "training", "note": ""},
    {"kind": "reduction", "why": "uncompressed"},
    {"kind": "shares", "told": "a 5, b 3 images per step"},
    STEPS,
    {"kind": "warning", "text": "the disk is full"},
    EPOCH,
    {**STEPS, "epoch": 2, "step": 15},
]
UPDATED = [
    "a: joining",
    "epoch 1/2  step 5/20  8 images/s  ETA 0:15  loss 0.5000  accuracy 0.5000  val accuracy -",
]


def slow(cause="quota", rank=1):
    return {"kind": "straggler", "t": 0.0, "epoch": 1, "cause": cause, "rank": rank, "own_us": 9, "others_us": 4, "value": 1, "usual": 2}


def test_straggler_is_named_when_new_or_changed():
    printed = []
    progress = Progress(SimpleNamespace(print=printed.append), COUNTS, hosts=["a", "b"])
    for record in (slow(""), slow(), slow(), slow("load"), slow(""), slow("load"), slow("load", 0), slow(rank=7)):
        progress.show("a", record)
    assert [line.partition(",")[0] for line in printed] == ["b is slow", "b is slow", "b is slow", "a is slow"]
    assert ["CPU quota" in line for line in printed] == [True, False, False, False]


def test_of_columns_examples_are_counted():
    lines = []
    progress = Progress(SimpleNamespace(update=lines.append, print=lines.append), COUNTS, called="example")
    for record in RECORDS:
        progress.show("a", record)
    assert [line.partition("  8 ")[2].partition(" ")[0] for line in lines if line.startswith("epoch")] == ["examples/s"] * 2
    assert sum("examples/s" in line for line in lines) == 3


@pytest.mark.parametrize("quiet", [False, True])
def test_records_of_a_run_as_lines(quiet):
    updated, printed = [], []
    progress = Progress(SimpleNamespace(update=updated.append, print=printed.append), COUNTS, quiet)
    for record in RECORDS:
        progress.show("a", record)
    value = "-" if quiet else "0.2500"
    assert updated == [*UPDATED, f"epoch 2/2  step 15/20  8 images/s  ETA 0:05  loss 0.5000  accuracy 0.5000  val accuracy {value}"]
    stay = [
        "Gradients are sent uncompressed.",
        "The global batch is divided: a 5, b 3 images per step.",
        "a: the disk is full",
        "    epoch     loss  accuracy  val accuracy  seconds  images/s     left",
        "      1/2   0.5000    0.5000        0.2500      1.5         8     0:10",
    ]
    assert printed == (["a: the disk is full"] if quiet else stay)
