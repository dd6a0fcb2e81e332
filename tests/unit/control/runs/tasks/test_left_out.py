"""Stages of a launch that have nothing to do, and start no process."""

from dataclasses import replace
from pathlib import Path

import jinja2
import pytest
import yaml

from control.common.plan import Plan
from control.runs.tasks.plan import BROKEN, PREFLIGHT, SETTLE, _left_out
from plugins.filter.lockstep import FilterModule
from tests.unit.samples import ROOT

NEW = Plan(run="r", folder=Path("r"), command="train")
BROKEN_OFF = {"broken_launches": [{"id": "x"}]}


@pytest.mark.parametrize(
    ("plan", "options", "broken", "checked", "expected"),
    [
        pytest.param(NEW, {}, {}, None, [BROKEN, SETTLE], id="new"),
        pytest.param(NEW, {}, {"broken_launches": []}, "OK (1 min ago)", [BROKEN, SETTLE, PREFLIGHT], id="checked"),
        pytest.param(NEW, {"preflight": "false"}, {}, None, [BROKEN, SETTLE, PREFLIGHT], id="unchecked"),
        pytest.param(NEW, {}, BROKEN_OFF, None, [SETTLE], id="after one that broke off"),
        pytest.param(replace(NEW, resume=True), {}, {}, None, [BROKEN], id="continued"),
        pytest.param(replace(NEW, resume=True, complete=True), {}, {}, None, [BROKEN, SETTLE, PREFLIGHT], id="complete"),
        pytest.param(replace(NEW, command="doctor"), {}, {}, None, [BROKEN], id="doctor"),
        pytest.param(replace(NEW, command="doctor"), {}, BROKEN_OFF, None, [], id="doctor, after a launch that broke off"),
    ],
)
def test_stages_without_work_are_left_out(plan, options, broken, checked, expected):
    assert _left_out(plan, options, broken, checked) == expected


@pytest.mark.parametrize("stage", [BROKEN, SETTLE, PREFLIGHT])
@pytest.mark.parametrize(("fact", "matches"), [({}, True), ({"left_out": ["other"]}, True), ({"left_out": None}, False)])
def test_a_stage_left_out_has_no_hosts(stage, fact, matches):
    """The pattern of its play, where the fact is missing, too: in commands that leave nothing out."""
    (play,) = yaml.safe_load((ROOT / "playbooks/stages" / f"{stage}.yml").read_text())
    facts = {name: [stage] if value is None else value for name, value in fact.items()}
    environment = jinja2.Environment()
    environment.filters |= FilterModule().filters()
    pattern = environment.from_string(play["hosts"]).render(hostvars={"a": facts}, groups={"workers": ["a"], "cluster": ["a"]})
    assert pattern.endswith(":!all") != matches
