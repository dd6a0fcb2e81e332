"""A validation: its batches, and the progress that it records."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from trainer.rundir.metrics_log import Metrics
from trainer.worker.validation import VALIDATION_BATCH, Validation

BATCHES = 10


class Engine:
    """An engine whose validation takes a second per batch."""

    validates, validates_in_order, shares = True, False, (1, 1)
    validation_results = SimpleNamespace(follow_states=False, size=1, summed=lambda before, sums: before + sums.sum(axis=0))

    def __init__(self, clock):
        self._clock, self.evaluated = clock, []

    def validate(self, batches, *_):
        for number, _ in batches:
            self._clock.advance(1.0)
            self.evaluated.append(number)
        return np.ones(1)

    def validated(self, *_):
        """The generators are not of interest."""


@pytest.mark.parametrize(
    ("in_order", "calls", "evaluated", "shown"),
    [
        (False, [(0, BATCHES - 1)], [5, 6, 7, 8, 9], ["", "40%", "80%"]),
        (True, [(number, number) for number in range(BATCHES)], list(range(BATCHES)), ["", "20%", "40%", "60%", "80%"]),
    ],
    ids=["a worker's part", "every batch, one by one"],
)
def test_a_long_validation_records_its_progress(tmp_path, clock, in_order, calls, evaluated, shown):
    engine = Engine(clock)
    manifest = SimpleNamespace(order=np.arange(BATCHES * VALIDATION_BATCH))
    job = SimpleNamespace(
        manifest=manifest,
        counts=SimpleNamespace(validation_images=len(manifest.order)),
        examples=SimpleNamespace(gather=lambda batch: (batch,)),
        metrics=Metrics(tmp_path / "metrics.jsonl"),
    )
    validation = Validation(job, engine, SimpleNamespace(member=SimpleNamespace(rank=1), sum=lambda sums: sums), clock)
    for first, last in calls:
        validation.sums(first, last, in_order)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert engine.evaluated == evaluated
    assert [record["note"] for record in records if record["phase"] == "validating"] == shown
