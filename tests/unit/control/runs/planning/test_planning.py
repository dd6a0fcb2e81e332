"""What a plan warns about without refusing it."""

import pytest
from ansible.errors import AnsibleFilterError

from control.runs.planning import plan_command
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
    with pytest.raises(AnsibleFilterError, match=r"^d: in the inventory's group spares, but not in workers\. Fix: put it into both"):
        plan_command.hosts(inventory(["a", "b"], ["b", "d"]))
