"""What this machine's container engine is and has, with engines that are small scripts."""

import os

import pytest

from control.lab import containers
from control.lab.containers import Engine
from tests.unit.refusals import refusal
from trainer.common.errors import LockstepError


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """An otherwise empty PATH; `tools(podman="exit 0")` puts a shell script there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(**scripts):
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    return put


def test_podman_comes_first(tools):
    tools(podman="exit 0", docker="exit 0")
    assert containers.find() == Engine("podman")


def test_docker_where_podman_is_absent(tools):
    tools(docker="exit 0")
    assert containers.find() == Engine("docker")


def test_docker_client_without_engine_counts_as_absent(tools):
    tools(docker="echo Cannot connect >&2; exit 1")
    assert containers.find() is None


def test_docker_replaces_a_podman_that_fails(tools):
    """Docker takes the place of a podman that does not work."""
    tools(podman="exit 1", docker="exit 0")
    assert containers.find() == Engine("docker")


def test_a_podman_that_does_not_work_says_why(tools):
    tools(podman="echo 'Error: no namespaces' >&2; exit 125")
    assert refusal(containers.find) == "the lab needs containers, and podman does not work here: podman info: Error: no namespaces"


def test_a_failing_question_says_what_was_asked(tools):
    tools(podman="echo 'Error: storage is locked' >&2; exit 1")
    with pytest.raises(LockstepError, match=r"^podman ps --all: Error: storage is locked$"):
        Engine("podman").names()


def test_an_empty_engine(tools):
    tools(podman="exit 0")
    engine = Engine("podman")
    assert (engine.labs(), engine.names(), engine.networks(), engine.images()) == ([], [], [], [])


def test_only_the_labs_images(tools):
    tools(podman="printf '%s\\n' localhost/lockstep-lab:1 localhost/lockstep-lab-base:bookworm debian:bookworm localhost/lockstep-labs:2")
    assert Engine("podman").images() == ["localhost/lockstep-lab:1", "localhost/lockstep-lab-base:bookworm"]


def test_missing_packages(tools):
    assert containers.missing_packages(None, builds=True) == ["podman", "runc", "debootstrap"]
    tools(debootstrap="exit 0", runc="exit 0")
    assert containers.missing_packages(Engine("podman"), builds=True) == []
    assert containers.missing_packages(Engine("docker"), builds=False) == []


@pytest.mark.parametrize(
    ("release", "may"), [({"ID": "debian"}, True), ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, True), ({"ID": "fedora"}, False)]
)
def test_only_where_apt_installs(tools, release, may):
    tools(**{"apt-get": "exit 0"})
    assert containers.may_install(release) is may


def test_no_installing_without_apt(tools):
    assert not containers.may_install({"ID": "debian"})


def groups(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_enforced_limits_of_control_groups_version_1(tmp_path):
    groups(
        tmp_path,
        {
            "proc/7/cgroup": "4:memory:/p/n\n1:cpu,cpuacct:/p/n\n0::/p/n/init.scope\n",
            "groups/cpu/p/n/cpu.cfs_period_us": "10000\n",
            "groups/cpu/p/n/cpu.cfs_quota_us": "3800\n",
            "groups/memory/p/n/memory.limit_in_bytes": "3221225472\n",
        },
    )
    assert containers._enforced_limits(7, tmp_path / "proc", tmp_path / "groups") == [10_000, 3_800, 3 * 2**30]


def test_version_1_limits_may_stand_above_the_process(tmp_path):
    groups(
        tmp_path,
        {
            "proc/7/cgroup": "4:memory:/p/n/init.scope\n1:cpu:/p/n/init.scope\n",
            "groups/cpu/p/n/init.scope/cpu.cfs_period_us": "100000\n",
            "groups/cpu/p/n/init.scope/cpu.cfs_quota_us": "-1\n",
            "groups/cpu/p/n/cpu.cfs_period_us": "10000\n",
            "groups/cpu/p/n/cpu.cfs_quota_us": "3800\n",
            "groups/memory/p/n/init.scope/memory.limit_in_bytes": "9223372036854771712\n",
            "groups/memory/p/n/memory.limit_in_bytes": "3221225472\n",
        },
    )
    # The period of a group without a quota means nothing; that of the group with one is taken.
    assert containers._enforced_limits(7, tmp_path / "proc", tmp_path / "groups") == [10_000, 3_800, 3 * 2**30]


def test_no_limits_of_control_groups_version_1(tmp_path):
    groups(tmp_path, {"proc/7/cgroup": "4:memory:/p\n1:cpu:/p\n", "groups/cpu/p/cpu.cfs_quota_us": "-1\n"})
    assert containers._enforced_limits(7, tmp_path / "proc", tmp_path / "groups") == [100_000, 0, 0]


def test_version_2_limits_may_stand_above_the_process(tmp_path):
    """Enforced limits of control groups version 2 may stand above the process."""
    groups(
        tmp_path,
        {
            "proc/7/cgroup": "0::/p/n/init.scope\n",
            "groups/p/n/init.scope/cpu.max": "max 100000\n",
            "groups/p/n/cpu.max": "3800 10000\n",
            "groups/p/n/memory.max": "3221225472\n",
            "groups/p/memory.max": "max\n",
        },
    )
    assert containers._enforced_limits(7, tmp_path / "proc", tmp_path / "groups") == [10_000, 3_800, 3 * 2**30]


def test_no_limits_of_control_groups_version_2(tmp_path):
    groups(tmp_path, {"proc/7/cgroup": "0::/p/n\n", "groups/p/n/cpu.max": "max 100000\n", "groups/p/n/memory.max": "max\n"})
    assert containers._enforced_limits(7, tmp_path / "proc", tmp_path / "groups") == [100_000, 0, 0]


@pytest.mark.parametrize("files", [{}, {"proc/7/cgroup": "0::/user.slice/of-something-else\n"}])
def test_node_with_a_foreign_process_does_not_run(tmp_path, files):
    """A node whose process is gone or another s does not run whatever the engine recorded."""
    groups(tmp_path, files)
    facts = {"id": "0a1b", "running": True, "pid": 7, "limits": [1, 2, 3], "cut_off": False}
    actual = containers._as_it_is(facts, tmp_path / "proc", tmp_path / "groups")
    assert actual == {**facts, "running": False, "cut_off": True}


def test_limits_of_running_node_are_those_of_kernel(tmp_path):
    limits = {"groups/p/libpod-0a1b/cpu.max": "3800 10000\n", "groups/p/libpod-0a1b/memory.max": "3221225472\n"}
    groups(tmp_path, {"proc/7/cgroup": "0::/p/libpod-0a1b\n", **limits})
    facts = {"id": "0a1b", "running": True, "pid": 7, "limits": [1, 2, 3], "cut_off": False}
    actual = containers._as_it_is(facts, tmp_path / "proc", tmp_path / "groups")
    assert actual == {**facts, "limits": [10_000, 3_800, 3 * 2**30]}


def test_enforced_limits_of_this_process_can_be_read():
    assert len(containers._enforced_limits(os.getpid())) == 3


@pytest.mark.parametrize("mixed", [True, False])
def test_runc_where_control_groups_are_mixed(tmp_path, mixed):
    if mixed:
        (tmp_path / "memory").mkdir()
    assert containers._needs_runc(tmp_path) is mixed


def test_a_persons_own_containers_conf_is_respected(monkeypatch):
    monkeypatch.setenv("CONTAINERS_CONF", "/etc/mine.conf")
    assert containers.needed_conf() == ""
