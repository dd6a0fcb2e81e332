"""When a run's time is over, and how it makes room for a host."""

import time
from types import SimpleNamespace

import pytest

from trainer.rundir.phases import ROOM
from trainer.worker.loop import Interrupted, Trainer


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


def test_who_makes_room_writes_the_last_epochs_state():
    """Who makes room for a host has the state of its last epoch written. What ends next does not wait for the thread."""
    order = []
    trainer = Trainer.__new__(Trainer)
    phase = SimpleNamespace(phase=lambda *words: order.append(words))
    config = SimpleNamespace(recovery=SimpleNamespace(elastic=True))
    trainer.job = SimpleNamespace(config=config, metrics=phase, room_asked=lambda: True)
    trainer.shared = SimpleNamespace(any=bool)
    trainer.saving = SimpleNamespace(settle=lambda: order.append("settled"))
    with pytest.raises(Interrupted):
        trainer._make_room_for_host()
    assert order == ["settled", ("ended", ROOM)]
