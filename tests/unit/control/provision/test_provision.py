"""Provisioning before the first change: what is typed, what the inventory says, what a host is, what is refused."""

import dataclasses
import importlib.util
import os
import platform
import re
import subprocess
import sys
from types import SimpleNamespace

import lockstep_files
import pytest
import yaml
from ansible.errors import AnsibleError, AnsibleFilterError
from ansible.plugins.action import ActionBase

from control.common.task import Task
from control.provision import findings, wheels
from control.provision.tasks import check as provision_check
from control.provision.tasks import plan as provision_plan
from control.provision.tasks import report as provision_report
from control.provision.tasks import settings as provision_settings
from plugins.action import provision_sudo
from tests.unit.conftest import ROOT
from trainer.common.errors import ConfigError
from trainer.common.plain_values import from_plain
from trainer.rundir.launch_record import Host

GOOD = {
    "os_PRETTY_NAME": '"Debian GNU/Linux 12 (bookworm)"',
    "machine": "aarch64",
    "bits": "64",
    "libc": "glibc 2.36",
    "user": "pi",
    "uid": "1000",
    "apt": "yes",
    "systemd": "yes",
    "sudo": "yes",
    "root_mb": "9000",
    "root": "possible",
}


def look(python="/usr/bin/python3 3.11.2 True", without=(), **changed):
    lines = [f"{key}={value}" for key, value in {**GOOD, **changed}.items() if key not in without]
    return findings.Look.of("\n".join([*lines, f"python={python}"] if python else lines))


def refused(actual, **options):
    return actual.refusals("pi3", **{"needs_root": True, "password": False, "brick": True, "need_mb": 2600, **options})


def members(count=5):
    return [{"name": f"pi{number}", "address": f"10.0.0.{number}", "port": 12345} for number in range(1, count + 1)]


SIX = [*members(2), {"name": "pi6", "address": "fd00::6", "port": 12345}]


def message(function, *arguments):
    with pytest.raises(ConfigError) as caught:
        function(*arguments)
    return str(caught.value)


def test_good_host_is_accepted_with_its_target():
    """A good host is not refused and its target is known."""
    actual = look()
    assert refused(actual) == []
    assert (actual.target.key, actual.target.python, actual.target.glibc) == ("aarch64-cp311", "3.11.2", 36)
    assert actual.fact()["system"] == "Debian GNU/Linux 12 (bookworm)"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"machine": "armv7l"}, "pi3: machine armv7l: TensorFlow is built for x86_64 and aarch64 only; use a host of that kind"),
        ({"bits": "32"}, "pi3: Debian GNU/Linux 12 (bookworm) is a 32-bit system: TensorFlow has no build for it; install the 64-bit one"),
        (
            {"without": ["apt"], "os_PRETTY_NAME": '"Fedora Linux 41"'},
            "pi3: Fedora Linux 41 has no apt; provisioning knows Debian, Ubuntu and Raspberry Pi OS. "
            "Prepare it by hand (docs/how-to/cluster.md)",
        ),
        (
            {"python": "/usr/bin/python3 3.9.2 True"},
            "pi3: no Python from 3.11 to 3.13 (/usr/bin/python3 is 3.9.2). Use Debian 12, Ubuntu 24.04 or a newer one, "
            "install one beside it (sudo apt-get install python3.11, where there is such a package), "
            "or name one: -e python_env_interpreter=PATH",
        ),
        (
            {"sudo": "password"},
            "pi3: pi can't use sudo without a password; give it with -K, or allow it there: "
            "echo 'pi ALL=(ALL) NOPASSWD: ALL' | sudo tee /etc/sudoers.d/pi",
        ),
        ({"sudo": "missing"}, "pi3: there is no sudo, and pi is not root; install sudo there, or log in as root: -e ansible_user=root"),
        (
            {"root_mb": "1200"},
            "pi3: 1,200 MB are free for worker_root; the Python environment needs 2,600 MB. Free some, or set worker_root to another disk",
        ),
        ({"without": ["systemd"]}, "pi3: systemd does not run there, and the distributed file system's services need it"),
    ],
    ids=["machine", "32-bit", "no apt", "old Python", "sudo's password", "no sudo", "disk", "systemd"],
)
def test_what_a_host_is_refused_for(changed, problem):
    assert refused(look(**changed)) == [problem]


@pytest.mark.parametrize(
    ("changed", "users"), [({"root_uid": "1007"}, ["1000"]), ({"uid": "0", "root_uid": "1007"}, ["0", "1007"]), ({"uid": "0"}, ["0"])]
)
def test_who_may_train_on_a_host(changed, users):
    assert look(**changed).fact()["users"] == users


def test_gpus_make_another_environment_where_there_is_one():
    actual = look(machine="x86_64")
    assert actual.fact()["target"] == {"machine": "x86_64", "python": "3.11.2", "glibc": 36, "gpu": False}
    actual.gpus = 2
    assert refused(actual) == []
    assert (actual.fact()["wheels"], actual.fact()["target"]["gpu"]) == ("x86_64-cp311-gpu", True)
    pi = look()
    pi.gpus = 1
    assert refused(pi) == ["pi3: gpus=1: TensorFlow with CUDA is built for x86_64 only, and this is aarch64; take gpus out there"]


@pytest.mark.parametrize(
    ("python", "shown"),
    [
        ("", "there is none"),
        ("/usr/bin/python3 3.14.0 True", "python3 is 3.14.0"),
        ("/usr/bin/perl", "perl is no Python"),
        ("/usr/bin/python3 3.11.2 False", "(/usr/bin/python3 is 3.11.2, 32-bit)"),
    ],
)
def test_pythons_that_do_not_do(python, shown):
    (problem,) = refused(look(python=python))
    assert shown in problem


def test_the_first_python_that_does_is_taken():
    actual = findings.Look.of("machine=x86_64\npython=/usr/bin/python3 3.10.12 True\npython=/usr/bin/python3.12 3.12.3 True\n")
    assert actual.python == ("/usr/bin/python3.12", "3.12.3")


@pytest.mark.parametrize(
    ("actual", "options"),
    [
        (look(sudo="password"), {"password": True}),
        (look(sudo="missing"), {"needs_root": False}),
        (look(sudo="root", user="root"), {}),
        (look(root_mb="3", venv="yes"), {}),
        (look(without=["systemd"]), {"brick": False}),
    ],
    ids=["password given", "root not needed", "root", "environment is there", "no services"],
)
def test_what_does_not_matter_is_not_refused(actual, options):
    assert refused(actual, **options) == []


def test_the_user_must_have_one_number_everywhere():
    assert findings.shared_refusals({"pi1": look(), "pi2": look()}) == []
    (problem,) = findings.shared_refusals({"pi1": look(), "pi2": look(uid="1001"), "pi3": look()})
    assert problem.startswith("the user that trains has different numbers: 1000 on pi1, pi3; 1001 on pi2. On a shared file system")


def test_one_home_for_several_hosts_is_refused():
    """One home for several hosts is no place for their workers."""
    own = {"root_path": "/home/pi/lockstep", "root_on": "ext4 /dev/sda1"}
    home = {"root_path": "/home/pi/lockstep", "root_on": "nfs4 files:/home"}
    assert findings.folder_refusals({"pi1": look(**own), "pi2": look(**own), "pi3": look(**home)}) == []
    assert findings.folder_refusals({"pi1": look(**home), "pi2": look(**own), "pi3": look(**home)}) == [
        "pi1, pi3 would keep their workers in one folder, /home/pi/lockstep (nfs4 of files:/home); "
        "set worker_root to a local disk, or to a folder that has {{ inventory_hostname }} in its path"
    ]


def test_nothing_is_removed_below_a_run():
    running = findings.Look.of("\n".join([*(f"{key}={value}" for key, value in GOOD.items()), "session=my-run-w0-abc"]))
    assert running.removal_refusals("pi3", False, "mounted") == [
        "pi3: my-run-w0-abc is running there; stop it first: ansible-playbook stop.yml"
    ]
    assert look().removal_refusals("pi3", False, "glusterfs") == []


@pytest.mark.parametrize(
    ("changed", "kind", "needed"),
    [
        ({}, "mounted", False),
        ({}, "glusterfs", True),
        ({"firewall": "yes"}, "mounted", True),
        ({"record": "whole"}, "mounted", True),
        ({"resumes": "yes"}, "mounted", True),
    ],
)
def test_removing_takes_root_only_for_what_root_made(changed, kind, needed):
    problem = look(sudo="password", **changed).removal_refusals("pi3", False, kind)
    assert [line.startswith("pi3: pi can't use sudo without a password") for line in problem] == ([True] if needed else [])


@pytest.mark.parametrize(
    ("changed", "kind", "firewall", "needed"),
    [
        ({}, "mounted", False, False),
        ({"record": "whole"}, "mounted", False, False),
        ({"record": "pending"}, "mounted", False, True),
        ({"firewall": "yes"}, "mounted", False, True),
        ({"lacks": "tmux"}, "mounted", False, True),
        ({"root": "foreign"}, "mounted", False, True),
        ({}, "mounted", True, True),
        ({}, "glusterfs", False, True),
    ],
)
def test_what_takes_root(changed, kind, firewall, needed):
    assert look(**changed).needs_root(kind, firewall) is needed


@pytest.mark.parametrize("sudo", ["yes", "root"])
def test_refused_sudo_password_says_where_one_is_needed(sudo):
    """A password that sudo does not take is told where one is needed."""
    actual = look(sudo="password")
    actual.sudo_reason = "Incorrect sudo password"
    assert refused(actual, password=True) == [
        "pi3: sudo does not take the password given for pi (Incorrect sudo password); give the right one with -K; "
        "a user who may not use sudo at all is let in by root: usermod -aG sudo pi"
    ]
    assert refused(actual, password=True, needs_root=False) == []
    assert refused(look(sudo=sudo), password=True) == []
    assert refused(look(sudo="missing"), password=True)[0].startswith("pi3: there is no sudo")


class Sudo(provision_sudo.ActionModule):
    """The action on a connection that answers as told."""

    def __init__(self, answer):
        self._task, self.answer = SimpleNamespace(args={}, async_val=0, check_mode=False, diff=False), answer

    def _low_level_execute_command(self, command, executable):
        assert (command, executable) == ("true", "/bin/sh")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"rc": 0, "stdout": "a lecture\n", "stderr": ""}, ""),
        ({"rc": 1, "stdout": "\r\npi is not in the sudoers file.\r\n", "stderr": ""}, "pi is not in the sudoers file."),
        ({"rc": 1, "stdout": "", "stderr": ""}, "exit code 1"),
        (AnsibleError("Incorrect sudo password"), "Incorrect sudo password"),
    ],
)
def test_what_sudo_says_is_a_finding(answer, problem, monkeypatch):
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    assert Sudo(answer).run() == {"reason": problem}


def test_without_uv_or_venv_root_is_needed():
    """Without uv a python that makes no environments takes root."""
    good, wheels = {**look().fact(), "root_refused": "no sudo"}, {"aarch64-cp311": {"uv": False}}
    (problem,) = findings.venv_refusals({"pi3": good}, wheels)
    assert problem == (
        "pi3: uv is not available for it, and its Python 3.11.2 makes no environments without Debian's package python3.11-venv, "
        "which takes root to install: no sudo"
    )
    able = {**look(python="/usr/bin/python3 3.11.2 True True").fact(), "root_refused": "no sudo"}
    assert findings.venv_refusals({"pi3": able, "pi4": {**good, "root_refused": ""}}, wheels) == []
    assert findings.venv_refusals({"pi3": good}, {"aarch64-cp311": {"uv": True}}) == []


def test_unreachable_host_is_one_line_with_mend():
    assert provision_check._unreachable("pi3", "timed\n out") == (
        "pi3: can't be reached (timed out); see that it is on and that `ssh` gets there, then run this again"
    )


@pytest.fixture
def seen(tmp_path):
    """What the script sees on this very machine."""

    def run(root, packages=(), pythons=(sys.executable,)):
        script = findings.look_script(str(root), packages, pythons, str(tmp_path / "packages.json"))
        done = subprocess.run(["/bin/sh", "-s"], input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0
        return findings.Look.of(done.stdout)

    return run


def test_the_script_sees_this_machine(seen, tmp_path):
    actual = seen(tmp_path / "it's a" / "new folder", ["no-such-package", "dpkg"], ["no-such-python", sys.executable])
    assert actual.values["machine"] == platform.machine()
    assert actual.values["uid"] == str(os.getuid())
    assert actual.values["root"] == "possible"
    assert "root_uid" not in actual.values
    assert int(actual.values["root_mb"]) > 0
    assert actual.pythons == [(sys.executable, platform.python_version(), True)]
    assert actual.target.glibc == int(platform.libc_ver()[1].split(".")[1])
    assert "no-such-package" in actual.lacks
    assert "dpkg" not in actual.lacks
    assert not (tmp_path / "it's a").exists()


def test_the_script_sees_whose_the_folder_is(seen, tmp_path):
    (tmp_path / "venv").mkdir()
    assert seen(tmp_path).values["root"] == "own"
    assert seen(tmp_path).values["root_uid"] == str(os.getuid())
    assert "venv" not in seen(tmp_path).values
    (tmp_path / "venv" / "lockstep.stamp").touch()
    assert seen(tmp_path).values["venv"] == "yes"


def test_the_script_sees_whether_this_python_makes_environments(seen, tmp_path):
    assert (seen(tmp_path).venvs == [sys.executable]) is (importlib.util.find_spec("ensurepip") is not None)


def test_the_script_sees_an_installation_that_was_killed(seen, tmp_path):
    record = str(tmp_path / "packages.json")
    assert "record" not in seen(tmp_path / "root").values
    lockstep_files.Record(record).write({"installed": ["a"], "pending": ["b"]})
    assert seen(tmp_path / "root").values["record"] == "pending"
    lockstep_files.Record(record).write({"installed": ["pending"]})
    assert seen(tmp_path / "root").values["record"] == "whole"


def test_only_what_is_ours_is_given_away(seen, tmp_path, monkeypatch):
    """Another user's number stands in for files of another user."""
    root = tmp_path / "root"
    for name in ("venv", "dfs", ".ssh"):
        (root / name).mkdir(parents=True)
    (root / "runs").symlink_to("/")
    (root / ".lock").touch()
    script = (
        findings.look_script(str(root), [], [], "/none")
        .replace('! -uid "$(id -u)"', "-uid $(id -u)")
        .replace('[ "$(id -u)" = 0 ]', "false")
    )
    done = subprocess.run(["/bin/sh", "-s"], input=script, capture_output=True, text=True, check=True)
    actual = findings.Look.of(done.stdout)
    assert (actual.values["root"], actual.foreign) == ("foreign", [f"{root}/venv", f"{root}/.lock"])
    tasks = yaml.safe_load((ROOT / "roles" / "host" / "tasks" / "main.yml").read_text())
    assert not any("recurse" in task.get("ansible.builtin.file", {}) for task in tasks)


def test_names_are_resolved_here_and_loopback_is_refused(monkeypatch):
    hosts = {"pi1": ["10.0.0.1"], "pi2": ["10.0.0.2", "fe80::2"], "pi3": ["127.0.1.1"]}

    def getaddrinfo(name, port, **options):
        if name not in hosts:
            raise OSError("Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in hosts[name]]

    monkeypatch.setattr(provision_plan.socket, "getaddrinfo", getaddrinfo)
    assert provision_plan._addresses(["pi1", "pi2"]) == ["10.0.0.1", "10.0.0.2", "fe80::2"]
    assert message(provision_plan._addresses, ["pi3"]) == (
        "pi3 resolves to 127.0.1.1 on this machine, which no other host can reach; set worker_address to its address"
    )
    assert message(provision_plan._addresses, ["pi9"]).startswith("pi9 does not resolve on this machine (Name or service not known); set")


def test_two_hosts_with_one_address_are_refused():
    twice = [*(from_plain(Host, one) for one in members(2)), Host(name="pi9", address="10.0.0.1", port=12346)]
    assert message(provision_plan._check_members, twice, "present") == (
        "pi1, pi9 have one address, 10.0.0.1; every host needs its own: fix ansible_host or worker_address in the inventory"
    )
    assert message(provision_plan._check_members, [], "absent").startswith("no hosts; put at least one")


def test_port_that_is_no_number_is_refused():
    """A port that is no number is refused before the firewall needs it."""
    right, wrong = (from_plain(Host, one) for one in members(2))
    hosts = [right, dataclasses.replace(wrong, port="12345x", direct_port="12345x")]
    provision_plan._check_members(hosts, "absent")
    with pytest.raises(AnsibleFilterError, match=r"pi2: port '12345x' is not a number from 1 to 65535; set worker_port"):
        provision_plan._check_members(hosts, "present")


def test_what_inventory_with_wrong_port_made_stays_removable():
    plan = {"state": "absent", "members": [{**members(1)[0], "port": "12345x"}], "kind": "mounted", "firewall": True, "addresses": []}
    facts = provision_settings.firewall(Task({"plan": plan, "allow": [], "users": []}))["ansible_facts"]
    assert facts["provision"]["ports"] == []


@pytest.mark.parametrize(
    ("kind", "path", "hosts", "problem"),
    [
        ("glusterfs", "/mnt/lockstep", members(), None),
        ("mounted", "/mnt/lockstep", SIX, None),
        ("local", "/srv/data", members(1), None),
        ("nfs", "/mnt/lockstep", members(), "dfs_kind=nfs: expected one of glusterfs, mounted, local"),
        ("glusterfs", "here", members(), "dfs_path=here: expected an absolute path, the same on every host"),
        (
            *("local", "/mnt/lockstep", members()),
            "dfs_kind=local: 5 hosts can't share a folder of one of them; set dfs_kind to glusterfs (provision.yml makes it) "
            "or mounted (a path that is shared already: NFS, CephFS, Lustre, ...)",
        ),
        (
            *("glusterfs", "/mnt/lockstep", SIX),
            "dfs_kind=glusterfs: pi6 has the address fd00::6; a GlusterFS volume made here takes IPv4 addresses or names; "
            "set worker_address to one, or share a folder in another way (dfs_kind: mounted)",
        ),
    ],
)
def test_settings_of_the_file_system_are_checked(kind, path, hosts, problem):
    settings = {"kind": kind, "path": path}
    if problem is None:
        assert provision_settings._check_kind(settings, hosts) == kind
    else:
        assert message(provision_settings._check_kind, settings, hosts) == problem


@pytest.mark.parametrize(
    ("layout", "replicas", "problem"),
    [
        ("raid", 3, "dfs_layout=raid: expected one of replica, distributed"),
        ("replica", 1, "dfs_replicas=1: a replicated volume keeps every file at least twice; set 2 or 3"),
    ],
)
def test_a_volume_that_can_not_be_is_refused(layout, replicas, problem):
    assert message(provision_settings._volume, members(), "lockstep", "/b", layout, replicas) == problem


@pytest.mark.parametrize(
    ("root", "name", "folder"),
    [("/srv/lockstep", "dfs_brick", "/srv/lockstep/dfs"), ("/mnt/dfs/me", "dfs_path", "/mnt/dfs"), ("/srv/x/", "dfs_path", "/srv/./x")],
)
def test_workers_folder_and_shared_one_lie_apart(root, name, folder):
    assert message(provision_settings._check_apart, "pi1", root, {name: folder}) == (
        f"pi1: worker_root={root} and {name}={folder}: one must not lie in the other; set one of them to a folder of its own"
    )
    provision_settings._check_apart("pi1", "/srv/lockstep", {"dfs_brick": "/srv/lockstep-brick/dfs", "dfs_path": "/mnt/lockstep"})


@pytest.mark.parametrize("name", provision_plan.PATHS)
def test_paths_are_written_out(name):
    assert message(provision_plan._check_paths, "pi1", {"worker_root": "/w", name: "~/lockstep"}) == (
        f"pi1: {name}=~/lockstep: expected an absolute path; write it out, as in {name}: /home/pi/lockstep"
    )
    provision_plan._check_paths("pi1", dict.fromkeys(["worker_root", "dfs_brick", "worker_caches"], "/home/pi/x"))


@pytest.mark.parametrize("environment", ["/home/pi/w", "/home/pi"])
def test_an_environment_does_not_hold_worker_root(environment):
    assert message(provision_plan._check_paths, "pi1", {"worker_root": "/home/pi/w", "python_env_path": environment}) == (
        f"pi1: python_env_path={environment}: expected a folder of its own, as in /home/pi/w/venv: "
        "what is in it is replaced and removed whole"
    )


def test_further_addresses_are_checked():
    assert provision_settings._network("10.0.0.0/24") == "10.0.0.0/24"
    assert message(provision_settings._check_users, [1007, "alice"]) == (
        "firewall_users: alice: expected a user's number; on the host: id -u alice"
    )
    assert message(provision_settings._network, "10.0.0.300").endswith("give addresses or networks, as in 10.0.0.0/24")


def test_a_row_says_what_was_done():
    host = {"machine": "aarch64", "python_version": "3.11.2", "root_refused": ""}
    plan = {"kind": "glusterfs", "firewall": True, "addresses": ["a", "b"]}
    both = {"path": "/mnt/x", "resumes": {"pi1": {"resumes": "resumes"}}}
    new = {**both, "packages": {"pi1": {"installed": ["tmux"]}}, "environments": {"pi1": {"seconds": 53.4}}}
    old = {**both, "packages": {"pi1": {}}, "environments": {"pi1": {}}}
    dfs = "glusterfs on /mnt/x"
    assert provision_report._row("pi1", host, plan, new)[3:] == ["1 installed", "made in 53 s", dfs, "2 addresses", "resumes"]
    assert provision_report._row("pi1", host, {**plan, "firewall": False}, old)[3:] == ["in place", "in place", dfs, "off", "resumes"]


@pytest.mark.parametrize(
    ("made", "refused", "shown"),
    [
        ({"resumes": "no: systemd does not run"}, "", "no: systemd does not run"),
        ({"skipped": True}, "no sudo", "no: it takes root"),
        ({"skipped": True}, "", "off"),
        ({}, "", "off"),
    ],
)
def test_row_says_why_a_restart_stops_a_host(made, refused, shown):
    """A row says why a host does not go on after a restart."""
    assert provision_report._resumes(made, {"root_refused": refused}) == shown


def test_in_check_mode_rows_say_what_would_happen():
    host = {"machine": "x86_64", "python_version": "3.11.2", "root_refused": ""}
    plan, seen = {"kind": "mounted", "addresses": [], "firewall": False}, {"path": "/mnt/x", "resumes": {"pi1": {}}}
    actual = {**seen, "packages": {"pi1": {"installed": ["tmux"]}}, "environments": {"pi1": {"changed": True}}}
    assert provision_report._row("pi1", host, plan, actual, check=True)[3:5] == ["1 to install", "to be made"]
    actual = {**seen, "packages": {"pi1": {}}, "environments": {"pi1": {"changed": False}}}
    assert provision_report._row("pi1", host, plan, actual, check=True)[3:5] == ["in place", "in place"]


def test_what_stays_on_a_host_is_named():
    packages = {"pi1": {"removed": ["a", "b"], "kept": ["tmux"]}, "pi2": {"removed": [], "kept": []}, "pi3": {"skipped": True}}
    shown = provision_report.removed(Task({"packages": packages}))["show_last"].splitlines()
    assert [line.split() for line in shown[2:5]] == [["pi1", "2", "tmux"], ["pi2", "0", "-"], ["pi3", "0", "-"]]


@pytest.mark.parametrize("role", ["worker", "host", "dfs", "firewall", "recovery", "python_env"])
def test_sample_inventory_names_every_variable_of_roles(role):
    text = (ROOT / "inventory" / "sample" / "group_vars" / "workers.yml").read_text()
    defaults = yaml.safe_load((ROOT / "roles" / role / "defaults" / "main.yml").read_text())
    missing = [name for name in defaults if f"\n{name}:" not in text and f"\n# {name}:" not in text]
    assert missing == []


def test_sample_inventory_does_not_need_what_provisioning_makes():
    variables = yaml.safe_load((ROOT / "inventory" / "sample" / "group_vars" / "workers.yml").read_text())
    assert variables["ansible_python_interpreter"] == "/usr/bin/python3"
    assert variables["dfs_kind"] in provision_settings.KINDS


HOSTILE = (
    *("", "x", "9" * 5000, "-1", "1e9", "$(id)", "a'; id; '", "../..", "3.11.2/../../x", "{{ 1 }}", "\x1b[2J", "a\u202eb", "1000\tx"),
    "\0",
)


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("key", [*GOOD, "python", "root_uid", "root_on", "root_path", "session", "lacks", "foreign", "record", "cores"])
def test_no_look_of_a_hostile_host_gives_traceback(key, value):
    """No look of a hostile host gives a traceback a path or a command.

    Neither while it is judged, nor as the name of a folder of wheels on this machine, nor in what the user is told to type.
    """
    python = {"python": f"/usr/bin/python3 {value} True"} if key == "python" else {}
    seen = look(**python, **({} if python else {key: value}))
    seen.gpus = 1
    words = "\n".join(refused(seen, password=True) + refused(seen) + findings.shared_refusals({"a": seen, "b": look()}))
    words += "\n".join(findings.folder_refusals({"a": seen, "b": seen}))
    assert all(character.isprintable() or character == "\n" for character in words)
    assert "echo 'a'; id" not in words
    fact = seen.fact()
    assert fact["users"] == [one for one in fact["users"] if one.isdecimal()]
    if "TensorFlow is built for" not in words and seen.target:
        assert re.fullmatch(r"(aarch64|x86_64)-cp31[123](-gpu)?", fact["wheels"])
        assert wheels._platforms(seen.target)
        assert wheels.chosen([], seen.target) == []
