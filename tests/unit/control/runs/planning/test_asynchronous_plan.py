"""Asynchronous runs on the control node: who keeps weights, ports, what is shown."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from control.common import configurations
from control.runs.hosts import host_roles
from control.runs.hosts.inventory_hosts import check_hosts, tf_config
from control.runs.planning import parameter_servers, plan_command
from control.runs.results.run_folder import RunFolder
from control.runs.show import parameter_server_text
from trainer.common.errors import ConfigError
from trainer.common.files import write_json
from trainer.common.plain_values import to_plain
from trainer.rundir.launch_record import Host, server_endpoints

HOSTS = [Host(name=f"node{number}", address=f"10.0.0.{number}", port=12345, direct_port=13345) for number in (1, 2, 3)]


def config(**sections):
    return configurations.build({"strategy": {"name": "parameter_server"}, **sections})


def test_the_first_host_keeps_weights_unless_named():
    assert server_endpoints(parameter_servers.with_roles(HOSTS, [], [])) == {0: "10.0.0.1:12845"}
    assert server_endpoints(parameter_servers.with_roles(HOSTS, ["node3", "node2"], [])) == {1: "10.0.0.2:12845", 2: "10.0.0.3:12845"}
    assert server_endpoints(parameter_servers.with_roles(HOSTS, ["node9"], [])) == {0: "10.0.0.1:12845"}, "one that does not train is none"


def test_a_server_has_a_port_of_its_own():
    assert parameter_servers.with_roles(HOSTS, [], [])[0].ports == [12345, 13345, 12845]
    assert server_endpoints(HOSTS) == {}


def test_a_port_that_leaves_no_room_for_a_server_is_refused_with_the_fix():
    with pytest.raises(
        AnsibleFilterError, match=r"node1: server port 65800 is not a number from 1 to 65535; set worker_port at most 65035"
    ):
        check_hosts(parameter_servers.with_roles([replace(HOSTS[0], port=65300, direct_port=65400)], [], []))


def test_tf_config_follows_from_the_servers():
    assert tf_config(HOSTS, 1) == {
        "cluster": {"worker": ["10.0.0.1:12345", "10.0.0.2:12345", "10.0.0.3:12345"]},
        "task": {"type": "worker", "index": 1},
    }
    assert tf_config(parameter_servers.with_roles(HOSTS, [], []), 1)["task"] == {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    ("sections", "hosts", "why"),
    [
        ({}, HOSTS[:1], "workers=1: the first host hands out steps"),
        ({}, [HOSTS[0], replace(HOSTS[1], gpus=1)], "node2 has gpus=1"),
        ({"recovery": {"elastic": True}}, HOSTS, "recovery.elastic=True"),
        ({"recovery": {"standby": True}}, HOSTS, "recovery.standby=True"),
        ({"recovery": {"max_restarts": 0}}, HOSTS, "recovery.max_restarts=0"),
        ({"train": {"batch_sizes": "auto"}}, HOSTS, "train.batch_sizes=auto"),
        ({"reduction": {"name": "half"}}, HOSTS, "reduction.name=half"),
        ({"schedule": {"scaling": "linear"}}, HOSTS, "schedule.scaling=linear"),
    ],
)
def test_what_it_can_not_follow_is_refused_with_the_fix(sections, hosts, why):
    with pytest.raises(ConfigError, match=r"Fix: ") as refused:
        parameter_servers.check_settings(config(**sections), hosts)
    assert why in str(refused.value)


def test_a_model_with_a_step_of_its_own_is_refused():
    parameter_servers.check_model(None)
    parameter_servers.check_model({"own": [], "accumulates": False})
    with pytest.raises(ConfigError, match=r"a train_step of its own"):
        parameter_servers.check_model({"own": ["train_step"], "accumulates": False})
    with pytest.raises(ConfigError, match=r"optimizer has gradient_accumulation_steps; workers would write over each other's sums"):
        parameter_servers.check_model({"own": [], "accumulates": True})


def test_the_plan_names_who_does_what():
    shown = parameter_server_text.roles_text(parameter_servers.with_roles(HOSTS, ["node2", "node3"], []), 2)
    assert shown == "asynchronous, staleness 2: node1 hands out steps, node2, node3 compute, node2, node3 keep the weights"


APART = [
    Host(name=f"node{number}", address=f"10.0.0.{number}", port=12345, direct_port=13345, role=role)
    for number, role in ((4, "ps"), (5, "evaluator"))
]


def test_hosts_apart_keep_weights_or_evaluate():
    hosts = parameter_servers.with_roles(HOSTS, ["node4"], APART)
    assert host_roles.roles(hosts) == ["chief", "worker", "worker", "ps", "evaluator"]
    assert server_endpoints(hosts) == {3: "10.0.0.4:12845"}, "the first host need not have a server, too"
    assert parameter_server_text.roles_text(hosts, None) == (
        "asynchronous, any staleness: node1 hands out steps, node2, node3 compute, node4 keeps the weights, node5 evaluates snapshots"
    )
    assert tf_config(hosts, 4) == {
        "cluster": {
            "chief": ["10.0.0.1:12345"],
            "worker": ["10.0.0.2:12345", "10.0.0.3:12345"],
            "ps": ["10.0.0.4:12845"],
            "evaluator": ["10.0.0.5:12345"],
        },
        "task": {"type": "evaluator", "index": 0},
    }
    assert tf_config(hosts, 3)["task"] == {"type": "ps", "index": 0}
    both = parameter_servers.with_roles(HOSTS, ["node2", "node4"], APART)
    assert server_endpoints(both) == {1: "10.0.0.2:12845", 3: "10.0.0.4:12845"}
    assert tf_config(both, 3)["task"] == {"type": "ps", "index": 1}
    assert parameter_server_text.logs(both, "ps") == {"files": {"node2": "ps.log", "node4": "worker.log"}, "hosts": ["node2", "node4"]}
    assert parameter_server_text.logs(both, "evaluator") == {"files": {"node5": "worker.log"}, "hosts": ["node5"]}
    check_hosts(both)


@pytest.mark.parametrize(
    ("test_examples", "compiled", "why"),
    [
        (0, None, "the dataset has no test examples"),
        (9, {"validates": False}, "the model has no loss, nor a test_step of its own"),
    ],
)
def test_a_run_without_anything_to_evaluate_leaves_evaluators_out(test_examples, compiled, why):
    assert parameter_servers.useful(APART, test_examples, compiled) == (
        APART[:1],
        [f"{why}, so node5 (evaluators) take no part in this run"],
    )
    assert parameter_servers.useful(APART, 9, {"validates": True}) == (APART, [])
    assert parameter_servers.useful(APART[:1], 0, None) == (APART[:1], [])


def inventory(**groups):
    names = ["node1", "node2", "node3", "node4", "node5"]
    variables = {name: {"ansible_host": f"10.0.0.{number}", "worker_port": 12345} for number, name in enumerate(names, 1)}
    variables["node4"]["worker_role"] = "ps"
    return {"groups": {"workers": names, **groups}, "hostvars": variables}


def test_a_synchronous_run_has_no_evaluators():
    assert host_roles.evaluators(HOSTS) == []
    assert host_roles.evaluators(parameter_servers.with_roles(HOSTS, [], APART)) == ["node5"]


def test_the_inventorys_groups_say_who_trains_nothing():
    given = inventory(parameter_servers=["node2", "node4"], evaluators=["node5"])
    found = plan_command.inventory(given)
    assert [host.name for host in found.hosts] == ["node1", "node2", "node3"]
    assert found.servers == ["node2", "node4"]
    assert [(host.name, host.role) for host in found.apart] == [("node4", "ps"), ("node5", "evaluator")]


@pytest.mark.parametrize("other", ["spares", "parameter_servers"])
def test_an_evaluator_does_nothing_else(other):
    with pytest.raises(AnsibleFilterError, match=rf"node5: in the inventory's groups evaluators and {other}, .* Fix: take it out"):
        plan_command.inventory(inventory(evaluators=["node5"], **{other: ["node5"]}))


def test_an_evaluator_is_prepared_as_a_worker_is():
    with pytest.raises(AnsibleFilterError, match=r"node9: in the inventory's group evaluators, but not in workers. Fix: "):
        plan_command.inventory(inventory(evaluators=["node9"]))


def test_logs_of_a_role():
    hosts = parameter_servers.with_roles(HOSTS, ["node1", "node3"], [])
    assert parameter_server_text.logs(HOSTS, None) == {
        "files": dict.fromkeys(["node1", "node2", "node3"], "worker.log"),
        "hosts": ["node1", "node2", "node3"],
    }
    assert parameter_server_text.logs(hosts, "chief") == {"files": {"node1": "worker.log"}, "hosts": ["node1"]}
    assert parameter_server_text.logs(hosts, "worker") == {
        "files": dict.fromkeys(["node2", "node3"], "worker.log"),
        "hosts": ["node2", "node3"],
    }
    assert parameter_server_text.logs(hosts, "ps") == {"files": dict.fromkeys(["node1", "node3"], "ps.log"), "hosts": ["node1", "node3"]}
    with pytest.raises(
        ConfigError, match=r"role=evaluator: the run has no evaluator. Fix: put hosts into the inventory's group evaluators"
    ):
        parameter_server_text.logs(hosts, "evaluator")
    with pytest.raises(ConfigError, match=r"role=pss: unknown \(did you mean ps\?\)"):
        parameter_server_text.logs(hosts, "pss")
    with pytest.raises(ConfigError, match=r"role=ps: the run is synchronous"):
        parameter_server_text.logs(HOSTS, "ps")


def collected(folder: Path, *lines: dict[str, object]) -> RunFolder:
    hosts = parameter_servers.with_roles(HOSTS, [], [])
    write_json(folder / "cluster.json", {"hosts": to_plain(hosts)})
    path = folder / "workers" / "node1" / "metrics.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps({"t": 1.0, "kind": "staleness", **line}) + "\n" for line in lines))
    return RunFolder(folder)


def test_what_the_chief_recorded_is_shown_at_the_end(tmp_path):
    epochs = [{"epoch": epoch, "staleness": [0, 4], "calls": [6, 2], "by_worker": [6, 2]} for epoch in (1, 2)]
    assert parameter_server_text.result(collected(tmp_path, *epochs)) == [
        ("staleness", parameter_server_text.staleness({0: 12, 4: 4})),
        ("computed by", "node2 75%, node3 25%"),
        ("evaluated", ""),
    ]


@pytest.mark.parametrize(
    "line",
    [{"calls": [10**17]}, {"staleness": "\x1b[2J"}, {"by_worker": [-1]}, {"epoch": "1"}, {"staleness": [0.5]}, {"calls": [1] * 20_000}],
)
def test_a_record_that_is_none_is_left_out(tmp_path, line):
    sound = {"epoch": 1, "staleness": [0], "calls": [1], "by_worker": [1, 0]}
    assert parameter_server_text.result(collected(tmp_path, sound | line)) == []


def test_lists_of_other_lengths_break_nothing(tmp_path):
    odd = {"epoch": 1, "staleness": [0, 1, 2], "calls": [1], "by_worker": [1, 2, 3, 4, 5]}
    assert ("computed by", "node2 7%, node3 13%") in parameter_server_text.result(collected(tmp_path, odd))


def test_synchronous_run_has_no_staleness(tmp_path):
    assert parameter_server_text.result(RunFolder(tmp_path)) == []
    write_json(tmp_path / "cluster.json", {"hosts": to_plain(HOSTS)})
    assert parameter_server_text.result(RunFolder(tmp_path)) == []


def test_staleness_in_words():
    assert parameter_server_text.staleness({}) == "no call has ended"
    assert parameter_server_text.staleness({0: 50, 4: 49, 100: 1}) == (
        "median 0, 99% at most 4, largest 100 steps of others between reading and updating the weights"
    )


def test_each_host_has_its_roles():
    hosts = [Host(name=name, address=name, port=12345) for name in ("pi1", "pi2", "pi3")]
    assert host_roles.roles(hosts) == []
    assert host_roles.roles(parameter_servers.with_roles(hosts, [], [])) == ["chief, ps", "worker", "worker"]
    assert host_roles.roles(parameter_servers.with_roles(hosts, ["pi3"], [])) == ["chief", "worker", "worker, ps"]
