"""Errors that people meet on real hosts, each made for real, and what they are told: many at a time, in one command."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.lab.conftest import Lab, spaced

ROOT = "/home/lockstep/lockstep"
PYTHON = f"{ROOT}/venv/bin/python"
# The environment stays in sight.
FULL = f"""mkdir -p /root/kept-root && mount --bind {ROOT} /root/kept-root &&
mount -t tmpfs -o size=300m,uid=$(id -u lockstep) tmpfs {ROOT} &&
mkdir {ROOT}/venv && mount --bind /root/kept-root/venv {ROOT}/venv"""
UNMOUNT = "umount -l /mnt/lockstep; systemctl stop mnt-lockstep.automount mnt-lockstep.mount 2>/dev/null || true"
MOUNT = "systemctl reset-failed; mount /mnt/lockstep 2>/dev/null || systemctl restart mnt-lockstep.mount"
PACKAGES = f"{ROOT}/venv/lib/python3.11/site-packages"
OWN, OTHER = "tensorflow_cpu-2.21.0.dist-info", "tensorflow_cpu-2.20.0.dist-info"
# Of what Ansible runs there: sshd's sandbox refuses a library that changes the time for all programs.
CLOCK = "/etc/python3.11/sitecustomize.py"
LATER = "import time; now = time.time; time.time = lambda: now() + 3600"

BROKEN = {
    1: [
        (
            f"mv {PYTHON} {PYTHON}.kept; printf '#!/bin/sh\\n{PYTHON}.kept \"$@\" | sed s/3[.]11[.][0-9]*/3.9.2/\\n' > {PYTHON}; "
            f"chmod +x {PYTHON}",
            f"mv -f {PYTHON}.kept {PYTHON}",
        )
    ],
    2: [
        (f"cp {CLOCK} /root/; echo '{LATER}' >> {CLOCK}", f"mv /root/sitecustomize.py {CLOCK}"),
        (FULL, f"umount -l {ROOT}/venv {ROOT} /root/kept-root"),
    ],
    3: [
        (
            f"cd {PACKAGES} && mv {OWN} /root/kept-info && cp -r /root/kept-info {OTHER} && sed -i s/2.21.0/2.20.0/ {OTHER}/METADATA",
            f"cd {PACKAGES} && rm -rf {OTHER} && mv /root/kept-info {OWN}",
        ),
        ("cp /etc/hosts /root/hosts; sed 's/^[0-9.]*\\(.*node3\\)/127.0.1.1\\1/' /root/hosts > /etc/hosts", "cat /root/hosts > /etc/hosts"),
        (UNMOUNT, MOUNT),
    ],
}
"""Commands that break a node, and those that mend it again, in the order in which they break."""

FINDINGS = {
    "python too old": r"\[FAIL\] node1 python 3\.9\.2.*3\.11 to 3\.13",
    "clock an hour off": r"\[FAIL\] node2 clock (0:59|1:0[0-9]):[0-9]{2} h ahead",
    "disk full": r"\[FAIL\] node2 disk 300 MB free .*at least",
    "another TensorFlow": r"\[FAIL\] node3 tensorflow 2\.20\.0, the others 2\.21\.0",
    "port busy": r"\[FAIL\] node3 port 12345 is held by .*set another worker_port",
    "name that means loopback": r"\[FAIL\] node3 .*node3 resolves to 127\.0\.1\.1 on the host itself",
    "shared folder not shared": r"\[FAIL\] node3 dfs .*/mnt/lockstep",
}


def refused(lab: Lab, *arguments: str, command: str = "train") -> str:
    """What a command that must fail says; it leaves no session on any node."""
    done = lab.play(command, *arguments, *(("quick=true",) if command == "train" else ()), check=False)
    assert done.returncode != 0, done.stdout
    assert lab.sessions(1) == []
    return spaced(done.stdout)


@contextmanager
def other_inventory(lab: Lab, name: str, **changes: str) -> Iterator[Lab]:
    """The lab through an inventory in which patterns of its files are replaced."""
    folder = lab.root / "inventory" / name
    shutil.copytree(lab.root / "inventory" / "lab", folder)
    for path in [folder / "hosts.yml", *(folder / "group_vars").iterdir()]:
        text = path.read_text()
        for old, new in changes.items():
            text = re.sub(old, new, text)
        path.write_text(text)
    yield Lab(lab.root, f"inventory/{name}", lab.engine)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def findings(cluster: Lab) -> str:
    """What is said when much is wrong at once."""
    with other_inventory(cluster, "named", **{r"node3: \{": "node3: {worker_address: node3, "}) as named, ExitStack() as mended:
        mended.enter_context(cluster.listening(3, 12345))
        for node, pairs in BROKEN.items():
            for breaking, fixing in pairs:
                mended.enter_context(cluster.broken(node, breaking, fixing))
        return refused(named)


@pytest.mark.parametrize("what", FINDINGS)
def test_what_is_wrong_on_a_host_is_named(findings: str, what: str):
    assert re.search(FINDINGS[what], findings, re.DOTALL), findings


def key(folder: Path) -> Path:
    """A key that nobody knows."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    return folder / "key"


def test_hosts_that_ssh_does_not_reach_are_named(cluster: Lab, tmp_path: Path):
    """node1 refuses the key, node2 has another host key than this machine knows, and node3 is down."""
    strange = key(tmp_path)
    with other_inventory(cluster, "strange", **{r"node1: \{": f"node1: {{ansible_ssh_private_key_file: '{strange}', "}) as other:
        known = other.root / "inventory" / "strange" / ".ssh" / "known_hosts"
        rows = [row for row in known.read_text().splitlines() if cluster.address(2) not in row]
        known.write_text("\n".join([*rows, f"{cluster.address(2)} {strange.with_suffix('.pub').read_text()}"]))
        with cluster.unplugged(3):
            message = refused(other, "run=unreached", "ansible_control_path=none")
    assert "[FAIL] node1 ssh it refuses the key. Fix: ssh-copy-id lockstep@" in message, message
    assert "[FAIL] node2 ssh its host key has changed" in message, message
    assert f"ssh-keygen -R {cluster.address(2)}" in message, message
    assert re.search(r"\[FAIL\] node3 ssh .*it is down", message), message
    assert message.count("[FAIL]") == 3, message
    assert cluster.summary("unreached")["state"] == "FAILED_PREFLIGHT"


def test_no_sudo(cluster: Lab):
    with cluster.broken(3, "mkdir -p /root/kept; mv /etc/sudoers.d/* /root/kept/", "mv /root/kept/* /etc/sudoers.d/"):
        message = refused(cluster, command="provision")
    assert "node3" in message, message
    assert "sudo" in message, message
