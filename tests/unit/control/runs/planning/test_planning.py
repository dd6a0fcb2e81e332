"""What a plan warns about without refusing it."""

import contextlib

import pytest
from ansible.errors import AnsibleFilterError

from control.common import configurations
from control.common.plan import Plan
from control.runs.planning import plan_command
from control.runs.planning.plan_request import Inventory, OperatorRequest, Request
from trainer.common.files import write_json
from trainer.common.plain_values import to_plain
from trainer.rundir.launch_record import Host


def hosts(*addresses):
    return [Host(name=f"node{rank}", address=address, port=12345 + rank) for rank, address in enumerate(addresses, 1)]


def shared(chosen, **variables):
    known = {host.name: variables for host in chosen}
    return [line for line in plan_command._shared_addresses(chosen, known) if "one address" in line]


def test_one_address_with_several_ports_is_told():
    assert shared(hosts("10.0.0.1", "10.0.0.2", "10.0.0.2")) == [
        "node2, node3 have one address, 10.0.0.2: their workers share one machine. "
        "Fix, if they are several machines: set ansible_host or worker_address of each in the inventory"
    ]


@pytest.mark.parametrize(
    ("chosen", "variables"),
    [
        (hosts("127.0.0.1", "127.0.0.1"), {}),
        (hosts("10.0.0.1", "10.0.0.1"), {"ansible_connection": "local"}),
        (hosts("10.0.0.1", "10.0.0.2"), {}),
    ],
    ids=["loopback", "processes of this machine", "two machines"],
)
def test_workers_meant_to_share_machine_are_not(chosen, variables):
    assert shared(chosen, **variables) == []


def inventory(workers, spares):
    variables = {name: {"ansible_host": f"10.0.0.{number}"} for number, name in enumerate(workers, 1)}
    return {"hostvars": variables, "groups": {"workers": workers, "spares": spares}}


def test_spares_are_workers_apart():
    found = plan_command.inventory(inventory(["a", "b", "c"], ["b"]))
    assert [host.name for host in found.hosts] == ["a", "c"]
    assert [host.name for host in found.spares] == ["b"]


def request(folder, hosts, **options):
    places = {"runs": folder, "packs": folder, "parameter_cache": folder}
    return Request(asked=OperatorRequest.of(options), hosts=hosts, write=False, **places)


@pytest.mark.parametrize(
    ("sections", "options", "spares"),
    [
        ({"recovery": {"elastic": True}}, {}, ["c"]),
        ({"recovery": {"elastic": False}}, {}, []),
        ({"recovery": {"elastic": True}}, {"selftest": True}, []),
        (None, {}, []),
    ],
    ids=["an elastic run", "another run", "the doctor's trial", "a script"],
)
def test_only_elastic_runs_have_spares(sections, options, spares, tmp_path):
    asked = request(tmp_path, hosts("a"), **options)
    config = {} if sections is None else configurations.to_dict(configurations.build(sections))
    found = Inventory(hosts=asked.hosts, spares=[Host(name="c", address="c", port=1)])
    made = plan_command._with_hosts(Plan(run="r", folder=tmp_path / "r", config=config), asked, found)
    assert ([host.name for host in made.hosts], [host.name for host in made.spares]) == (["node1"], spares)


def test_hosts_have_roles_and_environment(tmp_path):
    """Hosts of an asynchronous run have their roles and the environment of their workers."""
    asked = request(tmp_path, hosts("a", "b"))
    sections = {"strategy": {"name": "parameter_server"}, "train": {"environment": {"A": "1"}}}
    config = configurations.to_dict(configurations.build(sections))
    evaluator = Host(name="e", address="e", port=1, role="evaluator")
    plan = Plan(run="r", folder=tmp_path / "r", config=config, apart=[evaluator])
    made = plan_command._with_hosts(plan, asked, Inventory(hosts=asked.hosts, servers=["node2"]))
    assert [(host.name, host.role, host.server_port, host.environment) for host in made.hosts] == [
        ("node1", "", None, {"A": "1"}),
        ("node2", "", 12847, {"A": "1"}),
        ("e", "evaluator", None, {"A": "1"}),
    ]


def test_a_spare_that_is_no_worker_is_refused():
    with pytest.raises(AnsibleFilterError, match=r"^d: in the inventory's group spares, but not in workers\. Fix: put it into both"):
        plan_command.hosts(inventory(["a", "b"], ["b", "d"]))


@pytest.mark.parametrize(
    ("options", "state", "done"),
    [
        ({}, "", True),
        ({"queue": True}, "", False),
        ({"script": "main.py"}, "", False),
        ({"run": "r"}, "RUNNING", False),
        ({"run": "r"}, "FAILED", True),
    ],
    ids=["a new run", "one that waits", "a script", "one under way", "one that ended"],
)
def test_hosts_prepare_only_what_starts_now(options, state, done, tmp_path, monkeypatch):
    """While the plan is made, and on the hosts that were chosen."""
    order, chosen = [], hosts("a", "b", "c")
    (tmp_path / "main.py").write_text("")
    monkeypatch.chdir(tmp_path)

    @contextlib.contextmanager
    def meanwhile(where):
        order.append([host.name for host in where])
        yield
        order.append("end")

    def run_trainer(_, given):
        order.append("plan")
        return {"run": "r", "folder": ""}

    monkeypatch.setattr(plan_command.project, "runs_folder", lambda _: tmp_path)
    monkeypatch.setattr(plan_command.trainer_process, "run_trainer", run_trainer)
    monkeypatch.setattr(plan_command, "_with_hosts", lambda plan, *_: (_ for _ in ()).throw(StopError))
    if state:
        (tmp_path / "r").mkdir()
        (tmp_path / "r/config.yml").write_text("{}")
        write_json(tmp_path / "r/cluster.json", {"launch": "ab", "hosts": to_plain(chosen[:2])})
        write_json(tmp_path / "r/summary.json", {"state": state})
    with pytest.raises(StopError):
        plan_command.make_plan(OperatorRequest.of(options), Inventory(hosts=chosen), "runs", 2, str(tmp_path / "packs"), False, meanwhile)
    planned = [] if "script" in options else ["plan"]
    assert order == ([["node1", "node2"], *planned, "end"] if done else planned)


class StopError(Exception):
    """The plan is made."""
