"""What asynchronous and synchronous trainings reached, and when."""

from collections import Counter

import pytest

from benchmarks.scripts import parameter_server

HISTORY = [
    {"epoch": number, "seconds": seconds, "images_per_s": rate, "val_loss": loss}
    for number, seconds, rate, loss in ((1, 10.0, 100.0, 2.0), (2, 5.0, 200.0, 1.5), (3, 5.0, 160.0, 1.6))
]


@pytest.mark.parametrize(("loss", "seconds", "epochs"), [(2.0, "10.0", 1), (1.5, "15.0", 2), (1.6, "15.0", 2), (1.4, "-", "-")])
def test_seconds_of_training_steps_until_the_loss_is_reached_or_none(loss, seconds, epochs):
    row = parameter_server.row("even", "synchronous", HISTORY, loss, {})
    assert (str(row.seconds), row.epochs, str(row.per_s), str(row.loss), row.staleness) == (seconds, epochs, "140", "1.5000", "")


def test_staleness_of_an_asynchronous_training():
    row = parameter_server.row("half", "asynchronous", HISTORY, 1.5, Counter({0: 5, 8: 5}))
    assert "largest 8" in row.staleness


def test_an_unknown_case_is_refused():
    with pytest.raises(SystemExit, match=r"--cases=even,odd: odd is unknown; there are even, half, slow-link"):
        parameter_server._listed("cases", "even,odd", parameter_server.CASES)
