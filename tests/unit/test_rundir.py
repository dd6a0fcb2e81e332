"""Which snapshots of a run a person means."""

import pytest

from trainer.errors import LockstepError
from trainer.rundir import choose_epochs, existing_epochs, snapshot_path
from trainer.telemetry import HISTORY


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
        choose_epochs(asked, run)
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
    ],
)
def test_chosen_in_the_order_asked_each_once(asked, epochs, run):
    assert choose_epochs(asked, run) == epochs


@pytest.mark.parametrize("word", ["4", "0", "13"])
def test_unknown_epoch_lists_those_that_exist(word, run):
    assert refusal(f"1,{word}", run) == f"epoch={word}: run my-run has no such snapshot; there are: 1-3, 7, 12"


@pytest.mark.parametrize(
    ("word", "hint"), [("lst", " (did you mean last?)"), ("bset", " (did you mean best?)"), ("-1", ""), ("1.5", ""), ("1-3", ""), ("", "")]
)
def test_misspelt_word_names_the_nearest(word, hint, run):
    assert refusal(word, run) == f"epoch={word}: expected numbers as in 12 or 1,12,30, or one of first, best, last, all{hint}"


@pytest.mark.parametrize("asked", ["1", "all", "best"])
def test_run_without_snapshots(asked, tmp_path):
    assert refusal(asked, tmp_path / "r1") == "run=r1: there are no snapshots yet; the first is written at the end of epoch 1"


def test_best_without_a_history(run):
    (run / "history.csv").unlink()
    assert refusal("best", run) == "epoch=best: my-run has no history.csv that says which epoch is best; name a number"
