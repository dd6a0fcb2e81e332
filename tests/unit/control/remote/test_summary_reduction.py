"""How gradients were sent, as a worker's summary.json says it: control nodes count with it."""

import json

import pytest

from control.remote import worker_files
from trainer.common.errors import LockstepError

SUMMARY = {"state": "SUCCEEDED", **dict.fromkeys(("workers", "epochs_done", "epochs", "steps", "seconds_total", "seconds_training"), 1)}
SENT = {"name": "powersgd", "why": "compressed", "sent_bytes": 127_528, "transport": "direct", "sums": [115_200, 12_344]}


def test_what_a_worker_writes():
    assert worker_files.summary(json.dumps({**SUMMARY, "reduction": SENT}))["reduction"] == SENT


def test_what_an_earlier_version_wrote():
    old = {"name": "packed", "why": "as they are"}
    assert worker_files.summary(json.dumps({**SUMMARY, "reduction": old}))["reduction"] == old


@pytest.mark.parametrize(
    "false",
    [{"sums": ["1"]}, {"sums": [-1]}, {"sums": 5}, {"sums": [1] * 9}, {"transport": "pigeon"}, {"sent_bytes": "many"}, {"sent_bytes": -1}],
)
def test_what_no_worker_writes(false):
    with pytest.raises(LockstepError, match="is not what a worker writes"):
        worker_files.summary(json.dumps({**SUMMARY, "reduction": {**SENT, **false}}))
