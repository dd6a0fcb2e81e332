"""The doctor's lines: every trouble that people meet, with its exact message."""

import copy
import json

import pytest

from trainer.analysis import checks
from trainer.analysis.checks import FAIL, OK, WARN, Check, Requirement

NAMES = ["node01", "node02", "node03", "node04", "node05"]
TOKEN = "/mnt/shared/lockstep/tokens/1"
MANIFEST = "/mnt/shared/lockstep/packs/1/manifest.json"


def address(name):
    return f"10.0.0.{int(name[-2:])}"


def inventory(names=NAMES):
    return [{"name": name, "address": address(name), "port": 12345, "user": "pi"} for name in names]


def healthy(name):
    return {
        "hostname": name,
        "user": "pi",
        "machine": "aarch64",
        "os": "Debian GNU/Linux 12 (bookworm)",
        "model": "Raspberry Pi 4 Model B Rev 1.4",
        "cores": 4,
        "cpu_quota": None,
        "cpus": 4,
        "load": 0.1,
        "memory": {"total_mb": 3794, "available_mb": 3100},
        "disk": {"free_mb": 20000, "writable": True, "exists": True, "need_mb": 0},
        "tmux": "3.3a",
        "python": {
            "path": "/home/pi/lockstep/venv/bin/python",
            "version": "3.11.2",
            "packages": {"tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "2.4.6"},
        },
        "port": {"number": 12345, "state": "free"},
        "boot": f"boot-{name}",
        "governors": ["performance"],
        "temperature": 51.2,
        "throttled": {"now": [], "since_boot": []},
        "speed": 200.0,
        "dfs": {
            "path": "/mnt/shared/lockstep",
            "kind": "glusterfs",
            "mount": "/mnt/shared",
            "type": "fuse.glusterfs",
            "source": "node01:/dfs",
            "free_mb": 50000,
            "writable": True,
            "exists": True,
        },
        "name": {"addresses": [address(name)]},
        "address": {"given": address(name), "addresses": [address(name)], "own": True, "all": [address(name)]},
        "tokens": [{"path": TOKEN, "bytes": 1, "sha256": "70ce"}, {"path": MANIFEST, "bytes": 1, "sha256": "da7a" * 16}],
        "before": 1000.0,
        "after": 1001.0,
        "seconds": 0.2,
        "time": 1000.7,
    }


def network_of(names=NAMES, mbit_s=940.0, rtt_ms=0.3):
    def pair():
        return {"reachable": True, "rtt_ms": rtt_ms, "clock_s": 0.01, "mtu": 1500, "mtu_trouble": False, "mbit_s": mbit_s}

    return {
        name: {
            "pairs": {other: pair() for other in names if other != name},
            "ring": {"to": names[(rank + 1) % len(names)], "mbit_s": mbit_s},
            "listening": None,
            "leader": names[0],
        }
        for rank, name in enumerate(names)
    }


NEED = Requirement(token=(TOKEN, "70ce"), files={MANIFEST: "da7a" * 16}, inventory="inventory/mine")


def doctor(change=None, network=None, hosts=None, need=NEED):
    """Lines that are not OK after one change to five healthy hosts."""
    hosts = hosts or inventory()
    facts = {host["name"]: healthy(host["name"]) for host in hosts}
    if change:
        change(facts)
    found = checks.examine(hosts, facts, network, need)
    assert {check.host for check in found} >= {host["name"] for host in hosts}
    return checks.render([check for check in found if check.level != OK]).splitlines()[:-1]


def setting(*path):
    """A change: `setting("node03", "disk", "free_mb", 3)`."""
    *keys, last, value = path

    def change(facts):
        place = facts
        for key in keys:
            place = place[key]
        place[last] = value

    return change


# --- all well


def test_healthy_cluster_has_nothing_to_say():
    assert doctor() == []
    assert doctor(network=network_of()) == []


def test_every_check_of_a_healthy_host_is_shown_when_asked():
    hosts = inventory(["node01", "node02"])
    found = checks.examine(hosts, {host["name"]: healthy(host["name"]) for host in hosts}, network_of(["node01", "node02"]), NEED)
    lines = checks.render(found, verbose=True).splitlines()
    assert lines[:16] == [
        "[OK]   node01  ssh          reachable as pi",
        "[OK]   node01  python       3.11.2, TensorFlow 2.21.0",
        "[OK]   node01  machine      aarch64, Raspberry Pi 4 Model B Rev 1.4, 4 CPUs, Debian GNU/Linux 12 (bookworm)",
        "[OK]   node01  disk         20,000 MB free",
        "[OK]   node01  memory       3,100 of 3,794 MB available",
        "[OK]   node01  clock        right within 0.5 s",
        "[OK]   node01  tmux         3.3a",
        "[OK]   node01  port         12345 is free",
        "[OK]   node01  name         node01 is 10.0.0.1",
        "[OK]   node01  dfs          /mnt/shared/lockstep (fuse.glusterfs of node01:/dfs), 50,000 MB free",
        f"[OK]   node01  file         {MANIFEST} da7ada7ada7ada7a",
        "[OK]   node01  throttling   not throttled",
        "[OK]   node01  temperature  51 C",
        "[OK]   node01  governor     performance",
        "[OK]   node01  load         load 0.1 on 4 cores",
        "[OK]   node01  address      10.0.0.1",
    ]
    assert lines[16] == "[OK]   node01  network      reaches 1 of 1 others, 0.3 ms, 940 Mbit/s"
    assert lines[-1] == "2 hosts, 34 checks: 34 OK, 0 WARN, 0 FAIL; this cluster can train"


# --- SSH


CHANGED = """Failed to connect to the host via ssh: @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Offending ECDSA key in /home/me/.ssh/known_hosts:3
Host key verification failed."""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            "Failed to connect to the host via ssh: ssh: connect to host 10.0.0.2 port 22: Connection timed out",
            "it is down, or a firewall is in between. Mend: switch it on and look: ping -c 3 10.0.0.2",
        ),
        (
            "Failed to connect to the host via ssh: ssh: connect to host 10.0.0.2 port 22: No route to host",
            "it is down, or in another network. Mend: switch it on and look: ping -c 3 10.0.0.2",
        ),
        (
            "Failed to connect to the host via ssh: ssh: connect to host 10.0.0.2 port 22: Connection refused",
            "no SSH server answers. Mend: on it: sudo apt-get install openssh-server && sudo systemctl enable --now ssh",
        ),
        (
            "Failed to connect to the host via ssh: pi@10.0.0.2: Permission denied (publickey,password).",
            "it refuses the key. Mend: ssh-copy-id pi@10.0.0.2, or set ansible_user and ansible_ssh_private_key_file",
        ),
        (
            CHANGED,
            "its host key has changed. Mend: when it was set up anew: ssh-keygen -R 10.0.0.2; when not, somebody answers for it",
        ),
        (
            "Failed to connect to the host via ssh: Host key verification failed.",
            "its host key is not known here. Mend: ssh pi@10.0.0.2, compare the key, answer yes",
        ),
        (
            "ssh: Could not resolve hostname node02: Name or service not known",
            "its name is unknown here. Mend: set ansible_host to its address",
        ),
        ("sudo: a password is required", "sudo asks for a password. Mend: give --ask-become-pass, or allow pi sudo without one"),
        (
            "mkdir: cannot create directory: No space left on device",
            "its disk is full. Mend: ssh pi@10.0.0.2 df -h, and remove what is not needed",
        ),
        ("first\nkex: something new\n", "can't be reached: kex: something new. Mend: ssh -v pi@10.0.0.2"),
        ("", "can't be reached: no reason given. Mend: ssh -v pi@10.0.0.2"),
    ],
)
def test_errors_of_ssh(message, line):
    assert doctor(lambda facts: facts.update(node02={"unreachable": message})) == [f"[FAIL] node02  ssh  {line}"]


def test_mends_for_another_ssh_port_and_no_user():
    host = {"name": "n", "address": "10.0.0.9", "ssh": "192.0.2.9", "ssh_port": 2222, "port": 12345}
    assert checks.ssh(host, CHANGED).mend.startswith("when it was set up anew: ssh-keygen -R '[192.0.2.9]:2222';")
    assert checks.ssh(host, "Host key verification failed.").mend == "ssh -p 2222 192.0.2.9, compare the key, answer yes"


def test_host_that_was_never_asked():
    assert doctor(lambda facts: facts.pop("node04")) == ["[FAIL] node04  ssh  can't be reached: was not asked. Mend: ssh -v pi@10.0.0.4"]


# --- one host

PROVISION = "ansible-playbook -i inventory/mine provision.yml"
DISK = "df -h on it; remove old runs (ansible-playbook playbooks/delete_run.yml -e run=NAME), or set worker_root to a larger disk"
CLOCK = "on it: sudo timedatectl set-ntp true"
SHARE = f"mount the shared file system there on every host ({PROVISION}), or set dfs_path"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("disk", "free_mb", 100), f"[FAIL] node02  disk  100 MB free (limit: at least 512 MB). Mend: {DISK}"),
        (("disk", "free_mb", 900), f"[WARN] node02  disk  900 MB free (limit: at least 512 MB). Mend: {DISK}"),
        (("disk", "need_mb", 30000), f"[FAIL] node02  disk  20,000 MB free (limit: at least 30,000 MB). Mend: {DISK}"),
        (
            ("disk", "writable", False),
            "[FAIL] node02  disk  worker_root can't be written (limit: at least 512 MB). "
            "Mend: sudo chown its folder to the worker's user, or set worker_root",
        ),
        (
            ("memory", "available_mb", 800),
            "[FAIL] node02  memory  800 of 3,794 MB available (limit: at least 900 MB). "
            "Mend: end other programs on it, or -e set=train.batch_size=N with a smaller N",
        ),
        (
            ("memory", "available_mb", 1000),
            "[WARN] node02  memory  1,000 of 3,794 MB available (limit: at least 900 MB). "
            "Mend: end other programs on it, or -e set=train.batch_size=N with a smaller N",
        ),
        (("time", 4600.7), f"[FAIL] node02  clock  1:00:00 h ahead (limit: 1 s). Mend: {CLOCK}"),
        (("time", 995.6), f"[WARN] node02  clock  5.0 s behind (limit: 1 s). Mend: {CLOCK}"),
        (("tmux", None), "[FAIL] node02  tmux  is missing. Mend: on it: sudo apt-get install tmux"),
        (
            ("port", "state", "forbidden"),
            "[FAIL] node02  port  12345 may not be opened by this user (limit: 1024 or above). Mend: set another worker_port",
        ),
        (
            ("port", {"number": 12345, "state": "busy", "process": "nginx (812)"}),
            "[FAIL] node02  port  12345 is held by nginx (812) (limit: free). Mend: end that program, or set another worker_port",
        ),
        (
            ("port", {"number": 12345, "state": "busy", "process": None}),
            "[FAIL] node02  port  12345 is held by another user's program (on it: sudo ss -ltnp 'sport = :12345') (limit: free). "
            "Mend: end that program, or set another worker_port",
        ),
        (
            ("port", {"number": 12345, "state": "held", "run": "cnn-1"}),
            "[FAIL] node02  port  run cnn-1 is training on 12345 (limit: free). "
            "Mend: wait for it, ansible-playbook stop.yml -e run=cnn-1, or set another worker_port",
        ),
        (
            ("python", "version", "3.9.2"),
            "[FAIL] node02  python  3.9.2 (/home/pi/lockstep/venv/bin/python) (limit: 3.11 to 3.13). "
            "Mend: install one of these and set worker_python to it",
        ),
        (
            ("python", {"path": "/opt/python", "error": "is missing"}),
            f"[FAIL] node02  python  /opt/python is missing (limit: 3.11 to 3.13). Mend: {PROVISION}, or set worker_python",
        ),
        (
            ("python", "packages", {"keras": "3.15.1", "numpy": "2.4.6"}),
            "[FAIL] node02  python  no TensorFlow in /home/pi/lockstep/venv/bin/python (limit: requirements/node.txt). "
            + f"Mend: {PROVISION}",
        ),
        (
            ("python", "packages", "tensorflow", "2.20.0"),
            f"[FAIL] node02  tensorflow  2.20.0, the others 2.21.0 (limit: 2.21.0). Mend: {PROVISION} (installs the locked versions)",
        ),
        (
            ("python", "packages", "numpy", "2.0.0"),
            f"[WARN] node02  numpy  2.0.0, the others 2.4.6 (limit: 2.4.6). Mend: {PROVISION} (installs the locked versions)",
        ),
        (
            ("python", "packages", {"tensorflow-cpu": "2.21.0", "numpy": "2.4.6"}),
            f"[FAIL] node02  keras  missing, the others 3.15.1 (limit: 3.15.1). Mend: {PROVISION} (installs the locked versions)",
        ),
        (
            ("python", "version", "3.13.1"),
            "[WARN] node02  python  3.13, the others 3.11 (limit: 3.11). Mend: use one version everywhere, so that results can be repeated",
        ),
        (
            ("machine", "x86_64"),
            "[WARN] node02  machine  x86_64, the others aarch64 (limit: aarch64). Mend: trains; the slower kind sets the pace of all",
        ),
        (
            ("name", "addresses", ["127.0.1.1"]),
            "[WARN] node02  name  node02 means 127.0.1.1 on the host itself (limit: an address the others reach). "
            "Mend: harmless while worker_address is an IP address; or on it, in /etc/hosts, give node02 its address instead of 127.0.1.1",
        ),
        (
            ("name", {"error": "no answer in 2 s"}),
            "[WARN] node02  name  node02 can't be resolved: no answer in 2 s. Mend: on it, add node02 to /etc/hosts",
        ),
        (
            ("address", {"given": "10.0.0.2", "addresses": ["10.0.0.2"], "own": False, "all": ["10.0.0.7"]}),
            "[FAIL] node02  address  10.0.0.2 is not an address of this host (it has 10.0.0.7) (limit: its own). "
            "Mend: set worker_address to 10.0.0.7",
        ),
        (
            ("dfs", {"error": "Transport endpoint is not connected"}),
            "[FAIL] node02  dfs  the shared folder does not answer: Transport endpoint is not connected. "
            f"Mend: on it: sudo mount -a; or {PROVISION}",
        ),
        (
            ("dfs", "type", "ext4"),
            "[FAIL] node02  dfs  /mnt/shared/lockstep (ext4 of node01:/dfs) is no GlusterFS mount (limit: one folder that all hosts see). "
            f"Mend: {SHARE}",
        ),
        (
            ("dfs", "writable", False),
            "[FAIL] node02  dfs  /mnt/shared/lockstep (fuse.glusterfs of node01:/dfs) can't be written by pi. "
            "Mend: sudo chown pi /mnt/shared/lockstep",
        ),
        (
            ("tokens", 0, {"path": TOKEN, "error": "No such file or directory"}),
            "[FAIL] node02  dfs  /mnt/shared/lockstep (fuse.glusterfs of node01:/dfs) is not shared: a file just written by another host "
            f"is not there (No such file or directory) (limit: one folder that all hosts see). Mend: {SHARE}",
        ),
        (
            ("tokens", 0, "sha256", "bad"),
            "[FAIL] node02  dfs  /mnt/shared/lockstep (fuse.glusterfs of node01:/dfs) is not shared: a file just written by another host "
            f"has another content here (limit: one folder that all hosts see). Mend: {SHARE}",
        ),
        (
            ("tokens", 1, {"path": MANIFEST, "error": "Permission denied"}),
            f"[FAIL] node02  file  {MANIFEST} can't be read: Permission denied (limit: readable). "
            "Mend: ls -l it on the host; train.yml publishes it anew when it is gone from the shared folder",
        ),
        (
            ("tokens", 1, "sha256", "0123456789abcdef0"),
            f"[FAIL] node02  file  {MANIFEST} has digest 0123456789abcdef (limit: da7ada7ada7ada7a). "
            f"Mend: remove {MANIFEST}; train.yml publishes it anew",
        ),
        (
            ("throttled", {"now": ["under-voltage"], "since_boot": []}),
            "[WARN] node02  throttling  now: under-voltage. Mend: use the maker's power supply and a short cable",
        ),
        (
            ("throttled", {"now": [], "since_boot": ["throttled"]}),
            "[WARN] node02  throttling  since it started: throttled. Mend: give it a fan or a heat sink",
        ),
        (("temperature", 79.6), "[WARN] node02  temperature  80 C (limit: below 75 C). Mend: give it a fan or a heat sink"),
        (
            ("governors", ["ondemand"]),
            "[WARN] node02  governor  ondemand (limit: performance). "
            "Mend: on it: echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        ),
        (("load", 3.2), "[WARN] node02  load  load 3.2 on 4 cores (limit: at most 2). Mend: end what else runs there (top shows it)"),
        (
            ("speed", 90.0),
            "[WARN] node02  speed  90 MB/s a core, the others 200 (limit: at least 160). "
            "Mend: the slowest host sets the pace: leave it out, or mend what holds it back",
        ),
        (
            ("cpus", 2),
            "[WARN] node02  speed  2 CPUs, the others 4 (limit: at least 3.2). "
            "Mend: the slowest host sets the pace: leave it out, or mend what holds it back",
        ),
    ],
)
def test_troubles_of_one_host(change, line):
    assert doctor(setting("node02", *change)) == [line]


def test_a_32_bit_system():
    found = checks.machine({"name": "n"}, {**healthy("node02"), "machine": "armv7l"})
    assert (found.level, found.value, found.limit) == (FAIL, "armv7l", "x86_64 or aarch64")
    assert found.mend == "install a 64-bit system, or leave this host out"


def test_a_shared_folder_on_the_own_disk_without_a_token():
    facts = healthy("node02")
    facts["dfs"] |= {"kind": "mounted", "type": "ext4", "source": "/dev/sda1"}
    (found,) = checks.dfs({"name": "node02"}, facts, Requirement())
    assert (found.level, found.value) == (FAIL, "/mnt/shared/lockstep (ext4 of /dev/sda1) is on this host's own disk")
    facts["dfs"]["kind"] = "local"
    assert [one.level for one in checks.dfs({"name": "node02"}, facts, Requirement())] == [OK]
    facts["dfs"] |= {"kind": "mounted", "type": "nfs4"}
    assert [one.level for one in checks.dfs({"name": "node02"}, facts, Requirement())] == [OK]
    assert [one.level for one in checks.dfs({"name": "node02"}, facts, Requirement(dfs_mb=60000))] == [FAIL]


def test_port_held_by_the_run_that_is_continued():
    change = setting("node02", "port", {"number": 12345, "state": "held", "run": "cnn-1"})
    assert doctor(change, need=Requirement(run="cnn-1")) == []
    assert len(doctor(change, need=Requirement(run="cnn-2"))) == 1


def test_clock_counts_only_what_is_certain():
    facts = {"before": 1000.0, "after": 1010.0, "seconds": 2.0, "time": 1014.9}
    assert checks.skew(facts) == pytest.approx((8.9, 4.0))
    assert [one.level for one in checks.clock({"name": "n"}, facts)] == [WARN]
    assert [one.level for one in checks.clock({"name": "n"}, {**facts, "time": 1010.9})] == [OK]
    assert list(checks.clock({"name": "n"}, {"time": 1.0})) == []


def test_load_in_a_container_is_not_its_own():
    assert doctor(lambda facts: facts["node02"].update(load=9.0, cpu_quota=0.38)) == []


def test_other_processors_may_be_hotter():
    def change(facts):
        facts["node02"].update(model="AMD EPYC", temperature=80.0)

    assert doctor(change) == []


# --- names and addresses


def test_name_as_an_address_that_means_the_loopback():
    hosts = inventory()
    hosts[1]["address"] = "node02"

    def change(facts):
        facts["node02"]["name"] = {"addresses": ["127.0.1.1"]}
        facts["node02"]["address"] = {"given": "node02", "addresses": ["127.0.1.1"], "own": True, "all": ["10.0.0.2"]}

    assert doctor(change, hosts=hosts) == [
        "[FAIL] node02  name  node02 means 127.0.1.1 on the host itself (limit: an address the others reach). "
        "Mend: set worker_address to its IP address; or on it, in /etc/hosts, give node02 its address instead of 127.0.1.1"
    ]


def test_two_hosts_with_one_address():
    hosts = inventory()
    hosts[3]["address"] = "10.0.0.2"

    def change(facts):
        facts["node04"] = {**healthy("node02")}

    assert doctor(change, hosts=hosts) == [
        "[FAIL] node04  address  node02 and node04 both have 10.0.0.2:12345 (limit: one worker each). "
        "Mend: give each a worker_address (or ansible_host) of its own in the inventory"
    ]


def test_an_address_that_two_machines_claim():
    assert doctor(setting("node04", "address", "all", ["10.0.0.2", "10.0.0.4"])) == [
        "[FAIL] node02  address  10.0.0.2 is also an address of node04 (limit: one machine an address). "
        "Mend: give each machine an address of its own (ip addr shows them)"
    ]


def test_one_machine_under_two_addresses():
    def change(facts):
        facts["node04"].update(boot="boot-node02", hostname="node02", name={"addresses": ["10.0.0.4"]})

    assert doctor(change) == [
        "[WARN] node04  address  node02 and node04 are one machine (node02) under two addresses (limit: a machine each). "
        "Mend: give each a worker_address (or ansible_host) of its own in the inventory"
    ]


def test_containers_of_one_machine_are_hosts_of_their_own():
    def change(facts):
        for found in facts.values():
            found["boot"] = "same"

    assert doctor(change) == []


def test_workers_of_the_local_inventory():
    hosts = [{"name": f"worker{rank}", "address": "127.0.0.1", "port": 12345 + rank} for rank in (0, 1)]
    here = {**healthy("node01"), "name": {"addresses": ["127.0.1.1"]}}
    here["address"] = {"given": "127.0.0.1", "addresses": ["127.0.0.1"], "own": True, "all": ["10.0.0.1"]}
    found = checks.examine(hosts, {host["name"]: copy.deepcopy(here) for host in hosts}, None, NEED)
    assert [check for check in found if check.level != OK] == []


def test_a_foreign_address_that_is_reached_all_the_same():
    change = setting("node02", "address", {"given": "10.0.0.2", "addresses": ["10.0.0.2"], "own": False, "all": []})
    (line,) = doctor(change, network=network_of())
    assert line.startswith("[WARN] node02  address  10.0.0.2 is not an address of this host (it has none)")


# --- the network


def change_pairs(network, value, chosen):
    for here, found in network.items():
        for there, pair in found["pairs"].items():
            if chosen(here, there):
                pair.update(value)
    return network


def unreachable(kind, error):
    return {"reachable": False, "kind": kind, "error": error, "mbit_s": None, "rtt_ms": None}


@pytest.mark.parametrize(
    ("kind", "error", "mend"),
    [
        ("timeout", "timed out", "a firewall drops it, or the address is wrong: open TCP port 12345 of node03 for all workers"),
        (
            "refused",
            "Connection refused",
            "on node03: a firewall that rejects? sudo nft list ruleset; the port must be open for all workers",
        ),
        (
            "stranger",
            "something else listens there",
            "on node03: sudo ss -ltnp 'sport = :12345' shows the program; end it, or set another worker_port",
        ),
        ("wrong_host", "node04 answers there", "two hosts have one address: give each a worker_address of its own"),
    ],
)
def test_a_host_that_nobody_reaches_is_named_once(kind, error, mend):
    network = change_pairs(network_of(), unreachable(kind, error), lambda here, there: there == "node03")
    assert doctor(network=network) == [
        f"[FAIL] node03  reach  node03 (10.0.0.3:12345) can't be reached from any host: {error} (limit: reachable). Mend: {mend}"
    ]


def test_one_pair_that_does_not_reach():
    network = change_pairs(
        network_of(), unreachable("no_route", "No route to host"), lambda here, there: (here, there) == ("node01", "node03")
    )
    assert doctor(network=network) == [
        "[FAIL] node01  reach  node03 (10.0.0.3:12345) can't be reached from node01: No route to host (limit: reachable). "
        "Mend: is node03 on, and in the same network? On node01: ip route get 10.0.0.3"
    ]


def test_of_several_reasons_the_most_telling_is_shown():
    network = change_pairs(network_of(), unreachable("timeout", "timed out"), lambda here, there: there == "node03")
    network["node02"]["pairs"]["node03"] = unreachable("no_route", "No route to host")
    assert doctor(network=network) == [
        "[FAIL] node03  reach  node03 (10.0.0.3:12345) can't be reached from any host: No route to host (limit: reachable). "
        "Mend: is node03 on, and in the same network? On node02: ip route get 10.0.0.3"
    ]


def test_a_busy_port_is_told_once():
    network = change_pairs(network_of(), unreachable("stranger", "something else"), lambda here, there: there == "node03")
    network["node03"]["listening"] = "port 12345: Address already in use"
    assert doctor(network=network) == [
        "[FAIL] node03  listen  could not listen: port 12345: Address already in use (limit: free). "
        "Mend: end the program that holds it, or set another worker_port"
    ]


@pytest.mark.parametrize("names", [NAMES, NAMES[:4], NAMES[:3]])
def test_a_slow_host_is_named_and_not_its_links(names):
    network = change_pairs(network_of(names), {"mbit_s": 94.0}, lambda here, there: "node03" in (here, there))
    assert doctor(network=network, hosts=inventory(names)) == [
        "[WARN] node03  bandwidth  all links of node03 are slow: 94 Mbit/s, good ones 940 Mbit/s (limit: at least 470 Mbit/s). "
        "Mend: look at the cable and switch port of node03: sudo ethtool INTERFACE | grep Speed"
    ]


def test_a_slow_pair():
    network = change_pairs(network_of(), {"mbit_s": 200.0}, lambda here, there: (here, there) == ("node02", "node05"))
    assert doctor(network=network) == [
        "[WARN] node02  bandwidth  to node05 200 Mbit/s, good links 940 Mbit/s (limit: at least 470 Mbit/s). "
        "Mend: look at the cable and switch port of node02 and node05: sudo ethtool INTERFACE | grep Speed"
    ]


def test_all_links_slow():
    assert doctor(network=network_of(mbit_s=20.0)) == [
        "[WARN] all  bandwidth  every link is slow (median 20 Mbit/s) (limit: at least 50 Mbit/s). "
        "Mend: look at the cable and switch port of every host: sudo ethtool INTERFACE | grep Speed"
    ]


def test_a_distant_host():
    network = change_pairs(network_of(), {"rtt_ms": 12.0}, lambda here, there: "node05" in (here, there))
    assert doctor(network=network) == [
        "[WARN] node05  delay  all links of node05 are slow: 12.0 ms, good ones 0.3 ms (limit: at most 5.0 ms). "
        "Mend: connect node05 by cable to the others' switch"
    ]


def test_a_shared_uplink_shows_in_the_ring():
    network = network_of()
    network["node02"]["ring"]["mbit_s"] = 300.0
    assert doctor(network=network) == [
        "[WARN] node02  ring  300 Mbit/s to node03 while all send at once, 940 Mbit/s alone (limit: at least 470 Mbit/s). "
        "Mend: a switch, an uplink or a processor is shared: give every host its own port on one switch"
    ]


def test_a_host_that_is_slow_anyway_is_not_blamed_for_the_ring_as_well():
    network = change_pairs(network_of(), {"mbit_s": 94.0}, lambda here, there: "node03" in (here, there))
    network["node02"]["ring"]["mbit_s"] = network["node03"]["ring"]["mbit_s"] = 90.0
    assert [line.split()[2] for line in doctor(network=network)] == ["bandwidth"]


def test_a_host_behind_a_path_on_which_large_packets_vanish():
    network = change_pairs(network_of(), {"mtu_trouble": True, "mbit_s": None}, lambda here, there: "node04" in (here, there))
    assert doctor(network=network) == [
        "[FAIL] node04  mtu  on all links of node04 small packets pass and large ones vanish (limit: all sizes pass). "
        "Mend: set the smallest MTU of the path on all hosts (sudo ip link set dev INTERFACE mtu 1400), or let ICMP through"
    ]


def test_others_of_an_unreachable_host_say_how_many_they_reach():
    network = change_pairs(network_of(), unreachable("timeout", "timed out"), lambda here, there: there == "node03")
    found = checks.between(inventory(), network)
    assert "reaches 3 of 4 others, 0.3 ms, 940 Mbit/s" in [check.value for check in found if check.host == "node01"]
    assert [check.value for check in found if check.level == FAIL] == ["node03 (10.0.0.3:12345) can't be reached from any host: timed out"]


def test_large_packets_that_vanish():
    network = change_pairs(network_of(), {"mtu_trouble": True, "mbit_s": None}, lambda here, there: (here, there) == ("node01", "node02"))
    assert doctor(network=network) == [
        "[FAIL] node01  mtu  to node02 small packets pass and large ones vanish (MTU here 1500) (limit: all sizes pass). "
        "Mend: set the smallest MTU of the path on node01 and node02 (sudo ip link set dev INTERFACE mtu 1400), or let ICMP through"
    ]


def test_another_mtu():
    network = change_pairs(network_of(), {"mtu": 9000}, lambda here, there: here == "node04")
    assert doctor(network=network) == [
        "[WARN] node04  mtu  9000, the others 1500 (limit: 1500). "
        "Mend: on it: sudo ip link set dev INTERFACE mtu 1500, and the same on the switch"
    ]


def test_a_link_lost_while_measuring():
    network = change_pairs(
        network_of(), {"error": "lost while measuring: timed out"}, lambda here, there: (here, there) == ("node01", "node02")
    )
    assert doctor(network=network) == [
        "[WARN] node01  network  to node02: lost while measuring: timed out. "
        "Mend: run the doctor again; then look at the cables of node01 and node02"
    ]


def off_by_three(network):
    change_pairs(network, {"clock_s": -3.0}, lambda here, there: here == "node02")
    return change_pairs(network, {"clock_s": 3.0}, lambda here, there: there == "node02")


def test_hosts_see_a_clock_that_the_control_node_can_not_judge():
    def change(facts):
        for found in facts.values():
            found["after"] = 1010.0

    assert doctor(change, network=off_by_three(network_of())) == [
        f"[WARN] node02  clock  3.0 s ahead of the other hosts (limit: 1 s). Mend: {CLOCK}"
    ]


def test_a_wrong_clock_is_told_once():
    lines = doctor(setting("node02", "time", 1003.6), network=off_by_three(network_of()))
    assert lines == [f"[WARN] node02  clock  3.0 s ahead (limit: 1 s). Mend: {CLOCK}"]


def test_a_host_without_network_results():
    network = network_of()
    network["node05"] = {"unreachable": "gone"}
    assert doctor(network=network) == []


# --- output


def test_matrix():
    network = change_pairs(network_of(NAMES[:3]), unreachable("timeout", ""), lambda here, there: (here, there) == ("node01", "node03"))
    network["node02"]["pairs"]["node03"]["mbit_s"] = None
    assert checks.matrix(network).splitlines() == [
        "delay (ms)    node01    node02    node03",
        "node01             -      0.30         !",
        "node02          0.30         -      0.30",
        "node03          0.30      0.30         -",
        "",
        "bandwidth (Mbit/s)    node01    node02    node03",
        "node01                     -       940         !",
        "node02                   940         -         ?",
        "node03                   940       940         -",
    ]


def test_matrix_without_bandwidth_and_with_an_unreachable_host():
    network = change_pairs(network_of(NAMES[:2]), {"mbit_s": None}, lambda here, there: True)
    network["node03"] = {"unreachable": "gone"}
    assert checks.matrix(network).splitlines()[0] == "delay (ms)    node01    node02"
    assert "bandwidth" not in checks.matrix(network)


def test_exit_status_counts_failures_only():
    ok, warn, fail = (checks.Check(level, "n", "x", "y") for level in (OK, WARN, FAIL))
    assert [checks.exit_status(those) for those in ([], [ok], [ok, warn], [warn, fail])] == [0, 0, 0, 1]


def test_summary_counts():
    ok, warn, fail = (checks.Check(level, "n", "x", "y") for level in (OK, WARN, FAIL))
    assert checks.render([ok]) == "1 host, 1 checks: 1 OK, 0 WARN, 0 FAIL; this cluster can train"
    assert checks.render([ok, warn, fail]).splitlines()[-1] == "1 host, 3 checks: 1 OK, 1 WARN, 1 FAIL; this cluster can't train"


def test_document_is_json():
    facts = {name: healthy(name) for name in NAMES}
    found = checks.examine(inventory(), facts, network_of(), NEED)
    written = json.loads(json.dumps(checks.document(found, facts, network_of(), {"images_per_s": 1.0})))
    assert written["ok"] is True
    assert written["checks"][0] == {"level": "OK", "host": "node01", "name": "ssh", "value": "reachable as pi", "limit": "", "mend": ""}
    assert written["summary"].startswith("5 hosts, ")
    assert set(written) == {"ok", "summary", "checks", "facts", "network", "prediction"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [({}, []), ({"a": 1, "b": 1}, []), ({"a": 1, "b": 2}, [("b", 1)]), ({"a": 1, "b": 2, "c": 2}, [("a", 2)])],
)
def test_the_odd_one_out(values, expected):
    assert checks.odd(values) == expected


def test_hosts_with_the_same_trouble_share_a_line():
    found = [Check(FAIL, f"n{number}", "tmux", "is missing", mend="install it") for number in (1, 2)]
    found += [Check(OK, "n3", "tmux", "3.3"), Check(FAIL, "n3", "disk", "1 MB free")]
    assert checks.render(found).splitlines() == [
        "[FAIL] n1, n2  tmux  is missing. Mend: install it",
        "[FAIL] n3      disk  1 MB free",
        "3 hosts, 4 checks: 1 OK, 0 WARN, 3 FAIL; this cluster can't train",
    ]
