"""From which training state a run goes on: the newest that is whole, wherever it lies."""

import pytest

from control.runs.launch import resumption
from tests.unit.samples import flip_a_bit, write_state

NAMES = {step: f"step-{step:09d}.npz" for step in (8, 16, 24)}


def place(state=0, memory=0, damaged=()):
    listed = [{"kind": kind, "name": NAMES[step], "reason": "its digest differs"} for kind, step in damaged]
    return {"newest_state": NAMES.get(state, ""), "newest_memory": NAMES.get(memory, ""), "damaged": listed}


@pytest.fixture
def run(tmp_path):
    def make(*steps, damaged=(), folder="state"):
        for step in steps:
            write_state(tmp_path / folder / NAMES[step])
        for step in damaged:
            flip_a_bit(tmp_path / folder / NAMES[step])
        (tmp_path / "history.csv").touch()
        return tmp_path

    return make


BAD = [("state", 16)]


@pytest.mark.parametrize(
    ("here", "damaged", "hosts", "given", "lines"),
    [
        ((8, 16), (), {"pi1": place(16), "pi2": place()}, [], []),
        ((8, 16), (), {"pi1": place(), "pi2": place()}, ["state", "history.csv"], []),
        (
            *((8, 16), ()),
            {"pi1": place(8, damaged=BAD), "pi2": place(16), "pi3": place()},
            [],
            ["state of step 16 on pi1 is damaged (its digest differs) and put aside; continuing from step 16 of pi2"],
        ),
        (
            *((8,), ()),
            {"pi1": place(16), "pi2": place(8, damaged=BAD)},
            [],
            ["state of step 16 on pi2 is damaged (its digest differs) and put aside; continuing from step 16 of pi1"],
        ),
        (
            *((8, 16), ()),
            {"pi1": place(8, damaged=BAD)},
            ["state", "history.csv"],
            ["state of step 16 on pi1 is damaged (its digest differs) and put aside; continuing from step 16 of this machine"],
        ),
        (
            *((16, 24), (24,)),
            {"pi1": place(8)},
            ["state", "history.csv"],
            ["state of step 24 on this machine is damaged (its digest differs) and put aside; continuing from step 16 of this machine"],
        ),
    ],
    ids=["newest at the chief", "lost disk", "whole elsewhere", "damaged copy", "damaged at the chief", "damaged here"],
)
def test_chief_is_given_the_newest_whole_state(run, here, damaged, hosts, given, lines):
    chosen = resumption.choose(run(*here, damaged=damaged), hosts)
    assert (chosen.give, chosen.lines) == ({host: [] for host in hosts} | {"pi1": given}, lines)


def test_with_both_damaged_the_older_one_is_used(run):
    folder = run(8, 16, damaged=[16])
    chosen = resumption.choose(folder, {"pi1": place(8, damaged=[("state", 16)])})
    assert chosen.give == {"pi1": []}
    assert chosen.lines == [
        "state of step 16 on pi1 is damaged (its digest differs) and put aside; continuing from step 8 of pi1",
        "state of step 16 on this machine is damaged (its digest differs) and put aside; continuing from step 8 of pi1",
    ]
    assert [path.name for path in (folder / "state").iterdir()] == [NAMES[8]]
    assert (folder / "damaged" / f"state-{NAMES[16]}").is_file()


def test_without_any_whole_run_starts_anew(run):
    chosen = resumption.choose(run(16, damaged=[16]), {"pi1": place(damaged=[("state", 16)])})
    assert chosen.give == {"pi1": []}
    assert all(line.endswith("no other is left: continuing from the start") for line in chosen.lines)


def test_damaged_part_of_any_worker_is_given_back(run):
    folder = run(16, folder="workers/pi2/memory")
    chosen = resumption.choose(folder, {"pi1": place(16, 16), "pi2": place(0, 8, damaged=[("memory", 16)])})
    assert chosen.give == {"pi1": [], "pi2": ["workers/pi2/memory"]}
    assert chosen.lines == ["pi2's part of the state of step 16 on pi2 is damaged (its digest differs) and put aside"]
