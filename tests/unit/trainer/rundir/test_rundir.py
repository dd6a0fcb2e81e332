"""Which snapshots of a run an operator's words select."""

import pytest

from control.runs.results.run_folder import RunFolder
from tests.unit.samples import HISTORY
from trainer.common.errors import LockstepError
from trainer.rundir import layout
from trainer.rundir.layout import existing_epochs, prune, snapshot_path, wanted


@pytest.fixture
def run(tmp_path):
    """A run with snapshots 1-3, 7 and 12; epoch 5 was best but has none, of the others 3 and 7 are."""
    folder = tmp_path / "my-run"
    (folder / "checkpoints").mkdir(parents=True)
    for epoch in (12, 1, 2, 3, 7):
        snapshot_path(folder, epoch).touch()
    (folder / "checkpoints" / ".part-x.keras").touch()
    accuracy = {1: 0.1, 2: 0.2, 3: 0.8, 5: 0.9, 7: 0.8, 12: 0.3}
    rows = [",".join(str({"epoch": epoch, "val_accuracy": value}.get(key, 0.5)) for key in HISTORY) for epoch, value in accuracy.items()]
    (folder / "history.csv").write_text("\n".join([",".join(HISTORY), *rows]) + "\n")
    return folder


def refusal(asked, run):
    with pytest.raises(LockstepError) as caught:
        RunFolder(run).choose_epochs(asked)
    return str(caught.value)


def test_snapshots_are_found_whatever_else_lies_there(run):
    assert existing_epochs(run) == [1, 2, 3, 7, 12]
    assert snapshot_path(run, 7).name == "epoch-0007.keras"


@pytest.mark.parametrize(
    ("asked", "epochs"),
    [
        ("12", [12]),
        (12, [12]),
        ("1,12", [1, 12]),
        ("12, 1", [12, 1]),
        ("first", [1]),
        ("last", [12]),
        ("best", [3]),
        ("all", [1, 2, 3, 7, 12]),
        ("first,best,last", [1, 3, 12]),
        ("first,best,last,all", [1, 3, 12, 2, 7]),
        ("3,best,3,1,first", [3, 1]),
        ("2-3", [2, 3]),
        ("1-3,12", [1, 2, 3, 12]),
        ("7-7", [7]),
    ],
)
def test_chosen_in_the_order_asked_each_once(asked, epochs, run):
    assert RunFolder(run).choose_epochs(asked) == epochs


THERE = "; there are: 1-3, 7, 12"
WORDS = "expected numbers as in 12, 1,12,30 or 2-5, or one of first, best, last, all"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        *((f"1,{epoch}", f"epoch={epoch}: run my-run has no such snapshot{THERE}") for epoch in ("4", "0", "13")),
        ("2-5", f"epoch=2-5: run my-run has no snapshot of some of these{THERE}"),
        ("20-999999999", f"epoch=20-999999999: run my-run has no such snapshots{THERE}"),
        ("lst", f"epoch=lst: {WORDS} (did you mean last?)"),
        ("bset", f"epoch=bset: {WORDS} (did you mean best?)"),
        *((word, f"epoch={word}: {WORDS}") for word in ("-1", "1.5", "3-1", "1-", "")),
    ],
)
def test_what_there_is_not_names_what_there_is(asked, message, run):
    assert refusal(asked, run) == message


def test_epoch_best_and_last_is_marked_as_both(run):
    assert RunFolder(run).marks == {1: "first", 3: "best", 12: "last"}
    for epoch in (7, 12):
        layout.snapshot_path(run, epoch).unlink()
    assert RunFolder(run).marks == {1: "first", 3: "best, last"}
    (run / "history.csv").unlink()
    assert RunFolder(run).marks == {1: "first", 3: "last"}


@pytest.mark.parametrize("asked", ["1", "all", "best"])
def test_run_without_snapshots(asked, tmp_path):
    assert refusal(asked, tmp_path / "r1") == (
        "run=r1: none of its snapshots is here; the first is written at the end of epoch 1. "
        "Fix: ansible-playbook train.yml -e run=r1 watches it, or collects what it left if it has ended"
    )


def test_best_without_a_history(run):
    (run / "history.csv").unlink()
    assert refusal("best", run) == "epoch=best: my-run has no history.csv that says which epoch is best; name a number"


def test_an_epoch_that_was_not_kept_says_why(run):
    (run / "config.yml").write_text("checkpoint: {snapshots: best}\n")
    assert refusal("4", run) == (
        "epoch=4: run my-run has no such snapshot; there are: 1-3, 7, 12 (checkpoint.snapshots=best keeps no others)"
    )


def train(run, policy, accuracies, fails=()):
    """Snapshots as a run writes and removes them, epoch by epoch."""
    rows = []
    for epoch, accuracy in enumerate(accuracies, 1):
        row = {"epoch": epoch, "val_accuracy": accuracy}
        if wanted(policy, rows, row) and epoch not in fails:
            snapshot_path(run, epoch).touch()
        rows.append(row)
        prune(run, policy, rows)
        yield existing_epochs(run)


@pytest.mark.parametrize(
    ("policy", "after"),
    [
        ("all", [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5]]),
        ("best", [[1], [2], [2], [2], [5]]),
        ("last", [[1], [2], [3], [4], [5]]),
        (2, [[1], [2], [2, 3], [2, 4], [2, 4, 5]]),
        (10, [[1], [2], [3], [4], [5]]),
    ],
)
def test_kept_as_asked_after_every_epoch(policy, after, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert list(train(tmp_path, policy, [0.1, 0.4, 0.2, 0.4, 0.5])) == after


@pytest.mark.parametrize(("policy", "left"), [("best", [1]), ("last", [1]), (2, [1])])
def test_unwritable_one_takes_no_older_along(policy, left, tmp_path):
    """One that could not be written takes no older one along."""
    (tmp_path / "checkpoints").mkdir()
    assert list(train(tmp_path, policy, [0.1, 0.4], fails=[2]))[-1] == left


@pytest.mark.parametrize("policy", ["best", "last", 2])
def test_attempt_that_nobody_continued_does_not_count(policy, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for epoch in (1, 2, 3):
        snapshot_path(tmp_path, epoch).touch()
    prune(tmp_path, policy, [])
    assert existing_epochs(tmp_path) == [1, 2, 3]
    prune(tmp_path, policy, [{"epoch": 1, "val_accuracy": 0.5}])
    assert existing_epochs(tmp_path) == [1]
