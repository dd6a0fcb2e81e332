"""Watching a worker: when it counts as having failed."""

import time

import pytest

from plugins.action.watch_run import _Watch


@pytest.mark.parametrize(("state", "ago"), [("silent", 90), ("gone", 90), ("unreachable", 90), ("ended", 0), ("running", 0)])
def test_a_lost_worker_counts_from_when_it_was_last_heard(state, ago):
    watch = _Watch.__new__(_Watch)
    watch.heard_at = time.monotonic() - 90
    assert abs(time.time() - ago - watch._happened(state)) < 10
