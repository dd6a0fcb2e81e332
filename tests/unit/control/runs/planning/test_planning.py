"""What a plan warns about without refusing it."""

import pytest
from ansible.errors import AnsibleFilterError

from control.common import configurations
from control.common.plan import Plan
from control.runs.planning import plan_command
from control.runs.planning.plan_request import Inventory, OperatorRequest, Request
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
