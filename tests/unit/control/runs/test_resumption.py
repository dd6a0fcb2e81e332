"""From which training state a run goes on: the newest that is whole, wherever it lies."""

import pytest

from control.runs import resumption
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


def test_chief_that_has_newest_is_given_nothing(run):
    chosen = resumption.choose(run(8, 16), {"pi1": place(16), "pi2": place()})
    assert (chosen.give, chosen.lines) == ({"pi1": [], "pi2": []}, [])


def test_chief_without_its_disk_is_given_the_state(run):
    """A chief that lost its disk is given what is here."""
    chosen = resumption.choose(run(8, 16), {"pi1": place(), "pi2": place()})
    assert (chosen.give, chosen.lines) == ({"pi1": ["state", "history.csv"], "pi2": []}, [])


def test_state_of_any_host_makes_one_here_needless(run):
    chosen = resumption.choose(run(8, 16), {"pi1": place(8, damaged=[("state", 16)]), "pi2": place(16), "pi3": place()})
    assert chosen.give == {"pi1": [], "pi2": [], "pi3": []}
    assert chosen.lines == ["state of step 16 on pi1 is damaged (its digest differs) and put aside; continuing from step 16 of pi2"]


def test_a_damaged_copy_is_named_too(run):
    chosen = resumption.choose(run(8), {"pi1": place(16), "pi2": place(8, damaged=[("state", 16)])})
    assert chosen.lines == ["state of step 16 on pi2 is damaged (its digest differs) and put aside; continuing from step 16 of pi1"]


def test_damaged_state_of_the_chief_is_replaced(run):
    """A damaged state of the chief gives way to the one here."""
    chosen = resumption.choose(run(8, 16), {"pi1": place(8, damaged=[("state", 16)])})
    assert chosen.give == {"pi1": ["state", "history.csv"]}
    assert chosen.lines == [
        "state of step 16 on pi1 is damaged (its digest differs) and put aside; continuing from step 16 of this machine"
    ]


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


def test_a_damaged_one_here_is_not_given_away(run):
    chosen = resumption.choose(run(16, 24, damaged=[24]), {"pi1": place(8)})
    assert chosen.give == {"pi1": ["state", "history.csv"]}
    assert "step 24 on this machine is damaged" in chosen.lines[0]
    assert chosen.lines[0].endswith("continuing from step 16 of this machine")


def test_without_any_whole_run_starts_anew(run):
    chosen = resumption.choose(run(16, damaged=[16]), {"pi1": place(damaged=[("state", 16)])})
    assert chosen.give == {"pi1": []}
    assert all(line.endswith("no other is left: continuing from the start") for line in chosen.lines)


def test_damaged_part_of_any_worker_is_given_back(run):
    folder = run(16, folder="workers/pi2/memory")
    chosen = resumption.choose(folder, {"pi1": place(16, 16), "pi2": place(0, 8, damaged=[("memory", 16)])})
    assert chosen.give == {"pi1": [], "pi2": ["workers/pi2/memory"]}
    assert chosen.lines == ["pi2's part of the state of step 16 on pi2 is damaged (its digest differs) and put aside"]
