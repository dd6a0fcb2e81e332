"""TF_CONFIG, thread shares and session names from an inventory."""

import json
from pathlib import Path

import jinja2
import pytest
from ansible.errors import AnsibleFilterError
from ansible.plugins.filter.core import to_nice_json

from control.common.plan import Plan
from control.runs.hosts.inventory_hosts import check_absolute, check_hosts, cluster_hosts, gpu_share, rank, thread_share
from control.runs.tasks.launch import _with_answers
from trainer.common.plain_values import to_plain
from trainer.host.claims import session_name
from trainer.rundir.launch_record import Host

TEMPLATE = Path(__file__).resolve().parents[5] / "templates" / "tf_config.json.j2"
COURSE = [
    Host(name="node01", address="node01", port=12345),
    Host(name="node02", address="node02", port=23456),
]


def host(name, address="10.0.0.1", port=12345, **more):
    return Host(name=name, address=address, port=port, **more)


def tf_config(hosts, name):
    check_hosts(hosts)
    plan = Plan(run="one", folder=Path("one"), hosts=hosts)
    recorded = _with_answers(plan, {host.name: {"cores": 2} for host in hosts}, {}).hosts
    return next(host.tf_config for host in recorded if host.name == name)


def refusal(hosts):
    with pytest.raises(AnsibleFilterError) as caught:
        check_hosts(hosts)
    return str(caught.value)


def test_paths_on_hosts_are_absolute():
    check_absolute({"worker_root": "/home/pi/lockstep"})
    with pytest.raises(AnsibleFilterError) as caught:
        check_absolute({"worker_root": "/home/pi", "worker_caches": "caches"})
    assert str(caught.value) == "worker_caches=caches: expected an absolute path; write it out, as in worker_caches: /home/pi/lockstep"


@pytest.mark.parametrize("index", [0, 1])
def test_two_nodes_give_the_courses_files(index):
    assert tf_config(COURSE, COURSE[index].name) == {
        "cluster": {"worker": ["node01:12345", "node02:23456"]},
        "task": {"type": "worker", "index": index},
    }


@pytest.mark.parametrize("index", range(5))
def test_five_nodes_keep_the_inventorys_order(index):
    hosts = [host(f"pi{number}", f"10.0.0.{number}") for number in (1, 2, 3, 4, 5)]
    assert tf_config(hosts, f"pi{index + 1}") == {
        "cluster": {"worker": ["10.0.0.1:12345", "10.0.0.2:12345", "10.0.0.3:12345", "10.0.0.4:12345", "10.0.0.5:12345"]},
        "task": {"type": "worker", "index": index},
    }


def test_one_node_is_a_cluster_of_one():
    assert tf_config([host("only")], "only") == {"cluster": {"worker": ["10.0.0.1:12345"]}, "task": {"type": "worker", "index": 0}}


def test_order_is_the_lists_and_not_the_names():
    assert tf_config(list(reversed(COURSE)), "node02")["task"]["index"] == 0


def test_ipv6_addresses_stand_in_brackets():
    assert tf_config([host("a", "fd00::1")], "a")["cluster"]["worker"] == ["[fd00::1]:12345"]


def test_shared_place_names_both_hosts_and_the_mend():
    message = refusal([host("a"), host("b", "10.0.0.2"), host("c", port="12345")])
    assert message == "TF_CONFIG: a, c share 10.0.0.1:12345; give each a worker_address or worker_port of its own"


@pytest.mark.parametrize("address", [None, ""])
def test_host_without_address(address):
    assert refusal([host("a", address)]) == "TF_CONFIG: a has no address; set ansible_host or worker_address in the inventory"


@pytest.mark.parametrize("port", [0, -1, 65536, "http", "12 34", 1.5, None, ""])
def test_bad_port(port):
    assert refusal([host("a", port=port)]) == f"TF_CONFIG: a: port {port!r} is not a number from 1 to 65535; set worker_port"


@pytest.mark.parametrize("port", [1, "65535"])
def test_outermost_ports_are_allowed(port):
    assert tf_config([host("a", port=port)], "a")["cluster"]["worker"] == [f"10.0.0.1:{port}"]


def test_no_hosts():
    with pytest.raises(AnsibleFilterError, match="no hosts; put at least one in the inventory's group `workers`"):
        check_hosts([])


def test_address_is_by_worker_then_ansible_then_name():
    variables = {
        "a": {"worker_address": "10.1.0.1", "ansible_host": "a.lan", "worker_port": 2000},
        "b": {"ansible_host": "b.lan", "worker_role": "chief", "worker_direct_port": 7},
        "c": {},
    }
    assert to_plain(cluster_hosts(variables, ["c", "a", "b"])) == [
        {"name": "c", "address": "c", "port": 12345, "direct_port": 13345},
        {"name": "a", "address": "10.1.0.1", "port": 2000, "direct_port": 3000},
        {"name": "b", "address": "b.lan", "port": 12345, "direct_port": 7, "role": "chief"},
    ]


def test_a_direct_port_is_nobody_elses():
    hosts = cluster_hosts({"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.1", "worker_port": 13345}}, ["a", "b"])
    assert (
        refusal(hosts)
        == "TF_CONFIG: a, b share 10.0.0.1:13345; give each a worker_address or worker_port and worker_direct_port of its own"
    )
    hosts = cluster_hosts({"a": {"worker_port": 60_000}, "b": {"worker_port": 65_000}}, ["a", "b"])
    assert refusal(hosts) == "TF_CONFIG: b: direct port 66000 is not a number from 1 to 65535; set worker_direct_port"


def test_rank_is_the_place_in_the_list():
    assert [rank(to_plain(COURSE), name) for name in ("node01", "node02")] == [0, 1]


@pytest.mark.parametrize(
    ("addresses", "cores", "threads"),
    [
        (["x"] * 5, 2, 1),
        (["x"] * 2, 8, 4),
        (["x"] * 3, 8, 2),
        (["x", "y"], 8, 8),
        (["x", "y", "y"], "4", 4),
    ],
)
def test_thread_share(addresses, cores, threads):
    hosts = [host(f"h{number}", address) for number, address in enumerate(addresses)]
    assert thread_share(hosts, "h0", cores) == threads


def test_workers_of_one_machine_take_own_gpus():
    hosts = [host("a", gpus=2), host("b", port=2, gpus=2), host("c", "10.0.0.2", gpus=2), host("d", "10.0.0.3")]
    assert [gpu_share(hosts, name) for name in "abcd"] == ["0,1", "2,3", "0,1", ""]


def test_gpus_come_from_the_inventory():
    actual = cluster_hosts({"a": {"gpus": "2"}, "b": {"gpus": 0}}, ["a", "b"])
    assert [one.gpus for one in actual] == [2, 0]
    with pytest.raises(AnsibleFilterError, match="gpus=all of a: expected the number of GPUs its worker trains on, a whole number from 0"):
        cluster_hosts({"a": {"gpus": "all"}}, ["a"])


@pytest.mark.parametrize(("run", "name"), [("run1", "run1-w3"), ("v1.2.x", "v1+2+x-w3")])
def test_session_name_has_no_dots(run, name):
    assert session_name(run, 3) == name


def test_session_names_of_different_runs_differ():
    assert session_name("a.b", 0) != session_name("a-b", 0)


def test_template_is_one_line():
    assert len(TEMPLATE.read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.parametrize("name", ["node01", "node02"])
def test_rendered_template_is_the_dict_as_json(name):
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters["to_nice_json"] = to_nice_json
    worker_host = {"tf_config": tf_config(COURSE, name)}
    rendered = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(worker_host=worker_host)
    assert json.loads(rendered) == tf_config(COURSE, name)
