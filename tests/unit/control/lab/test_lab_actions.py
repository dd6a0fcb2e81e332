"""The lab's actions on the control node: keys and files, commands, refusals, what a person reads."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from control.common import project
from control.common.task import Task
from control.lab import lab_inventory
from control.lab.tasks import command as lab_command
from control.lab.tasks import files as lab_files
from control.lab.tasks import plan as lab_plan
from control.lab.tasks import ready as lab_ready
from plugins.action.control import task_in
from tests.unit.refusals import refusal
from trainer.common.errors import LockstepError


def action(module, **arguments):
    return task_in("control.lab.tasks", module.__name__.rpartition(".")[2])(Task(arguments))


@pytest.fixture
def made(tmp_path):
    nodes = lab_inventory.nodes([0.38, 0.19], "lab", "10.1.0.0/24")
    return {
        "settings": {"nodes": 2, "cpus": [0.38, 0.19], "memory": 3 * 2**30, "link": "1gbit", "state": "present", "image": "present"},
        "engine": "podman",
        "place": str(tmp_path / "a place" / "lab"),
        "inventory": str(tmp_path / "a place" / "inventory" / "lab"),
        "nodes": nodes,
        "create": [node["container"] for node in nodes],
        "older": [],
    }


def test_files_are_written_once(made):
    assert action(lab_files, lab=made) == {"changed": True}
    made["create"] = []
    assert action(lab_files, lab=made) == {"changed": False}


def test_keys_are_private_and_differ_between_nodes(made):
    action(lab_files, lab=made)
    key = Path(made["inventory"]) / ".ssh" / "key"
    settings = [Path(made["place"]) / "nodes" / node["name"] / "settings" for node in made["nodes"]]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((settings[0] / "ssh_host_ed25519_key").stat().st_mode) == 0o600
    assert settings[0].joinpath("ssh_host_ed25519_key.pub").read_text() != settings[1].joinpath("ssh_host_ed25519_key.pub").read_text()
    assert settings[0].joinpath("authorized_keys").read_text() == key.with_name("key.pub").read_text()
    known = key.with_name("known_hosts").read_text().splitlines()
    assert known[1].split()[:3] == ["10.1.0.12", *settings[1].joinpath("ssh_host_ed25519_key.pub").read_text().split()[:2]]


def test_key_without_its_public_half_is_made_anew(made):
    action(lab_files, lab=made)
    public = Path(made["inventory"]) / ".ssh" / "key.pub"
    public.unlink()
    assert action(lab_files, lab=made)["changed"]
    derived = subprocess.run(["ssh-keygen", "-y", "-f", public.with_suffix("")], capture_output=True, text=True, check=True).stdout
    assert derived.split()[1] == public.read_text().split()[1]


def test_new_container_empties_its_brick_and_kept_keeps(made):
    action(lab_files, lab=made)
    bricks = [Path(made["place"]) / "nodes" / node["name"] / "brick" / "data" for node in made["nodes"]]
    for brick in bricks:
        brick.write_text("x")
    made["create"] = ["lab-node2"]
    action(lab_files, lab=made)
    assert [brick.exists() for brick in bricks] == [True, False]


def test_the_key_belongs_to_who_called_sudo(made, monkeypatch):
    given = []
    monkeypatch.setenv("SUDO_UID", "54321")
    monkeypatch.setattr(lab_files.os, "chown", lambda path, user, group: given.append((Path(path).name, user, group)))
    action(lab_files, lab=made)
    assert given == [("key", 54321, -1)]


def command(script, **more):
    return action(lab_command, argv=[sys.executable, "-c", script], doing="building", **more)


def test_a_command_gives_its_lines():
    assert command("print('changed')") == {"changed": True, "code": 0, "lines": ["changed"]}


def test_failing_command_is_one_line_with_mend():
    assert refusal(command, "import sys; print('a\\nError: not permitted\\nSTEP 3'); sys.exit(1)") == (
        "building failed: Error: not permitted (what is half made goes with ansible-playbook lab.yml -e state=absent)"
    )


def test_a_command_may_fail():
    assert command("raise SystemExit(3)", may_fail=True) == {"changed": False, "code": 3, "lines": []}


def test_a_command_is_ended_in_time():
    assert command("import time; time.sleep(60)", may_fail=True, seconds=0.3)["code"] == -9


def test_root_is_needed(monkeypatch):
    monkeypatch.setattr(lab_plan.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(lab_plan.command_line, "operator_options", lambda command, variables: {})
    assert refusal(action, lab_plan, prefix="lab", subnet="10.1.0.0/24", base_image="x", project=str(project.ROOT)).endswith(
        'run it as root, as in sudo env "PATH=$PATH" ansible-playbook lab.yml'
    )


def test_the_environment_of_another_project_is_refused(tmp_path):
    with pytest.raises(LockstepError, match="belongs to the project"):
        action(lab_plan, project=str(tmp_path))


def test_no_engine_and_no_apt(monkeypatch):
    monkeypatch.setattr(lab_plan.containers, "may_install", lambda release: False)
    assert refusal(lab_plan._packages, None, True) == lab_plan.NO_ENGINE


def test_machine_without_os_release_is_not_of_apt(monkeypatch):
    def missing():
        raise FileNotFoundError("/etc/os-release")

    monkeypatch.setattr(lab_plan.platform, "freedesktop_os_release", missing)
    assert refusal(lab_plan._packages, None, True) == lab_plan.NO_ENGINE


def seen(labs=(), networks=(), images=()):
    return lab_plan.Seen(None, list(labs), [], list(networks), list(images))


def labelled(name, owner):
    return {"container": name, "labels": {lab_inventory.OWNER_LABEL: owner, lab_inventory.PROJECT_LABEL: "/home/b"}}


def test_removal_takes_only_ours_and_says_so(tmp_path):
    mine = lab_inventory.owner(str(project.ROOT))
    networks = [{"name": "lab", "labels": {lab_inventory.OWNER_LABEL: mine}}, {"name": "lab2", "labels": {lab_inventory.OWNER_LABEL: "b"}}]
    gone = lab_plan._absent(seen([labelled("lab-node1", mine), labelled("lab2-node1", "b")], networks, ["i"]), images_too=True)
    assert (gone["remove"], gone["networks"], gone["images"], gone["kept"], gone["others"]) == (
        ["lab-node1"],
        ["lab"],
        [],
        ["i"],
        ["/home/b"],
    )
    plan = {"remove": ["a", "b"], "networks": ["n"], "images": [], "kept": ["i"], "others": [], "abandoned": ["The lab of /x"]}
    shown = removal(plan)
    assert shown.startswith("The lab is removed\n  gone  containers a, b; network n; inventory/lab; .lockstep/lab with all")
    assert "left  The lab of /x" in shown
    assert "kept  i, so that the next lab starts in seconds; -e image=absent removes it, too" in shown
    nothing = {key: [] for key in plan}
    assert removal(nothing).startswith("There is no lab\n  gone  inventory/lab; ")
    there, gone = ({lab_inventory.OWNER_LABEL: "b", lab_inventory.PROJECT_LABEL: str(tmp_path / name)} for name in ("there", "gone away"))
    (tmp_path / "there").mkdir()
    containers = [{"container": "one-node1", "labels": there}, {"container": "two-node1", "labels": gone}]
    networks = [{"name": "one", "labels": there}, {"name": "two", "labels": gone}, {"name": "podman", "labels": {}}]
    assert lab_inventory.abandoned("podman", containers, networks) == [
        f"The lab of {tmp_path}/gone away, a folder that is no more, goes with: "
        "podman rm --force --volumes two-node1; podman network rm two"
    ]
    assert lab_inventory.abandoned("docker", [], networks)[0].endswith("goes with: docker network rm two")


@pytest.mark.parametrize(("too", "images"), [(True, ["i"]), (False, [])])
def test_the_image_goes_only_when_asked(too, images):
    assert lab_plan._absent(seen(images=["i"]), too)["images"] == images


def removal(plan):
    return lab_ready.removed(Task({"lab": plan}))["show_last"]


def test_the_lab_is_shown_with_the_next_commands(made):
    shown = lab_ready._shown(made).splitlines()
    assert shown[2].split() == ["node1", "10.1.0.11", "0.38", "3g", "1gbit"]
    assert shown[3].split() == ["node2", "10.1.0.12", "0.19", "3g", "1gbit"]
    assert any(line.endswith("provision.yml") and "'" in line for line in shown), "a path with a space is quoted"
    assert shown[-1].split(maxsplit=2)[2] == "ansible-playbook lab.yml -e state=absent"


def test_a_silent_node_is_named(made, monkeypatch):
    monkeypatch.setattr(lab_ready, "_try", lambda node, user, inventory: "Connection refused" if node["name"] == "node2" else "")
    assert refusal(action, lab_ready, lab=made, user="lockstep", deadline=1) == (
        "no SSH on node2 within 1 s; node2 (10.1.0.12): Connection refused. "
        "Look inside: podman logs lab-node2; podman exec -it lab-node2 bash"
    )


def test_a_plan_names_only_what_changes(made):
    quiet = {**made, "packages": [], "start": [], "adjust": [], "remove": [], "image": {"builds": False}}
    assert lab_plan._shown({**quiet, "create": []}) == "Lab: all nodes are there"
    assert lab_plan._shown(quiet) == "Lab: what has to change\n  create  lab-node1, lab-node2"
