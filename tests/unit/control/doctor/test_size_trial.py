"""How long the doctor's hosts train together."""

from pathlib import Path

import pytest

from control.common import configurations
from control.common.plan import Plan
from control.common.task import Task
from control.doctor.tasks.size_trial import size_trial
from control.runs.planning.plan_request import SELFTEST
from trainer.common.plain_values import to_plain


def sized(step_seconds):
    config = configurations.to_dict(configurations.build(configurations.override({}, SELFTEST)))
    counts = {"workers": 2, "steps_per_epoch": 2, "total_steps": 2}
    plan = to_plain(Plan(run="doctor", folder=Path("doctor"), config=config, counts=counts))
    return size_trial(Task({"plan": plan, "timed": {name: {"step_seconds": one} for name, one in step_seconds.items()}}))


def test_quick_hosts_train_as_long_as_measurement_needs():
    plan = sized({"a": 0.1, "b": 0.5})["ansible_facts"]["plan"]
    assert plan.counts == {"workers": 2, "steps_per_epoch": 40, "total_steps": 40}
    assert (plan.config["train"]["steps_per_epoch"], plan.config["train"]["steps_per_call"]) == (40, 8)
    assert plan.config_yaml == plan.asked_yaml == configurations.dump(configurations.build(plan.config))


@pytest.mark.parametrize("slowest", [0.6, 60.0])
def test_two_steps_where_more_would_take_long(slowest):
    assert sized({"a": 0.1, "b": slowest}) == {}
