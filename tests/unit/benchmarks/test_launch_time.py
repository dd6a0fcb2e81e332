"""Where the seconds before the first and after the last step go."""

import pytest

from benchmarks.scripts import launch_time

RECORDS = [
    {"kind": "phase", "phase": "starting", "t": 104.0},
    {"kind": "phase", "phase": "caching", "t": 105.0},
    {"kind": "phase", "phase": "training", "t": 110.0},
    {"kind": "steps", "step": 8, "t": 111.5},
    {"kind": "phase", "phase": "saving", "t": 113.0},
    {"kind": "phase", "phase": "training", "t": 114.0},
    {"kind": "steps", "step": 16, "t": 115.0},
    {"kind": "heartbeat", "phase": "saving", "t": 116.0},
    {"kind": "phase", "phase": "ended", "t": 117.0},
]


def test_each_part_counts_from_the_one_before():
    assert launch_time.parts(100.0, RECORDS) == {"starting": 4.0, "caching": 1.0, "training": 5.0, "steps": 1.5}


def test_what_follows_the_last_step():
    assert launch_time.ending(RECORDS, 119.5) == pytest.approx({"finishing": 2.0, "leaving": 2.5})
