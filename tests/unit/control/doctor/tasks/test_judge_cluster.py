"""What the judge makes of the probes' answers before the checks see them."""

from pathlib import Path

import pytest

from control.common import command_line, project
from control.common.plan import Plan
from control.common.task import Task
from control.doctor.tasks import judge as judge_cluster
from control.runs.launch import recent_check
from tests.unit.doctor_samples import healthy, network_of
from trainer.common.plain_values import to_plain
from trainer.rundir.launch_record import Host

CODE, DATA = "/dfs/code/trainer-1.zip", "/dfs/datasets/2/manifest.json"


def host(**digests):
    paths = {"code": CODE, "data": DATA}
    return {"tokens": [{"path": paths[name], **({"sha256": sha} if sha else {"error": "No such file"})} for name, sha in digests.items()]}


def test_only_published_files_are_asked_of_all():
    facts = {"a": host(code=None, data="d"), "b": host(code=None, data="d")}
    assert judge_cluster._published(facts, {CODE: "c", DATA: "d"}) == {DATA: "d"}
    # A file that one host has is asked of all with the digest that was published.
    facts = {"a": host(code="x"), "b": host(code="y"), "c": host(code="y"), "d": host(code=None), "e": {"unreachable": "down"}}
    assert judge_cluster._published(facts, {CODE: "x"}) == {CODE: "x"}


def test_failed_module_counts_as_a_silent_host():
    looked = {"a": {"facts": {"user": "pi"}}, "b": {"unreachable": True, "msg": "no route"}, "c": {}}
    assert judge_cluster._facts(looked) == {"a": {"user": "pi"}, "b": {"unreachable": "no route"}, "c": {"unreachable": "no answer"}}
    assert judge_cluster._network({"a": {"pairs": {}}}) is None
    assert judge_cluster._network({"a": {"pairs": {"b": {}}}, "b": {"skipped": True}}) == {"a": {"pairs": {"b": {}}}}


EARLIER = "of an earlier launch"


@pytest.mark.parametrize(
    ("fast", "check_mode", "well", "expected"),
    [
        pytest.param(True, False, True, "2 hosts, ", id="a launch"),
        pytest.param(True, True, True, EARLIER, id="a launch with --check"),
        pytest.param(True, False, False, None, id="a launch that is refused"),
        pytest.param(True, True, False, EARLIER, id="a launch that would be refused"),
        pytest.param(False, False, True, EARLIER, id="the doctor"),
        pytest.param(False, False, False, None, id="the doctor that finds a fault"),
    ],
)
def test_what_hosts_passed_is_noted(fast, check_mode, well, expected, tmp_path, monkeypatch):
    """What they fail makes earlier checks worthless."""
    monkeypatch.setattr(project, "PRIVATE", tmp_path)
    monkeypatch.setattr(command_line, "inventory", lambda: Path("inventory/mine"))
    names = ["node01", "node02"]
    hosts = [Host(name=name, address=f"10.0.0.{name[-1]}", port=12345) for name in names]
    needs = dict.fromkeys(("memory_mb", "server_mb", "disk_mb", "disk_whole_mb"), 100)
    plan = Plan(run="r", folder=tmp_path / "r", hosts=hosts, needs=needs)
    recent_check.note(plan, EARLIER)
    looked = {name: {"facts": healthy(name)} for name in names} | ({} if well else {"node02": {"msg": "no route"}})
    arguments = {"plan": to_plain(plan), "fast": fast, "looked": looked, "tried": network_of(names), "token": "", "files": {}}
    judged = judge_cluster.judge(Task(arguments, {"hostvars": {name: {} for name in names}}, check_mode))
    assert judged.get("failed", False) != well
    passed = recent_check.passed(plan)
    assert passed is None if expected is None else passed.startswith(expected)
