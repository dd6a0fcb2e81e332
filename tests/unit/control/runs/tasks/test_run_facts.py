"""Facts of runs that this command does not launch: those that train already, and complete ones."""

import json

import pytest

from control.common import command_line, project
from control.common.plan import Plan
from control.common.task import Task
from control.remote.published import Published
from control.runs.launch import launches
from control.runs.tasks import plan as plan_task
from control.runs.tasks.launch import record
from trainer.common.errors import ConfigError
from trainer.common.plain_values import from_plain, to_plain
from trainer.rundir.launch_record import Host, LaunchRecord

HOSTS = [{"name": "node1", "rank": 0, "threads": 3}, {"name": "node2", "rank": 1, "threads": 2}]
RECORD = {"hosts": HOSTS, "dataset": {"folder_name": "ab"}, "code": "trainer-1.zip"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "cluster.json").write_text(json.dumps(RECORD))
    return tmp_path


def test_complete_run_is_evaluated_with_its_own_code(folder):
    """A complete run is evaluated with the threads and the code it was trained with."""
    plan = Plan(run="one", folder=folder, hosts=[Host(name="node1", address="10.0.0.9")], code_sha256="of today's trainer")
    facts = plan_task._trained_with(plan)
    assert to_plain(facts.hosts) == [{"name": "node1", "rank": 0, "threads": 3, "address": "10.0.0.9"}]
    assert (facts.dataset, facts.code, facts.code_sha256) == (RECORD["dataset"], "trainer-1.zip", "")


def test_a_run_that_trains_already_keeps_its_record(folder):
    plan = to_plain(Plan(run="one", folder=folder, hosts=[from_plain(Host, host) for host in HOSTS], resume=True))
    claims = {
        host["name"]: {"running": True, "identity": "", "holder": None, "newest_state": 3, "newest_memory": 0, "damaged": []}
        for host in HOSTS
    }
    returned = record(Task({"plan": plan, "claims": claims}))
    assert returned["ansible_facts"]["cluster"] == [from_plain(Host, host) for host in HOSTS]


def test_spare_is_recorded_apart_from_its_cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "PRIVATE", tmp_path / "private")
    monkeypatch.setattr(launches, "BEGUN", tmp_path / "launches")
    hosts = [Host(name=f"node{rank}", address=f"10.0.0.{rank}", port=12345) for rank in (1, 2, 3)]
    plan = to_plain(Plan(run="one", folder=tmp_path / "one", hosts=hosts[:2], spares=hosts[2:], nonce="n"))
    claim = {"running": False, "holder": None, "newest_state": "", "newest_memory": "", "damaged": [], "facts": {"cores": 4}}
    published = to_plain(Published(digest="d", folder="n", manifest="m", code="c", code_sha256="s"))
    variables = {host.name: {"worker_root": f"/srv/{host.name}"} for host in hosts} | {"node2": {"worker_root": "/", "worker_silence": 9}}
    arguments = {"plan": plan, "claims": {host.name: claim for host in hosts}, "published": published}
    facts = record(Task(arguments, {"hostvars": variables}))["ansible_facts"]
    recorded = LaunchRecord.read(tmp_path / "one")
    assert facts["cluster"] == recorded.posts
    assert [host.name for host in recorded.hosts] == ["node1", "node2"]
    assert [(host.name, host.rank, host.threads, host.tf_config) for host in recorded.spares] == [("node3", 2, 4, {})]
    assert recorded.hosts[1].tf_config["cluster"] == {"worker": ["10.0.0.1:12345", "10.0.0.2:12345"]}
    assert [(host.root, host.silence) for host in recorded.posts] == [
        ("/srv/node1", 45.0),
        ("/", 9.0),
        ("/srv/node3", 45.0),
    ]
    assert facts["launch"]["hosts"] == ["node1", "node2", "node3"], "an interrupted launch is taken back on all"
    assert [host.name for host in recorded.posts] == ["node1", "node2", "node3"]


def test_slurm_chooses_the_hosts(monkeypatch):
    monkeypatch.setattr(command_line, "operator_options", lambda command, task_vars: {"workers": "node1,node2"})
    with pytest.raises(ConfigError, match=r"^workers=node1,node2: expected a whole number from 1$"):
        plan_task.plan(Task({"command": "playbooks/slurm"}))
