"""Stages of a launch that have nothing to do, and start no process."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import filter_loader
from ansible.template import Templar, trust_as_template

from control.common import command_line, project
from control.common.plan import Plan
from control.common.task import Task
from control.runs.launch import launches, recent_check
from control.runs.planning import plan_command
from control.runs.planning.plan_request import Inventory
from control.runs.tasks import plan as plan_task
from control.runs.tasks.find import ELSEWHERE
from control.runs.tasks.plan import BROKEN, EVALUATE, PREFLIGHT, SETTLE, _left_out
from tests.unit.samples import ROOT
from trainer.rundir.launch_record import Host

NEW = Plan(run="r", folder=Path("r"), command="train")
BROKEN_OFF = {"broken_launches": [{"id": "x"}]}


@pytest.mark.parametrize(
    ("plan", "options", "broken", "checked", "expected"),
    [
        pytest.param(NEW, {}, {}, None, [BROKEN, SETTLE, EVALUATE], id="new"),
        pytest.param(NEW, {}, {"broken_launches": []}, "OK (1 min ago)", [BROKEN, SETTLE, PREFLIGHT, EVALUATE], id="checked"),
        pytest.param(NEW, {"preflight": "false"}, {}, None, [BROKEN, SETTLE, PREFLIGHT, EVALUATE], id="unchecked"),
        pytest.param(NEW, {}, BROKEN_OFF, None, [SETTLE, EVALUATE], id="after one that broke off"),
        pytest.param(replace(NEW, resume=True), {}, {}, None, [BROKEN, EVALUATE], id="continued"),
        pytest.param(replace(NEW, resume=True, complete=True), {}, {}, None, [BROKEN, SETTLE, PREFLIGHT, EVALUATE], id="complete"),
        pytest.param(NEW, {"evaluate": "true"}, {}, None, [BROKEN, SETTLE], id="evaluated"),
        pytest.param(replace(NEW, command="doctor"), {}, {}, None, [BROKEN], id="doctor"),
        pytest.param(replace(NEW, command="doctor"), {}, BROKEN_OFF, None, [], id="doctor, after a launch that broke off"),
    ],
)
def test_stages_without_work_are_left_out(plan, options, broken, checked, expected):
    assert _left_out(plan, options, broken, checked) == expected


@pytest.mark.parametrize(
    ("command", "options", "shown", "left_out"),
    [
        pytest.param("train", {}, "the plan\nOK (0 s ago)", [BROKEN, SETTLE, PREFLIGHT, EVALUATE], id="passed"),
        pytest.param("train", {"preflight": "true"}, "the plan", [BROKEN, SETTLE, EVALUATE], id="to be checked all the same"),
        pytest.param("train", {"preflight": "false"}, "the plan", [BROKEN, SETTLE, PREFLIGHT, EVALUATE], id="not to be checked"),
        pytest.param("doctor", {}, "the plan", [BROKEN], id="the doctor"),
        pytest.param("playbooks/slurm", {}, "the plan", [BROKEN], id="under Slurm"),
        pytest.param("train", {"show_config": "true"}, None, [BROKEN, SETTLE, PREFLIGHT, EVALUATE], id="only shown"),
    ],
)
def test_hosts_that_passed_are_not_checked(command, options, shown, left_out, tmp_path, monkeypatch):
    hosts = [Host(name="a", address="10.0.0.1", port=1)]
    made = Plan(run="r", folder=tmp_path / "r", hosts=hosts, needs={"disk_mb": 1}, config_yaml="seed: 1\n")
    monkeypatch.setattr(project, "PRIVATE", tmp_path)
    monkeypatch.setattr(launches, "BEGUN", tmp_path / "launches")
    monkeypatch.setattr(command_line, "operator_options", lambda *_: options)
    monkeypatch.setattr(plan_command, "inventory", lambda _: Inventory(hosts=hosts))
    monkeypatch.setattr(plan_command, "make_plan", lambda *_: made)
    monkeypatch.setattr(plan_command, "shown_plan", lambda *_: "the plan")
    monkeypatch.setattr(plan_task.run_recovery, "check_job", lambda _: None)
    monkeypatch.setattr(recent_check.CLOCK, "time", lambda: 1_000_000.0)
    recent_check.note(made, "OK")
    arguments = {"command": command, "default_workers": 1, "packs": str(tmp_path)}
    returned = plan_task.plan(Task(arguments, {"groups": {"workers": ["a"]}, "hostvars": {"a": {}}}))
    assert (returned.get("show"), returned["ansible_facts"]["left_out"]) == (shown, left_out)


@pytest.mark.parametrize("stage", [BROKEN, SETTLE, PREFLIGHT, EVALUATE, ELSEWHERE])
@pytest.mark.parametrize(("fact", "hosts"), [({}, ["a", "b"]), ({"left_out": ["other"]}, ["a", "b"]), ({"left_out": None}, [])])
def test_a_stage_left_out_has_no_hosts(stage, fact, hosts, tmp_path):
    """The pattern of its play, where the fact is missing, too: in commands that leave nothing out."""
    (play,) = yaml.safe_load((ROOT / "playbooks/stages" / f"{stage}.yml").read_text())
    facts = {name: [stage] if value is None else value for name, value in fact.items()}
    filter_loader.add_directory(str(ROOT / "plugins/filter"))
    names = ["a", "b"]
    variables = {"hostvars": {"a": {**facts, "cluster": [{"name": "a"}]}, "b": {}}, "groups": {"workers": names, "cluster": names}}
    pattern = Templar(DataLoader(), variables).template(trust_as_template(play["hosts"]))
    written = tmp_path / "hosts"
    written.write_text("[workers]\na\nb\n[cluster:children]\nworkers\n")
    inventory = InventoryManager(DataLoader(), sources=[str(written)])
    # The chief alone evaluates.
    assert [host.name for host in inventory.list_hosts(pattern)] == (hosts[:1] if stage == EVALUATE else hosts)
