"""Errors that people meet on real hosts, each made for real, and what they are told."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lab.conftest import Lab
from tests.project import await_until

QUICK = ("quick=true",)


@contextmanager
def broken(lab: Lab, node: int, breaking: str, fixing: str) -> Iterator[None]:
    """A node that is out of order for a while."""
    lab.on(node, breaking)
    try:
        yield
    finally:
        lab.on(node, fixing)


def refused(lab: Lab, *arguments: str, command: str = "train") -> str:
    """What a command that must fail says; it leaves no session on any node."""
    done = lab.play(command, *arguments, *(QUICK if command == "train" else ()), check=False)
    assert done.returncode != 0, done.stdout
    assert lab.sessions(1) == []
    # Columns are as wide as their widest cell.
    return re.sub(" +", " ", done.stdout)


def other_inventory(lab: Lab, name: str, **changes: str) -> Lab:
    """The lab through an inventory in which texts of its files are replaced."""
    folder = lab.root / "inventory" / name
    shutil.copytree(lab.root / "inventory" / "lab", folder)
    for path in [folder / "hosts.yml", *(folder / "group_vars").iterdir()]:
        text = path.read_text()
        for old, new in changes.items():
            text = re.sub(old.replace("__", " "), new, text)
        path.write_text(text)
    return Lab(lab.root, f"inventory/{name}", lab.engine)


def test_wrong_key(cluster, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    message = refused(cluster, f"ansible_ssh_private_key_file={tmp_path}/key", "ansible_control_path=none")
    assert "it refuses the key. Fix: ssh-copy-id lockstep@" in message, message
    assert message.count("[FAIL]") == message.count("it refuses the key") == 5


def test_host_key_changed(cluster, tmp_path):
    """This machine knows another key of node2 than the one that it shows."""
    strange = other_inventory(cluster, "strange")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    known = strange.root / "inventory" / "strange" / ".ssh" / "known_hosts"
    rows = [row for row in known.read_text().splitlines() if cluster.address(2) not in row]
    known.write_text("\n".join([*rows, f"{cluster.address(2)} {(tmp_path / 'key.pub').read_text()}"]))
    message = refused(strange, "ansible_control_path=none")
    assert "[FAIL] node2 ssh its host key has changed" in message, message
    assert f"ssh-keygen -R {cluster.address(2)}" in message, message


def test_no_sudo(cluster):
    with broken(cluster, 3, "mkdir -p /root/kept; mv /etc/sudoers.d/* /root/kept/", "mv /root/kept/* /etc/sudoers.d/"):
        message = refused(cluster, command="provision")
    assert "node3" in message, message
    assert "sudo" in message, message


def test_disk_full(cluster):
    root = "/home/lockstep/lockstep"
    mount = f"mount -t tmpfs -o size=300m,uid=$(id -u lockstep) tmpfs {root}"
    with broken(cluster, 4, mount, f"umount {root}"):
        message = refused(cluster)
    assert re.search(r"\[FAIL\] node4 disk 300 MB free .*at least", message)


def test_port_busy(cluster):
    listen = "import socket,time; s=socket.create_server(('',12345)); time.sleep(600)"
    cluster.container("exec", "-d", "lockstep-test-node5", "python3", "-c", listen)
    await_until(lambda: ":12345" in cluster.on(5, "ss -ltn"), 10, "listening")
    try:
        message = refused(cluster)
    finally:
        cluster.on(5, "ss -ltnp | sed -n 's/.*:12345.*pid=\\([0-9]*\\).*/\\1/p' | xargs -r kill")
    assert re.search(r"\[FAIL\] node5 +port +12345 is held by", message)
    assert "set another worker_port" in message, message


def test_two_hosts_with_one_address(cluster):
    twice = other_inventory(cluster, "twice", **{re.escape(cluster.address(3)): cluster.address(2)})
    message = refused(twice)
    assert f"node2, node3 share {cluster.address(2)}:12345" in message, message


def test_shared_folder_not_shared(cluster):
    with broken(cluster, 5, "umount -l /mnt/lockstep; systemctl stop mnt-lockstep.automount mnt-lockstep.mount 2>/dev/null || true",
                "systemctl reset-failed; mount /mnt/lockstep 2>/dev/null || systemctl restart mnt-lockstep.mount"):  # fmt: skip
        message = refused(cluster)
        assert "[FAIL] node5 dfs" in message, message
        assert "/mnt/lockstep" in message, message


def test_clock_an_hour_off(cluster):
    library = cluster.on(2, "apt-get install -qy faketime >/dev/null 2>&1; find / -xdev -name 'libfaketime.so.1' | head -1").strip()
    assert library, "libfaketime is there"
    preload = f"echo {library} > /etc/ld.so.preload; echo '+1h' > /etc/faketimerc"
    with broken(cluster, 2, preload, "rm -f /etc/ld.so.preload /etc/faketimerc"):
        message = refused(cluster)
    assert re.search(r"\[FAIL\] node2 +clock +(0:59|1:0[0-9]):[0-9]{2} h ahead", message)


def test_python_too_old(cluster):
    python = "/home/lockstep/lockstep/venv/bin/python"
    answer = '{"python": "3.9.2", "packages": {}}'
    fake = f"mv {python} {python}.kept; cat > {python} <<'EOF'\n#!/bin/sh\necho '{answer}'\nEOF\nchmod +x {python}"
    with broken(cluster, 1, fake, f"mv -f {python}.kept {python}"):
        message = refused(cluster)
    assert "[FAIL] node1 python 3.9.2" in message, message
    assert "3.11 to 3.13" in message, message


def test_another_tensorflow_on_one_node(cluster):
    enter = "cd /home/lockstep/lockstep/venv/lib/python3.11/site-packages"
    own, other = "tensorflow_cpu-2.21.0.dist-info", "tensorflow_cpu-2.20.0.dist-info"
    change = f"{enter} && mv {own} /root/kept-info && cp -r /root/kept-info {other} && sed -i s/2.21.0/2.20.0/ {other}/METADATA"
    with broken(cluster, 4, change, f"{enter} && rm -rf {other} && mv /root/kept-info {own}"):
        message = refused(cluster)
    assert "[FAIL] node4 tensorflow 2.20.0, the others 2.21.0" in message, message


def test_limit_that_cuts_off_a_worker(cluster):
    message = refused(cluster, "--limit=node1,node2")
    assert "--limit node1,node2: a synchronous cluster waits for every worker" in message, message
    assert "-e workers=N" in message, message


def test_name_that_means_loopback(cluster):
    named = other_inventory(cluster, "named", **{r"node3: \{": "node3: {worker_address: node3, "})
    with broken(
        cluster,
        3,
        "cp /etc/hosts /root/hosts; sed 's/^[0-9.]*\\(.*node3\\)/127.0.1.1\\1/' /root/hosts > /etc/hosts",
        "cat /root/hosts > /etc/hosts",
    ):
        message = refused(named)
    assert "[FAIL] node3" in message, message
    assert "node3 resolves to 127.0.1.1 on the host itself" in message, message


@pytest.mark.parametrize("variable", ["staet=absent", "nods=3"])
def test_misspelt_variables_are_refused(cluster, variable):
    command = "provision" if variable.startswith("staet") else "lab"
    target = cluster if command == "provision" else Lab(cluster.root)
    done = target.play(command, variable, check=False)
    assert done.returncode != 0
    assert f"-e {variable.partition('=')[0]}=" in done.stdout
