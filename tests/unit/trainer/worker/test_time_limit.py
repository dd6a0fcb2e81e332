"""When a run's time is over."""

import time
from types import SimpleNamespace

import pytest

from trainer.worker.loop import Trainer


@pytest.mark.parametrize(
    ("limit", "elapsed", "ago", "chief", "over"),
    [
        (None, 1e6, 1e6, True, False),
        (60.0, 0.0, 50.0, True, False),
        (60.0, 0.0, 70.0, True, True),
        (60.0, 50.0, 20.0, True, True),
        (60.0, 0.0, 70.0, False, False),
    ],
)
def test_time_counts_from_the_launch(limit, elapsed, ago, chief, over):
    """It counts from the launch though this process started later."""
    trainer = Trainer.__new__(Trainer)
    config = SimpleNamespace(train=SimpleNamespace(time_limit=limit))
    trainer.job = SimpleNamespace(config=config, elapsed=elapsed, started=time.monotonic() - ago)
    trainer.cluster = SimpleNamespace(member=SimpleNamespace(is_chief=chief))
    assert trainer._out_of_time() is over
