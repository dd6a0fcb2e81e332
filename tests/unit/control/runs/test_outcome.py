"""A worker's verdict on its way through Ansible."""

from control.runs.outcome import Verdict


def test_a_verdict_is_the_same_after_its_way_through_ansible_and_carries_only_what_is_known():
    verdict = Verdict("node01", 0, "running", "starting", 0, 5.0, phases_began={})
    assert verdict.to_dict() == {
        "host": "node01",
        "rank": 0,
        "state": "running",
        "phase": "starting",
        "step": 0,
        "at": 5.0,
        "ended_by_us": False,
        "phases_began": {},
    }
    assert Verdict.from_dict(verdict.to_dict()) == verdict
