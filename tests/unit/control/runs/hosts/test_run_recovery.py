"""How a run recovers, from its configuration."""

import pytest

from control.common import configurations
from control.runs.hosts import run_recovery
from control.runs.results.run_folder import RunFolder
from trainer.common.errors import ConfigError
from trainer.rundir.launch_record import Host

HOSTS = [Host(name=f"node{rank}", address=f"10.0.0.{rank}", port=12345, direct_port=13345) for rank in range(4)]


@pytest.mark.parametrize(
    ("workers", "least", "words"),
    [
        (4, 1, "goes on without lost hosts, with at least 2 of 4 workers (node0 among them)"),
        (3, 1, "goes on without lost hosts, with at least 2 of 3 workers"),
        (4, 3, "goes on without lost hosts, with at least 3 of 4 workers"),
    ],
)
def test_plan_says_how_many_workers_suffice(workers, least, words):
    assert run_recovery.recovery_text({"recovery": {"elastic": True, "min_workers": least}}, HOSTS[:workers], []) == words
    assert run_recovery.recovery_text({"recovery": {"elastic": False}}, HOSTS, []) == ""


def test_the_plan_names_the_spares():
    words = run_recovery.recovery_text({"recovery": {"elastic": True, "min_workers": 1}}, HOSTS[:3], HOSTS[3:])
    assert words == "goes on without lost hosts, with at least 2 of 3 workers; node3 can take the place of one"


def test_slurm_jobs_are_neither_asynchronous_nor_elastic():
    with pytest.raises(ConfigError, match=r"strategy.name=parameter_server: the tasks of a job of Slurm are all workers. Fix: "):
        run_recovery.check_job({"strategy": {"name": "parameter_server"}, "recovery": {"elastic": False}})
    with pytest.raises(ConfigError, match=r"Slurm ends a job that loses a node\. Fix: leave it out"):
        run_recovery.check_job({"recovery": {"elastic": True}})


@pytest.mark.parametrize(("recovery", "elastic"), [({"elastic": True}, True), ({"elastic": True, "max_restarts": 0}, False), ({}, False)])
def test_whether_run_is_elastic_is_in_its_configuration(recovery, elastic, tmp_path):
    run = RunFolder(tmp_path)
    assert not run.is_elastic
    (tmp_path / "config.yml").write_text(configurations.dump(configurations.build({"recovery": recovery})))
    assert run.is_elastic is elastic
