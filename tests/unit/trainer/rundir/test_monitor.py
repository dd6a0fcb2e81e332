"""Which epoch is the best, by any metric."""

import pytest

from trainer.rundir.best_epoch import Monitor, best_row, judged, monitor, stalled

ROWS = [
    {"epoch": 1, "loss": 3.0, "accuracy": 0.2, "val_loss": 2.0, "val_accuracy": 0.5, "val_auc": 0.7},
    {"epoch": 2, "loss": 2.0, "accuracy": 0.4, "val_loss": 1.0, "val_accuracy": 0.4, "val_auc": 0.9},
    {"epoch": 3, "loss": 1.0, "accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.5, "val_auc": 0.8},
]


@pytest.mark.parametrize(
    ("asked", "epoch"),
    [(None, 3), ("val_accuracy", 3), ("val_loss", 2), ("loss", 3), ("val_auc", 2), ("min:val_auc", 1), ("max:val_loss", 1), ("no_such", 3)],
)
def test_best_epoch_by_metric_then_by_loss(asked, epoch):
    """Of epochs with the same value and the same loss, the earliest."""
    assert best_row(ROWS, asked)["epoch"] == epoch


@pytest.mark.parametrize(("restored", "loss"), [(1, 2.0), (0, 5.0)])
def test_restored_weights_are_best_with_their_values(restored, loss):
    """A callback restored those of epoch 1, or does not say which, at the end of epoch 4."""
    best = best_row([*ROWS, {"epoch": 4, "val_loss": 5.0, "seconds": 1.0, "restored_epoch": restored}], "val_loss")
    assert (best["epoch"], best["val_loss"], best["restored_epoch"]) == (4, loss, restored)
    assert best_row([{"epoch": 1, "val_loss": 5.0, "restored_epoch": 0}, *ROWS[1:]], "val_loss")["epoch"] == 2


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (ROWS[0], Monitor("val_accuracy", True)),
        (["epoch", "loss", "mae", "val_loss", "val_mae"], Monitor("val_loss", False)),
        (["epoch", "loss", "kl"], Monitor("loss", False)),
        (["epoch", "generator"], Monitor("generator", True)),
        ([], Monitor("loss", False)),
    ],
)
def test_what_decides_if_nothing_is_asked_for(columns, expected):
    assert monitor(columns) == expected


@pytest.mark.parametrize(
    ("highest", "names"),
    [
        (False, ["val_mae", "val_root_mean_squared_error", "loss", "val_kl_divergence", "val_perplexity", "logcosh", "val_huber"]),
        (False, ["false_positives"]),
        (True, ["val_auc", "val_precision", "val_mean_io_u", "val_meal"]),
    ],
    ids=["errors", "counts of errors", "others"],
)
def test_of_an_error_the_lowest_is_best(highest, names):
    assert {name: monitor([], name).highest for name in names} == dict.fromkeys(names, highest)


def test_row_without_metric_is_never_best():
    assert best_row([{"epoch": 1, "loss": 1.0}, {"epoch": 2, "loss": 2.0, "val_loss": 5.0}], "val_loss")["epoch"] == 2
    assert Monitor("val_top_5", True).label == "validation top 5"


def test_epochs_without_a_validation_do_not_decide():
    rows = [{"epoch": 1, "loss": 0.1}, ROWS[1], {"epoch": 3, "loss": 0.1}, {**ROWS[0], "epoch": 4}]
    assert [row["epoch"] for row in judged(rows)] == [2, 4]
    assert best_row(rows)["epoch"] == 4
    assert best_row(rows, "loss")["epoch"] == 1
    assert judged(rows[:1]) == rows[:1]


@pytest.mark.parametrize(
    ("asked", "patience", "over"),
    [
        (None, None, False),
        (None, 1, True),
        (None, 2, True),
        (None, 3, False),
        ("val_loss", 1, True),
        ("val_loss", 2, False),
        ("loss", 1, False),
    ],
)
def test_patience_ends_after_validations_without_a_better(asked, patience, over):
    """Patience is over after so many validations without a better one. Equal is not better: by accuracy, epoch 1 is the best of three."""
    assert stalled(ROWS, asked, patience) is over


def test_epochs_without_a_validation_do_not_try_patience():
    unjudged = [{"epoch": number, "loss": 1.0, "accuracy": 0.5} for number in (2, 3, 5)]
    rows = sorted([ROWS[0], *unjudged, {**ROWS[1], "epoch": 4}], key=lambda row: row["epoch"])
    assert [stalled(rows, None, patience) for patience in (1, 2)] == [True, False]
    assert not stalled([], None, 1)
