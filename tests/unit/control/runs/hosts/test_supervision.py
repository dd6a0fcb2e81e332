"""The command line of a worker and its supervisor."""

import json

import pytest

from control.common import configurations
from control.runs.hosts import supervisor_command
from plugins.filter.lockstep import FilterModule
from trainer.common.errors import ConfigError

HOSTS = [{"name": f"node{rank}", "address": f"10.0.0.{rank}", "port": 12345, "direct_port": 13345} for rank in range(4)]


def command(**recovery):
    plan = {"nonce": "n", "config": configurations.to_dict(configurations.build({"recovery": recovery}))}
    return supervisor_command.command(plan, ["train"], "/folder", 1, "session", 45, HOSTS, 3)


def post(**recovery):
    return json.loads(command(**recovery)[2])


def test_without_restarts_there_is_no_supervisor():
    assert command(max_restarts=0) == ["-m", "trainer", "train"]


def test_a_supervisor_knows_where_all_workers_listen():
    given = command(max_restarts=3)
    assert given[:2] == ["-m", "trainer.supervision"]
    assert given[3:] == ["train"]
    assert post(max_restarts=3)["endpoints"] == [f"10.0.0.{rank}:12345" for rank in range(4)]
    assert post(max_restarts=3)["peers"] == [f"10.0.0.{rank}:13345" for rank in range(4)]
    assert post(max_restarts=3)["workers"] == 3, "the last host is a spare"
    assert post(max_restarts=3)["elastic"] is None


@pytest.mark.parametrize("standby", [True, False])
def test_process_stands_by_if_it_is_asked_for(standby):
    assert post(max_restarts=3, standby=standby)["standby"] is standby


def test_spares_wait_behind_those_that_train():
    posts = FilterModule().filters()["posts"]
    assert posts({"hosts": HOSTS[:3], "spares": HOSTS[3:]}) == HOSTS
    assert posts({"hosts": HOSTS[:3]}) == HOSTS[:3]


def test_an_elastic_run_has_its_limits():
    assert post(max_restarts=3, elastic=True, elastic_wait=20, min_workers=2)["elastic"] == {"wait": 20.0, "least": 2}


@pytest.mark.parametrize(
    ("workers", "least", "words"),
    [
        (4, 1, "goes on without lost hosts, with at least 2 of 4 workers (node0 among them)"),
        (3, 1, "goes on without lost hosts, with at least 2 of 3 workers"),
        (4, 3, "goes on without lost hosts, with at least 3 of 4 workers"),
    ],
)
def test_plan_says_how_many_workers_suffice(workers, least, words):
    """The plan says with how many workers a run goes on."""
    assert supervisor_command.shown({"recovery": {"elastic": True, "min_workers": least}}, HOSTS[:workers], []) == words
    assert supervisor_command.shown({"recovery": {"elastic": False}}, HOSTS, []) == ""


def test_the_plan_names_the_spares():
    words = supervisor_command.shown({"recovery": {"elastic": True, "min_workers": 1}}, HOSTS[:3], HOSTS[3:])
    assert words == "goes on without lost hosts, with at least 2 of 3 workers; node3 can take the place of one"


def test_a_job_of_slurm_is_not_asynchronous():
    with pytest.raises(ConfigError, match=r"strategy.name=parameter_server: the tasks of a job of Slurm are all workers. Fix: "):
        supervisor_command.check_job({"strategy": {"name": "parameter_server"}, "recovery": {"elastic": False}})


def test_asynchronous_supervisor_knows_who_takes_no_steps():
    hosts = [{**HOSTS[0], "server_port": 12845}, HOSTS[1], {**HOSTS[2], "role": "evaluator"}]
    plan = {"nonce": "n", "config": configurations.to_dict(configurations.build({"strategy": {"name": "parameter_server"}}))}
    given = json.loads(supervisor_command.command(plan, ["train"], "/folder", 1, "session", 45, hosts, 3)[2])
    assert (given["servers"], given["apart"]) == ([[0, "10.0.0.0:12845"]], [[2, "evaluator"]])


def test_a_job_of_slurm_is_not_elastic():
    with pytest.raises(ConfigError, match=r"Slurm ends a job that loses a node\. Fix: leave it out"):
        supervisor_command.check_job({"recovery": {"elastic": True}})


@pytest.mark.parametrize(("recovery", "elastic"), [({"elastic": True}, True), ({"elastic": True, "max_restarts": 0}, False), ({}, False)])
def test_whether_run_is_elastic_is_in_its_configuration(recovery, elastic, tmp_path):
    assert not supervisor_command.is_elastic(tmp_path)
    (tmp_path / "config.yml").write_text(configurations.dump(configurations.build({"recovery": recovery})))
    assert supervisor_command.is_elastic(tmp_path) is elastic
