"""Every command has an inverse: nothing of ours stays on a host, nothing of the lab stays on this machine."""

import shutil
import subprocess

import pytest

from tests.lab.conftest import NODES, PREFIX, SUBNET, changed
from tests.project import EXHAUSTIVE, Project
from tests.unit.control.provision.test_wheels import make_wheel

OURS = "/etc/ssl/glusterfs* /usr/lib/ssl/glusterfs* /var/lib/glusterd /etc/sysctl.d/90-* /var/lib/lockstep "
OURS += "/usr/local/lib/lockstep /etc/systemd/system/lockstep-resume.service"
TAKES = """
import keras
import numpy as np
from tinywidth import WIDTH


def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(WIDTH), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def data(split):
    return None if split == "validation" else (np.ones((64, 4), np.float32), np.ones(64, np.float32))
"""


@pytest.fixture
def offline(cluster, tmp_path, monkeypatch):
    """A folder with the wheels that hosts have, from which alone more are gathered; they are kept apart from this machine's."""
    kept, folder = cluster.root / ".lockstep" / "wheels", tmp_path / "wheels"
    folder.mkdir()
    for name, wheel in {path.name: path for path in kept.glob("*/*.whl")}.items():
        (folder / name).symlink_to(wheel.resolve())
    shared = kept.readlink()
    kept.unlink()
    monkeypatch.setenv("WHEELS", str(folder))
    yield folder
    shutil.rmtree(kept, ignore_errors=True)
    kept.symlink_to(shared)


@EXHAUSTIVE("requirements", "control/provision", "roles/python_env", "provision.yml")
def test_a_package_of_ones_own_is_on_all_hosts_and_a_model_imports_it(cluster, offline, tmp_path):
    """The next test takes it away, with the environment that it is in."""
    make_wheel(offline, "tinywidth", files={"tinywidth/__init__.py": "WIDTH = 7\n"})
    (tmp_path / "mine.txt").write_text("tinywidth\n")
    (tmp_path / "mine.py").write_text(TAKES)
    # The tests' own environment stays as it is; playbooks find it here.
    (cluster.root / "tinywidth.py").write_text("WIDTH = 7\n")
    done = cluster.play("provision", f"requirements={tmp_path}/mine.txt", timeout=900)
    # Ansible wraps a warning, also inside a long word.
    assert "lacks tinywidth: make setup REQUIREMENTS=".replace(" ", "") in "".join((done.stdout + done.stderr).split()), done.stdout
    for node in range(1, NODES + 1):
        command = "cd /; /home/lockstep/lockstep/venv/bin/python -B -c 'import tinywidth; print(tinywidth.__file__, tinywidth.WIDTH)'"
        file, width = cluster.on(node, command).split()
        assert "/site-packages/tinywidth/" in file
        assert width == "7"
    given = (f"model={tmp_path}/mine.py:build", f"dataset={tmp_path}/mine.py:data", "workers=2", "set=train.steps=2,train.batch_size=16")
    assert "tiny: SUCCEEDED" in cluster.play("train", "run=tiny", *given).stdout


def test_what_provisioning_put_there_is_removed(cluster):
    cluster.play("provision", "state=absent", timeout=600)
    for node in range(1, NODES + 1):
        assert cluster.on(node, "command -v tmux glusterd nft; findmnt -n /mnt/lockstep; grep lockstep /etc/fstab", check=False) == ""
        assert cluster.on(node, f"ls -d {OURS}", check=False) == ""
        assert cluster.on(node, "ls /home/lockstep/lockstep", check=False).split() in ([], ["runs"])
    assert changed(cluster.play("provision", "state=absent").stdout) == 0


def addresses_left() -> list[str]:
    """Lines of this machine's interfaces, routes, firewall, mounts and processes that name an address of the lab."""
    looks = "ip -o addr; ip route; nft list ruleset; cat /proc/mounts; ps -ww -eo args"
    shown = subprocess.run(["sh", "-c", looks], capture_output=True, text=True, check=False).stdout
    return [line for line in shown.splitlines() if SUBNET.rpartition(".")[0] in line]


def test_the_lab_is_removed_whole_and_only_once(lab):
    lab.up("state=absent")
    assert PREFIX not in lab.container("ps", "-a", "--format", "{{.Names}}")
    assert PREFIX not in lab.container("network", "ls", "--format", "{{.Name}}")
    assert addresses_left() == []
    assert not (lab.root / "inventory" / "lab").exists()
    assert not (lab.root / ".lockstep" / "lab").exists()
    again = lab.up("state=absent")
    assert changed(again.stdout) == 0
    assert Project(lab.root).play("status", check=False).returncode != 0
