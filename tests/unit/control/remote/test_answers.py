"""What a host in another's hands answers to a module: no order is obeyed, no field is believed that the module never returns."""

import copy
import functools
import json
import re
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins import action as actions

from control.common.plan import Plan
from control.doctor.checks import across, report
from control.remote import answers, modules
from control.remote.answers import believed
from control.runs.tasks import launch as record
from plugins.shared.guard_answers import ORDERS, guard_ansible, refuse_orders
from tests.unit import doctor_samples as samples
from tests.unit.refusals import refusal
from trainer.common.errors import LockstepError

MODULES = sorted(path.stem for path in answers.MODULES.glob("*.py"))
DIGEST = "70ce" * 16
NAMES = samples.NAMES[:3]
HOSTILE = (
    *(None, True, False, -1, 0, 1.5, 10**30, 1e29, "", "1", "x" * 5000, "\x1b[2J", "a\nb", "\0", "$(id)", "{{ lookup('pipe', 'id') }}"),
    *("../../x", "3", "3.", "9" * 5000 + ".1", [], [None], [[]], ["a"] * 20_000, {}, {"a": {}}, {"error": "x"}, {"error": []}),
)
ORDERS_GIVEN = {
    "add_host": {"host_name": "node02", "host_vars": {"ansible_ssh_common_args": "-o ProxyCommand=id"}},
    "add_group": "workers",
    "ansible_facts": {"plan": {"folder": "/root"}},
    "ansible_stats": {"data": {"a": 1}},
    "_ansible_notify": ["x"],
    "_ansible_no_log": True,
    "launch_begun": {"run": "x", "folder": "/", "hosts": []},
    "show_last": "run this",
    "if_interrupted": "x",
    "before_start": "x",
    "run_under_way": "x",
}


def claim():
    """What `worker_claim` answers on a host that is ready."""
    facts = {
        "python": "3.11.2",
        "packages": {"keras": "3.15.1"},
        "executable": "/p",
        "machine": "aarch64",
        "cpu": "Cortex",
        "cpus": 4,
        "cores": 4,
    }
    states = {"newest_state": "step-12.npz", "newest_memory": "", "damaged": [{"kind": "state", "name": "step-13.npz", "reason": "torn"}]}
    return {"changed": False, "running": False, "identity": "", "holder": None, "facts": facts, **states}


def probe(name):
    """What `host_probe` answers on a healthy host."""
    healthy = samples.healthy(name)
    own = {key: value for key, value in healthy.items() if key not in ("before", "after")}
    tokens = [{"path": samples.TOKEN, "bytes": 1, "sha256": DIGEST}, {"path": samples.MANIFEST, "error": "missing"}]
    ports = {name: {"number": number, "state": "free"} for name, number in (("direct_port", 13345), ("server_port", 12845))}
    return {"changed": False, "facts": {**own, "gpus": ["a"], **ports, "tokens": tokens}}


def network(name):
    """What `network_probe` answers there."""
    answer = samples.network_of(NAMES)[name]
    pairs = {other: {**pair, "rtt_min_ms": 0.2} for other, pair in answer["pairs"].items()}
    pairs[NAMES[-2]] = {"reachable": False, "kind": "timeout", "error": "no answer", "port": 1} if name != NAMES[-2] else pairs.get(name)
    return {
        "changed": False,
        **answer,
        "pairs": {key: pair for key, pair in pairs.items() if pair},
        "interfaces": {"eth0": 1500},
        "seconds": 2.5,
    }


def spoilt(answer):
    """The answer with each of its values, and each of its keys, in turn replaced by a hostile one."""

    def places(value, path=()):
        yield path
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
            yield from places(inner, (*path, key))

    for path in [one for one in places(answer) if one]:
        for value in (*HOSTILE, KeyError):
            changed = copy.deepcopy(answer)
            place = changed
            for key in path[:-1]:
                place = place[key]
            if value is KeyError:
                del place[path[-1]]
                if isinstance(place, dict):
                    place["__class__"] = 1
            else:
                place[path[-1]] = value
            yield changed


def credible(module, answer):
    """The answer as believed; None if it is refused."""
    try:
        return believed(module, json.dumps(answer), {"state": "query"})
    except LockstepError:
        return None


@pytest.mark.parametrize("name", ORDERS_GIVEN)
@pytest.mark.parametrize("module", MODULES)
def test_no_module_of_ours_gives_an_order(module, name):
    assert not any(ORDERS.fullmatch(field) for field in answers._checks(module) if field != "show")
    with pytest.raises(LockstepError, match=f"{module}: the host answers {name}="):
        believed(module, json.dumps({"changed": True, name: ORDERS_GIVEN[name]}))


@pytest.mark.parametrize("name", ORDERS_GIVEN)
def test_no_module_of_ansibles_gives_an_order(name):
    with pytest.raises(AnsibleActionFail, match=f"answers {name}=..., which is refused"):
        refuse_orders({"changed": True, name: ORDERS_GIVEN[name]})
    refuse_orders(
        {"changed": True, "path": "/a", "state": "absent", "stat": {"exists": True}, "invocation": {}, "diff": {}, "warnings": []}
    )


@pytest.mark.parametrize(
    "path", ["/bin/sh -c 'touch /tmp/x' #", "/usr/bin/env sh", "python3", "/a;id", "/a$(id)", "/a\nb", "/{{ 1 }}", "/" + "x" * 300]
)
def test_a_host_names_no_command_as_its_python(path):
    """Ansible discovers it, and uses it on all hosts after a task that runs once."""
    guard_ansible()
    output = f"FOUND\n{path}\nENDFOUND"
    asked = SimpleNamespace(_low_level_execute_command=lambda *_, **__: {"stdout": output})
    discover = functools.partial(actions.discover_interpreter, asked, "python", "auto_silent", {"inventory_hostname": "a"})
    if path.startswith("/") and "\n" not in path:
        with pytest.raises(AnsibleActionFail, match="which is no path"):
            discover()
    else:
        assert discover() in ("/usr/bin/python3", "/a")
    output = "FOUND\n/usr/bin/python3.12\nENDFOUND"
    assert discover() == "/usr/bin/python3.12"


def test_action_that_runs_module_refuses_order():
    def execute(command, in_data, executable):
        mark = re.search(r"lean-[0-9a-f]{16}:", zlib.decompress(in_data).decode())[0]
        return {"rc": 0, "stderr": "", "stdout": f"{mark}{json.dumps({'written': [], **ORDERS_GIVEN})}\n"}

    action = SimpleNamespace(_low_level_execute_command=execute, _templar=SimpleNamespace(template=str), task_vars={})
    with pytest.raises(AnsibleActionFail, match="worker_files: the host answers add_host="):
        modules.execute(action, "worker_files", {"files": []})


@pytest.mark.parametrize(
    ("module", "answer"), [("worker_claim", claim()), ("host_probe", probe(NAMES[0])), ("network_probe", network(NAMES[0]))]
)
def test_an_honest_answer_is_believed(module, answer):
    assert believed(module, json.dumps(answer)) == answer
    assert believed(module, '{"failed": true, "msg": "no"}') == {"failed": True, "msg": "no"}


@pytest.mark.parametrize("written", ["", "[]", "1", "{", '{"changed": NaN}', "[" * 100_000, '{"msg": "' + "x" * answers.LARGEST + '"}'])
def test_what_is_no_answer_is_refused(written):
    with pytest.raises(LockstepError):
        believed("worker_files", written)


def test_field_that_this_machine_counts_on_is_there():
    short = json.dumps({"changed": False})
    for module in ("host_probe", "network_probe"):
        with pytest.raises(LockstepError, match=r"answer lacks (facts|pairs)"):
            believed(module, short, {})
    with pytest.raises(LockstepError, match="worker_claim: the host's answer lacks running"):
        believed("worker_claim", short, {"state": "query"})
    assert believed("worker_claim", short, {"state": "present"}) == {"changed": False}
    assert believed("worker_claim", short) == {"changed": False}


def test_refusal_is_one_short_line_whatever_host_answers():
    message = refusal(believed, "worker_files", json.dumps({"\x1b[2J\n" * 99: "\x1b]0;evil\x07" * 9999}))
    assert message.isprintable()
    assert len(message) < 400


def test_claim_facts_change_nothing_else_of_a_record():
    for name, value in (("name", "../x"), ("address", "1.2.3.4"), ("tf_config", {}), ("environment", {"LD_PRELOAD": "/x"}), ("threads", 1)):
        answer = claim()
        answer["facts"][name] = value
        assert credible("worker_claim", answer) is None


@pytest.mark.parametrize("run", ["x; id", "$(id)", "../x", "a b", "", "x\n", "{{ x }}", "-e"])
def test_claim_of_no_run_stays_out_of_commands(run):
    held = {"kind": "port", "number": 1, "session": "s"}
    assert credible("worker_claim", {**claim(), "holder": {**held, "run": run}}) is None
    assert credible("worker_claim", {**claim(), "holder": {**held, "run": "fine"}})


def test_no_claim_gives_a_traceback():
    passed = 0
    for answer in spoilt({**claim(), "holder": {"kind": "port", "number": 1, "run": "other", "session": "s"}}):
        if held := credible("worker_claim", answer):
            passed += 1
            held["holder"] = held["holder"] or {"kind": "port", "number": 1, "process": ""}
            with pytest.raises(LockstepError, match="on pi"):
                record._check_claims(Plan(run="mine", folder=Path("mine")), {"pi": held})
    assert passed


def test_no_facts_of_host_give_doctor_traceback():
    hosts, passed, every = samples.inventory(NAMES), 0, 0
    honest = {name: {**probe(name)["facts"], "before": 1000.0, "after": 1001.0} for name in NAMES}
    for answer in spoilt(probe(NAMES[1])):
        every += 1
        if seen := credible("host_probe", answer):
            passed += 1
            facts = honest | {NAMES[1]: {**seen["facts"], "before": 1000.0, "after": 1001.0}}
            report.render(across.examine(hosts, facts, None, samples.NEED), verbose=True)
    assert 0 < passed < every


def test_no_measurement_of_host_gives_doctor_traceback():
    hosts, passed, every = samples.inventory(NAMES), 0, 0
    facts = {name: {**probe(name)["facts"], "before": 1000.0, "after": 1001.0} for name in NAMES}
    honest = {name: network(name) for name in NAMES}
    for answer in spoilt(network(NAMES[1])):
        every += 1
        if seen := credible("network_probe", answer):
            passed += 1
            report.render(across.examine(hosts, facts, honest | {NAMES[1]: seen}, samples.NEED), verbose=True)
            report.matrix(honest | {NAMES[1]: seen})
    assert 0 < passed < every
