"""Every command has an inverse: nothing of ours stays on a host, nothing of the lab stays on this machine."""

from tests.lab.conftest import NODES, PREFIX
from tests.lab.test_cluster import changed
from tests.project import Project


def test_what_provisioning_put_there_is_removed(cluster):
    cluster.play("provision", "state=absent", timeout=600)
    for node in range(1, NODES + 1):
        assert cluster.on(node, "command -v tmux glusterd nft; findmnt -n /mnt/lockstep; grep lockstep /etc/fstab", check=False) == ""
        assert (
            cluster.on(
                node,
                "ls -d /etc/ssl/glusterfs* /usr/lib/ssl/glusterfs* /var/lib/glusterd /etc/sysctl.d/90-* /var/lib/lockstep",
                check=False,
            )
            == ""
        )
        assert cluster.on(node, "ls /home/lockstep/lockstep", check=False).split() in ([], ["runs"])
    assert changed(cluster.play("provision", "state=absent").stdout) == 0


def test_the_lab_is_removed_whole_and_only_once(lab):
    lab.up("state=absent")
    assert PREFIX not in lab.container("ps", "-a", "--format", "{{.Names}}")
    assert PREFIX not in lab.container("network", "ls", "--format", "{{.Name}}")
    assert not (lab.root / "inventory" / "lab").exists()
    assert not (lab.root / ".lockstep" / "lab").exists()
    again = lab.up("state=absent")
    assert changed(again.stdout) == 0
    assert Project(lab.root).play("status", check=False).returncode != 0
