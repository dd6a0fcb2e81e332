"""The distributed file system: who serves it, the volume, the mount, whether it is really shared."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from control.common.task import Task
from control.provision.tasks import settings
from tests.unit.fake_module import Module, ended, failed, load

dfs_contents, dfs_mount = load("dfs_contents"), load("dfs_mount")
gluster_server, gluster_volume = load("gluster_server"), load("gluster_volume")
ME = pwd.getpwuid(os.getuid()).pw_name


def members(count):
    return [{"name": f"pi{number}", "address": f"10.0.0.{number}", "port": 12345} for number in range(1, count + 1)]


def volume(count, layout="replica", replicas=3):
    """How these hosts serve and mount the volume."""
    plan = {"members": members(count), "state": "present"}
    options = {"kind": "glusterfs", "path": "/mnt/x", "brick": "/b", "volume": "lockstep", "layout": layout, "replicas": replicas}
    return settings.dfs(Task({"plan": plan, "roots": {}, **options}))["ansible_facts"]["provision"]["volume"]


def part(count, name):
    """What one of several hosts mounts, and with which packages."""
    return volume(count)["hosts"][name]


@pytest.mark.parametrize(
    ("count", "layout", "replicas", "servers", "replicated"),
    [
        (5, "replica", 3, 3, True),
        (6, "replica", 3, 6, True),
        (5, "replica", 2, 4, True),
        (2, "replica", 3, 2, False),
        (1, "replica", 3, 1, False),
        (5, "distributed", 3, 5, False),
    ],
)
def test_servers_are_whole_sets_of_the_first_hosts(count, layout, replicas, servers, replicated):
    hosts, actual = members(count), volume(count, layout, replicas)
    assert actual["servers"] == [host["name"] for host in hosts[:servers]]
    assert actual["replica"] == (replicas if replicated else 0)
    assert actual["bricks"] == [f"{host['address']}:/b" for host in hosts[:servers]]


def test_server_mounts_from_itself_and_others_from_first():
    assert (part(5, "pi2")["source"], part(5, "pi2")["backups"]) == ("10.0.0.2:/lockstep", ["10.0.0.1", "10.0.0.3"])
    assert (part(5, "pi5")["source"], part(5, "pi5")["backups"]) == ("10.0.0.1:/lockstep", ["10.0.0.2", "10.0.0.3"])
    assert part(1, "pi1")["backups"] == []


def test_packages_follow_the_hosts_part():
    assert part(5, "pi3")["packages"] == ["glusterfs-server", "openssl"]
    assert part(5, "pi4")["packages"] == ["glusterfs-client", "openssl"]


class Mounts:
    """A host whose mounts are made by systemctl, and a table of file systems."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.path, self.mounted, self.fails, self.dead = folder, folder / "my dfs", None, "", False
        self.fstab = folder / "fstab"
        self.fstab.write_text("UUID=1 / ext4 defaults 0 1\n# /mnt glusterfs\n")
        monkeypatch.setattr(dfs_mount, "FSTAB", str(self.fstab))
        monkeypatch.setattr(dfs_mount, "UNIT", str(folder / "unit"))
        monkeypatch.setattr(dfs_mount, "ACCESS", str(folder / "secure-access"))
        monkeypatch.setattr(dfs_mount, "_mounted", lambda path: self.mounted)
        monkeypatch.setattr(dfs_mount, "_dead", lambda path: self.dead)
        monkeypatch.setattr(dfs_mount, "_immutable", lambda path, wanted: None)
        monkeypatch.setattr(dfs_mount.os, "chown", lambda *_: None)

    def module(self, state="present", source="10.0.0.1:/lockstep", **options):
        answers = {
            "systemd-escape": (0, "my-dfs.mount\n", ""),
            "systemctl start my-dfs.mount": self.start,
            "umount": self.unmount,
            "systemctl is-enabled": lambda argv: (0 if (self.folder / "unit").exists() else 1, "", ""),
        }
        options = {"backups": ["10.0.0.2"], "owner": ME, **options}
        return Module(answers, path=str(self.path), source=source, state=state, **options)

    def start(self, argv):
        if self.fails:
            return 1, "", self.fails
        self.mounted, self.dead = ("fuse.glusterfs", "10.0.0.1:/lockstep"), False
        return 0, "", ""

    def unmount(self, argv):
        if self.fails:
            return 32, "", self.fails
        self.mounted = None
        return 0, "", ""


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    return Mounts(tmp_path, monkeypatch)


def mount(mounts, **options):
    return ended(dfs_mount, mounts.module(**options))["did"]


def unmount(mounts, **options):
    return ended(dfs_mount, mounts.module(state="absent", **options))["did"]


LINE = "10.0.0.1:/lockstep {path} glusterfs defaults,_netdev,noauto,x-systemd.after=glusterd.service,backup-volfile-servers=10.0.0.2 0 0"


def test_mounted_once_with_line_and_unit_own(mounts):
    assert mount(mounts) == ["write the line of /etc/fstab", "mount at boot", "mount"]
    lines = mounts.fstab.read_text().splitlines()
    assert lines[:2] == ["UUID=1 / ext4 defaults 0 1", "# /mnt glusterfs"]
    assert lines[2:] == [LINE.format(path=str(mounts.path).replace(" ", "\\040"))]
    assert "ExecStart=systemctl start my-dfs.mount" in (mounts.folder / "unit").read_text()
    assert mounts.path.stat().st_mode & 0o777 == 0o555
    assert mount(mounts) == []


def test_other_servers_replace_the_line(mounts):
    mount(mounts)
    assert mount(mounts, backups=[]) == ["write the line of /etc/fstab"]
    assert mounts.fstab.read_text().count("glusterfs defaults") == 1


def test_a_mount_whose_process_died_is_made_anew(mounts):
    mount(mounts)
    mounts.dead = True
    assert mount(mounts) == ["mount anew"]
    assert mounts.dead is False


def test_mount_from_before_tls_is_made_anew(mounts, monkeypatch):
    """A mount from before tls is made anew and a busy one says what to do."""
    mount(mounts)
    monkeypatch.setattr(dfs_mount._Mount, "_old", lambda mount: mounts.mounted == ("fuse.glusterfs", "10.0.0.1:/lockstep"))
    mounts.fails = "umount: target is busy."
    assert "target is busy.; end what uses" in failed(dfs_mount, mounts.module())
    assert mounts.mounted
    mounts.fails = ""
    assert mount(mounts) == ["mount anew"]


def test_the_process_of_a_mount_is_recognised(monkeypatch, mounts):
    argv = f"/usr/sbin/glusterfs\0--process-name\0fuse\0--volfile-id=/lockstep\0{mounts.path}\0".split("\0")
    others = [["glusterfs", "/mnt/other", ""], ["/usr/sbin/glusterfsd", str(mounts.path), ""], [""]]
    monkeypatch.setattr(dfs_mount.host, "running", lambda chosen: [number for number, one in enumerate([argv, *others]) if chosen(one)])
    monkeypatch.setattr(dfs_mount.host, "older", lambda pids, path: pids)
    assert dfs_mount._Mount(mounts.module())._old()
    argv[-2] = "/mnt/other"
    assert not dfs_mount._Mount(mounts.module())._old()


def test_a_mount_that_is_gone_comes_back(mounts):
    mount(mounts)
    mounts.mounted = None
    assert mount(mounts) == ["mount"]


def test_a_folder_with_files_is_not_hidden(mounts):
    mounts.path.mkdir()
    (mounts.path / "thesis.odt").touch()
    assert f"dfs_path={mounts.path} holds thesis.odt, which a mount would hide; move that away" in failed(dfs_mount, mounts.module())
    assert mounts.fstab.read_text().count("glusterfs defaults") == 0


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (("nfs4", "nas:/data"), "nas:/data (nfs4) is mounted, not a GlusterFS volume; unmount it, or set dfs_kind: mounted"),
        (("fuse.glusterfs", "10.0.0.1:/other"), "another volume is mounted: 10.0.0.1:/other; set another dfs_path or dfs_volume"),
    ],
)
def test_what_is_mounted_there_already_is_named(there, reason, mounts):
    mounts.mounted = there
    assert reason in failed(dfs_mount, mounts.module())


def test_a_mount_that_fails_says_where_to_look(mounts):
    mounts.fails = "Job for my-dfs.mount failed."
    message = failed(dfs_mount, mounts.module())
    assert "10.0.0.1:/lockstep can't be mounted on" in message
    assert "sudo gluster volume status" in message
    assert "/var/log/glusterfs/" in message


def test_unmounted_without_a_trace_and_only_once(mounts):
    before = mounts.fstab.read_text()
    mount(mounts)
    assert unmount(mounts) == ["unmount", "take the line out of /etc/fstab", "mount no more at boot"]
    assert mounts.fstab.read_text() == before
    assert not mounts.path.exists()
    assert unmount(mounts) == []


def test_a_busy_mount_says_what_to_do(mounts):
    mount(mounts)
    mounts.fails = "umount: target is busy."
    assert "target is busy.; end what uses" in failed(dfs_mount, mounts.module(state="absent"))


def test_a_foreign_mount_is_not_unmounted(mounts):
    mounts.mounted = ("nfs4", "nas:/data")
    assert unmount(mounts) == []
    assert mounts.mounted == ("nfs4", "nas:/data")


def test_a_checked_mount_touches_nothing(mounts):
    before = mounts.fstab.read_text()
    assert mount(mounts, check_mode=True)
    assert (mounts.fstab.read_text(), mounts.mounted, mounts.path.exists()) == (before, None, False)


def test_mounts_of_this_machine_are_read():
    assert dfs_mount._mounted("/proc")[0] == "proc"
    assert dfs_mount._mounted("/no/such/mount") is None
    assert dfs_mount.host.unescaped(dfs_mount._escaped("/mnt/my \\040 dfs")) == "/mnt/my \\040 dfs"


def contents(action, path, **options):
    defaults = {"token": "t1", "writer": "pi1", "host": "pi2", "kind": "mounted", "folders": ["wheels", "code"]}
    return Module(path=str(path), action=action, **{**defaults, **options})


def test_token_written_here_is_read_there_and_removed(tmp_path):
    ended(dfs_contents, contents("write", tmp_path))
    assert ended(dfs_contents, contents("read", tmp_path))["changed"] is False
    ended(dfs_contents, contents("forget", tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_folder_not_shared_names_host_path_and_mend(tmp_path, monkeypatch):
    monkeypatch.setattr(dfs_contents, "PATIENCE_S", 0.0)
    ended(dfs_contents, contents("write", tmp_path))
    (tmp_path / "other").mkdir()
    assert failed(dfs_contents, contents("read", tmp_path / "other")) == (
        f"DFS not shared: pi2 does not see what pi1 wrote to dfs_path={tmp_path}/other (No such file or directory). "
        "Every host must have the same folder there: mount the shared one (NFS, CephFS, ...), "
        "or let provision.yml make one: dfs_kind: glusterfs"
    )


def test_token_of_another_try_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(dfs_contents, "PATIENCE_S", 0.0)
    (tmp_path / ".lockstep-token-t1").write_text("old")
    assert "(it reads something else)" in failed(dfs_contents, contents("read", tmp_path))


def test_a_token_that_comes_late_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(dfs_contents.time, "sleep", lambda _: (tmp_path / ".lockstep-token-t1").write_text("t1"))
    assert ended(dfs_contents, contents("read", tmp_path))["changed"] is False


def test_folder_below_an_absent_mount_is_not_written(tmp_path):
    assert failed(dfs_contents, contents("write", tmp_path, kind="glusterfs")) == (
        f"pi2: nothing is mounted on dfs_path={tmp_path}; run provision.yml again, or: sudo mount {tmp_path}"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_named(tmp_path):
    assert f"pi2: dfs_path={tmp_path}/x can't be written to: No such file or directory." in failed(
        dfs_contents, contents("write", tmp_path / "x")
    )


def test_a_local_folder_is_made(tmp_path):
    ended(dfs_contents, contents("write", tmp_path / "new", kind="local"))
    assert (tmp_path / "new" / ".lockstep-token-t1").is_file()


def test_only_our_folders_are_emptied(tmp_path):
    for name in ("wheels", "thesis"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert "also holds thesis, which Lockstep did not put there" in failed(dfs_contents, contents("empty", tmp_path))
    shutil.rmtree(tmp_path / "thesis")
    assert ended(dfs_contents, contents("empty", tmp_path, check_mode=True)) == {"changed": True, "removed": ["wheels"]}
    assert ended(dfs_contents, contents("empty", tmp_path)) == {"changed": True, "removed": ["wheels"]}
    assert os.listdir(tmp_path) == []
    assert ended(dfs_contents, contents("empty", tmp_path)) == {"changed": False, "removed": []}


def test_slurm_state_of_runs_is_kept_unless_empty(tmp_path):
    """State of runs under slurm is kept and an empty folder of it is not."""
    (tmp_path / "slurm" / "my-run" / "state").mkdir(parents=True)
    (tmp_path / "slurm" / "my-run" / "state" / "step-20").touch()
    (tmp_path / "slurm" / "gone" / "state").mkdir(parents=True)
    message = failed(dfs_contents, contents("empty", tmp_path))
    assert "holds in slurm/ what runs under Slurm need to go on (my-run)" in message
    assert "playbooks/delete_run.yml -e run=my-run" in message
    assert (tmp_path / "slurm" / "my-run" / "state" / "step-20").is_file()
    shutil.rmtree(tmp_path / "slurm" / "my-run")
    assert ended(dfs_contents, contents("empty", tmp_path))["removed"] == ["slurm"]
    assert not (tmp_path / "slurm").exists()


def test_only_wheel_folders_go_from_anothers_folder(tmp_path):
    wheels = tmp_path / "wheels"
    mine = [".part-x86_64-cp313-0123456789abcdef", "aarch64-cp311-0123456789abcdef"]
    for name in [*mine, "aarch64-cp311", "x86_64-cp311-0123456789abcdef-old", "thesis"]:
        (wheels / name).mkdir(parents=True)
    (wheels / "aarch64-cp312-0123456789abcdef").symlink_to(tmp_path)
    others = sorted({path.name for path in wheels.iterdir()} - set(mine))
    assert ended(dfs_contents, contents("wheels", wheels, check_mode=True)) == {"changed": True, "removed": mine}
    assert ended(dfs_contents, contents("wheels", wheels)) == {"changed": True, "removed": mine}
    assert sorted(os.listdir(wheels)) == others
    assert ended(dfs_contents, contents("wheels", wheels)) == {"changed": False, "removed": []}


def test_wheel_folder_goes_when_nothing_else_is_inside(tmp_path):
    (tmp_path / "wheels" / "aarch64-cp311-0123456789abcdef").mkdir(parents=True)
    ended(dfs_contents, contents("wheels", tmp_path / "wheels"))
    assert os.listdir(tmp_path) == []
    assert ended(dfs_contents, contents("wheels", tmp_path / "wheels"))["changed"] is False


class Daemon:
    """glusterd on one host."""

    def __init__(self, folder):
        self.folder, self.brick = folder, folder / "brick"
        self.settings = folder / "glusterd.vol"
        self.settings.write_text("volume management\n    option base-port 49152\n    option max-port  60999\nend-volume\n")
        self.before, self.runs = self.settings.read_text(), False

    def module(self, state="present", **options):
        def systemctl(argv):
            if argv[1] in ("start", "restart", "enable", "disable"):
                self.runs = argv[1] != "disable"
                return 0, "", ""
            return 0 if self.runs else 3, "", ""

        return Module({"systemctl": systemctl}, brick=str(self.brick), state=state, **options)


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    monkeypatch.setattr(gluster_server.os, "setxattr", lambda *_: None)
    monkeypatch.setattr(gluster_server, "SETTINGS", str(tmp_path / "glusterd.vol"))
    monkeypatch.setattr(gluster_server, "ACCESS", str(tmp_path / "secure-access"))
    monkeypatch.setattr(gluster_server, "RECORD", str(tmp_path / "lib" / "gluster.json"))
    return Daemon(tmp_path)


def serve(daemon, **options):
    return ended(gluster_server, daemon.module(**options))["did"]


def serve_no_more(daemon, **options):
    return ended(gluster_server, daemon.module(state="absent", **options))["did"]


def test_bricks_ports_are_those_that_firewall_names():
    assert settings.BRICK_PORTS[1] == gluster_server.HIGHEST_PORT


def test_server_is_brought_up_once_and_taken_down(daemon):
    assert serve(daemon) == ["limit ports", "start glusterd", "make the brick"]
    assert "option max-port  49251\n" in daemon.settings.read_text()
    assert "option base-port 49152" in daemon.settings.read_text()
    assert serve(daemon) == []
    (daemon.brick / "wheels").mkdir()
    (daemon.brick / ".glusterfs").mkdir()
    assert serve_no_more(daemon) == ["remove the brick", "give back glusterd"]
    assert (daemon.settings.read_text(), daemon.runs, daemon.brick.exists()) == (daemon.before, False, False)
    assert serve_no_more(daemon) == []


def test_daemons_from_before_tls_are_restarted(daemon, monkeypatch):
    """Daemons from before tls are ended and started anew."""
    serve(daemon)
    child = subprocess.Popen([sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"], stdin=-1, stdout=-1)
    child.stdout.readline()
    threading.Thread(target=child.wait).start()
    monkeypatch.setattr(gluster_server._Server, "_old", lambda server: [child.pid] if child.returncode is None else [])
    module = daemon.module()
    assert ended(gluster_server, module)["did"] == ["start the daemons anew"]
    order = [line for line in module.ran if line.split()[1] in ("stop", "restart")]
    assert order == ["systemctl stop glusterd", "systemctl restart glusterd"]
    assert child.wait() == -signal.SIGTERM
    assert serve(daemon) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/usr/sbin/glusterd -p /var/run/glusterd.pid", True),
        ("/usr/sbin/glusterfsd -s 10.0.0.1 --volfile-id lockstep.10.0.0.1.b", True),
        ("/usr/sbin/glusterfs -s localhost --volfile-id shd/lockstep", True),
        ("/usr/sbin/glusterfs --process-name fuse --volfile-id=/lockstep /mnt/x", False),
        ("grep glusterd", False),
    ],
)
def test_daemons_are_recognised_and_mounts_are_not_ended(line, expected):
    assert gluster_server._is_daemon(line.split()) is expected


def test_a_brick_that_was_there_before_stays(daemon):
    daemon.brick.mkdir()
    serve(daemon)
    serve_no_more(daemon)
    assert daemon.brick.exists()


def test_brick_with_files_of_others_is_not_removed(daemon):
    serve(daemon)
    (daemon.brick / "thesis").mkdir()
    assert "also holds thesis, which Lockstep did not put there; move that away first" in failed(
        gluster_server, daemon.module(state="absent")
    )
    assert daemon.runs
    assert (daemon.brick / "thesis").exists()


def test_a_brick_without_extended_attributes_is_refused(daemon, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(gluster_server.os, "setxattr", refuse)
    assert failed(gluster_server, daemon.module()).endswith(
        "can't hold a brick: no extended attributes there (Operation not supported); set dfs_brick to a folder on ext4, xfs or btrfs"
    )


def test_a_checked_server_touches_nothing(daemon):
    assert serve(daemon, check_mode=True) == ["limit ports", "start glusterd", "make the brick"]
    assert (daemon.settings.read_text(), daemon.brick.exists()) == (daemon.before, False)


OPTIONS = {"auth.allow": "10.0.0.1,10.0.0.4,127.0.0.1", "auth.ssl-allow": "pi1,pi4", "client.ssl": "on", "server.ssl": "on"}
PEER = "<peer><hostname>{0}</hostname><hostnames><hostname>{0}</hostname></hostnames><connected>{1}</connected><state>{2}</state></peer>"


class Pool:
    """A pool of servers and its volumes, as `gluster` answers."""

    def __init__(self, folder, monkeypatch):
        self.record, self.peers, self.volume, self.refuses = folder / "lib" / "volume.json", [], None, []
        self.connected = "1"
        monkeypatch.setattr(gluster_volume, "JOIN_S", 0)
        monkeypatch.setattr(gluster_volume, "RECORD", str(self.record))

    def module(self, state="present", **options):
        answers = {
            "gluster --mode=script --xml peer status": self.status,
            "gluster --mode=script --xml volume info": self.info,
            "gluster --mode=script peer probe": self.probe,
            "gluster --mode=script peer detach": self.detach,
            "gluster --mode=script volume create": self.create,
            "gluster --mode=script volume set": self.set,
            "gluster --mode=script volume start": lambda argv: self.change(status="Started"),
            "gluster --mode=script volume stop": lambda argv: self.change(status="Stopped"),
            "gluster --mode=script volume delete": self.delete,
        }
        bricks = [f"10.0.0.{number}:/b" for number in (1, 2, 3)]
        parameters = {
            "name": "lockstep",
            "bricks": bricks,
            "replica": 3,
            "allow": ["10.0.0.1", "10.0.0.4"],
            "names": ["pi1", "pi4"],
            "own": "10.0.0.1",
        }
        return Module(answers, state=state, **{**parameters, **options})

    def status(self, argv):
        peers = "".join(PEER.format(name, self.connected, 3) for name in self.peers)
        return 0, f"<cliOutput><peerStatus>{peers}</peerStatus></cliOutput>", ""

    def info(self, argv):
        if self.volume is None:
            return 0, "<cliOutput><volInfo><volumes><count>0</count></volumes></volInfo></cliOutput>", ""
        bricks = "".join(f"<brick uuid='1'>{brick}<name>{brick}</name></brick>" for brick in self.volume["bricks"])
        shown = "".join(f"<option><name>{name}</name><value>{value}</value></option>" for name, value in self.volume["options"].items())
        options = f"<options>{shown}</options>"
        status = f"<name>lockstep</name><statusStr>{self.volume['status']}</statusStr>"
        return 0, f"<cliOutput><volumes><volume>{status}<bricks>{bricks}</bricks>{options}</volume></volumes></cliOutput>", ""

    def probe(self, argv):
        if argv[-1] in self.refuses:
            return 1, "", "peer probe: failed: Probe returned with Transport endpoint is not connected\n"
        self.peers.append(argv[-1])
        return 0, "", ""

    def detach(self, argv):
        self.peers.remove(argv[-2])
        return 0, "", ""

    def create(self, argv):
        assert argv[5:7] == ["replica", "3"]
        assert argv[-1] == "force"
        self.volume = {"bricks": argv[7:-1], "options": {}, "status": "Created"}
        return 0, "", ""

    def set(self, argv):
        options = dict(zip(argv[5::2], argv[6::2], strict=True))
        # Bricks that run take no other transport.
        assert self.volume["status"] != "Started" or "server.ssl" not in options
        self.volume["options"] |= options
        return 0, "", ""

    def change(self, **new):
        self.volume.update(new)
        return 0, "", ""

    def delete(self, argv):
        assert self.volume["status"] == "Stopped"
        self.volume = None
        return 0, "", ""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    return Pool(tmp_path, monkeypatch)


def make(pool, **options):
    return ended(gluster_volume, pool.module(**options))["did"]


def unmake(pool, **options):
    return ended(gluster_volume, pool.module(state="absent", **options))["did"]


def test_a_volume_is_made_once(pool):
    assert make(pool) == [
        "take in 10.0.0.2",
        "take in 10.0.0.3",
        "create the volume",
        "let the cluster's hosts in",
        "encrypt the volume",
        "start the volume",
    ]
    assert pool.volume == {"bricks": ["10.0.0.1:/b", "10.0.0.2:/b", "10.0.0.3:/b"], "options": OPTIONS, "status": "Started"}
    again = ended(gluster_volume, pool.module())
    assert (again["changed"], "show" in again) == (False, False)


def test_a_stopped_volume_with_other_addresses_is_mended(pool):
    make(pool)
    pool.volume.update(status="Stopped", options={**OPTIONS, "auth.allow": "*"})
    assert make(pool) == ["let the cluster's hosts in", "start the volume"]


def test_joining_host_is_let_in_while_volume_runs(pool):
    make(pool)
    assert make(pool, names=["pi1", "pi4", "pi5"]) == ["let the cluster's hosts in"]
    assert pool.volume["options"]["auth.ssl-allow"] == "pi1,pi4,pi5"


@pytest.mark.parametrize("missing", [("client.ssl", "server.ssl"), ("server.ssl",)])
def test_volume_without_tls_is_restarted_with_it(missing, pool):
    """A volume that runs without tls is stopped and started with it."""
    make(pool)
    for name in missing:
        del pool.volume["options"][name]
    assert make(pool) == ["encrypt the volume", "start the volume"]
    assert (pool.volume["options"], pool.volume["status"]) == (OPTIONS, "Started")
    assert make(pool) == []


def test_a_server_that_does_not_answer_is_named(pool):
    pool.refuses = ["10.0.0.3"]
    message = failed(gluster_volume, pool.module())
    assert "10.0.0.3 can't be taken into GlusterFS's pool: peer probe: failed" in message
    assert message.endswith("Is its port 24007 reachable from here, and is it in no other pool (sudo gluster peer status)?")
    pool.refuses = []
    assert make(pool)[0] == "take in 10.0.0.3"


def test_a_server_that_does_not_join_is_named(pool):
    pool.connected = "0"
    assert "GlusterFS on 10.0.0.2, 10.0.0.3 has not joined within 0 s" in failed(gluster_volume, pool.module())


def test_only_a_volume_made_here_is_dissolved(pool):
    make(pool)
    assert unmake(pool) == ["delete the volume lockstep", "let 10.0.0.2 go", "let 10.0.0.3 go"]
    assert (pool.volume, pool.peers, pool.record.parent.exists()) == (None, [], False)
    assert unmake(pool) == []


def test_a_volume_that_was_there_before_stays(pool):
    pool.peers, pool.volume = ["10.0.0.2", "10.0.0.3"], {"bricks": ["10.0.0.9:/old"], "options": {}, "status": "Started"}
    made = ended(gluster_volume, pool.module())
    assert made["did"] == ["let the cluster's hosts in", "encrypt the volume", "start the volume"]
    assert made["show"].startswith("warning: the volume lockstep keeps the servers that it was made with: 10.0.0.9:/old. To spread it")
    assert unmake(pool) == []
    assert pool.volume["bricks"] == ["10.0.0.9:/old"]


def test_what_is_made_is_recorded_before_next_step(pool):
    pool.refuses = ["10.0.0.3"]
    failed(gluster_volume, pool.module())
    assert json.loads(pool.record.read_text()) == {"peers": ["10.0.0.2"]}
    assert unmake(pool) == ["let 10.0.0.2 go"]


def test_a_checked_volume_touches_nothing(pool):
    assert make(pool, check_mode=True)[-1] == "start the volume"
    assert (pool.volume, pool.peers) == (None, [])
    assert make(pool, check_mode=True, programs=[]) == ["create the volume"]


def test_checked_volume_does_not_need_daemon_to_run(pool):
    module = pool.module(check_mode=True)
    module.answers["gluster --mode=script peer status"] = (1, "", "Connection failed.")
    module.answers["gluster --mode=script --xml peer status"] = (1, "", "Connection failed.")
    assert ended(gluster_volume, module)["did"] == ["create the volume"]


def test_silent_daemon_says_where_to_look(pool):
    module = pool.module()
    module.answers["gluster --mode=script --xml peer status"] = (1, "", "Connection failed. Please check if gluster daemon is operational.")
    assert "Please check if gluster daemon is operational.; look at: journalctl -u glusterd" in failed(gluster_volume, module)
