"""The doctor's lines: every trouble of one host, and of hosts that differ, with its exact message."""

import copy

import pytest

from control.doctor.checks import across, host, model, report
from control.doctor.checks.model import FAIL, OK, WARN, Requirement
from tests.unit.doctor_samples import MANIFEST, NEED, TOKEN, doctor, healthy, inventory, network_of, setting

PROVISION = "ansible-playbook -i inventory/mine provision.yml"
DISK = "remove old runs (below worker_root/runs on it), or set worker_root to a larger disk"
CLOCK = "on node02: sudo timedatectl set-ntp true"
INSTALL = f"Fix: {PROVISION} (installs the locked versions)"
MEMORY = "Fix: end other programs on it, or -e set=train.batch_size=N with a smaller N"
SLOW = "Fix: the slowest host sets the pace: leave it out, or fix what holds it back"
DFS = "dfs  /mnt/shared/lockstep (fuse.glusterfs of node01:/dfs)"
SHARE = f"mount the shared file system there on every host ({PROVISION}), or set dfs_path"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("disk", "free_mb", 100), f"[FAIL] disk  100 MB free (limit: at least 512 MB). Fix: {DISK}"),
        (
            ("disk", "free_mb", 900),
            f"[WARN] disk  900 MB free (limit: 1,024 MB for the snapshots of all epochs, and some to spare). Fix: {DISK}",
        ),
        (("disk", "need_mb", 30000), f"[FAIL] disk  20,000 MB free (limit: at least 30,000 MB). Fix: {DISK}"),
        (
            ("disk", "writable", False),
            "[FAIL] disk  worker_root can't be written (limit: at least 512 MB). "
            "Fix: sudo chown its folder to the worker's user, or set worker_root",
        ),
        (("memory", "available_mb", 800), "[FAIL] memory  800 of 3,794 MB available (limit: at least 900 MB). " + MEMORY),
        (("memory", "available_mb", 1000), "[WARN] memory  1,000 of 3,794 MB available (limit: at least 900 MB). " + MEMORY),
        (("time", 4600.7), f"[FAIL] clock  1:00:00 h ahead (limit: 1 s). Fix: {CLOCK}"),
        (("time", 995.6), f"[WARN] clock  5.0 s behind (limit: 1 s). Fix: {CLOCK}"),
        (("tmux", None), "[FAIL] tmux  is missing. Fix: on node02: sudo apt-get install tmux"),
        (
            ("port", "state", "forbidden"),
            "[FAIL] port  12345 may not be opened by this user (limit: 1024 or above). Fix: set another worker_port",
        ),
        (
            ("port", {"number": 12345, "state": "busy", "process": "nginx (812)"}),
            "[FAIL] port  12345 is held by nginx (812) (limit: free). Fix: end that program, or set another worker_port",
        ),
        (
            ("port", {"number": 12345, "state": "busy", "process": None}),
            "[FAIL] port  12345 is held by another program (on node02: sudo ss -ltnp 'sport = :12345') (limit: free). "
            "Fix: end that program, or set another worker_port",
        ),
        (
            ("port", {"number": 12345, "state": "held", "run": "cnn-1", "session": "cnn-1-w0"}),
            "[FAIL] port  run cnn-1 is training on 12345 (limit: free). "
            "Fix: wait for it (-e queue=true does); or stop it: ansible-playbook stop.yml -e run=cnn-1; or set another worker_port",
        ),
        (
            ("python", "version", "3.9.2"),
            "[FAIL] python  3.9.2 (/home/pi/lockstep/venv/bin/python) (limit: 3.11 to 3.13). "
            "Fix: install one of these and set worker_python to it",
        ),
        (
            ("python", {"path": "/opt/python", "error": "is missing"}),
            f"[FAIL] python  /opt/python is missing (limit: 3.11 to 3.13). Fix: {PROVISION}, or set worker_python",
        ),
        (
            ("python", "packages", {"keras": "3.15.1", "numpy": "2.4.6"}),
            "[FAIL] python  no TensorFlow in /home/pi/lockstep/venv/bin/python (limit: requirements/node.txt). " + f"Fix: {PROVISION}",
        ),
        (("python", "packages", "tensorflow", "2.20.0"), f"[FAIL] tensorflow  2.20.0, the others 2.21.0 (limit: 2.21.0). {INSTALL}"),
        (("python", "packages", "numpy", "2.0.0"), f"[WARN] numpy  2.0.0, the others 2.4.6 (limit: 2.4.6). {INSTALL}"),
        (
            ("python", "packages", {"tensorflow-cpu": "2.21.0", "numpy": "2.4.6"}),
            f"[FAIL] keras  missing, the others 3.15.1 (limit: 3.15.1). {INSTALL}",
        ),
        (
            ("python", "version", "3.13.1"),
            "[WARN] python  3.13, the others 3.11 (limit: 3.11). Fix: use one version everywhere, so that results can be repeated",
        ),
        (
            ("machine", "x86_64"),
            "[WARN] machine  x86_64, the others aarch64 (limit: aarch64). Fix: trains; the slower kind sets the pace of all, and "
            "where they round differently, steps send the chief's weights, too",
        ),
        (
            ("name", "addresses", ["127.0.1.1"]),
            "[WARN] name  node02 resolves to 127.0.1.1 on the host itself (limit: an address the others reach). "
            "Fix: harmless while worker_address is an IP address; or on it, in /etc/hosts, give node02 its address instead of 127.0.1.1",
        ),
        (
            ("name", {"error": "no answer in 2 s"}),
            "[WARN] name  node02 does not resolve: no answer in 2 s. Fix: on it, add node02 to /etc/hosts",
        ),
        (
            ("address", {"given": "10.0.0.2", "addresses": ["10.0.0.2"], "own": False, "all": ["10.0.0.7"]}),
            "[FAIL] address  10.0.0.2 is not an address of this host (it has 10.0.0.7) (limit: its own). "
            "Fix: set worker_address to 10.0.0.7",
        ),
        (
            ("dfs", {"error": "Transport endpoint is not connected"}),
            "[FAIL] dfs  the shared folder does not answer: Transport endpoint is not connected. "
            f"Fix: on node02: sudo mount -a; or {PROVISION}",
        ),
        (
            ("dfs", "type", "ext4"),
            "[FAIL] dfs  /mnt/shared/lockstep (ext4 of node01:/dfs) is not a GlusterFS mount "
            f"(limit: one folder that all hosts see). Fix: {SHARE}",
        ),
        (("dfs", "writable", False), f"[FAIL] {DFS} can't be written by pi. Fix: sudo chown pi /mnt/shared/lockstep"),
        (
            ("tokens", 0, {"path": TOKEN, "error": "No such file or directory"}),
            f"[FAIL] {DFS} is not shared: a file just written by another host "
            f"is not there (No such file or directory) (limit: one folder that all hosts see). Fix: {SHARE}",
        ),
        (
            ("tokens", 0, "sha256", "bad"),
            f"[FAIL] {DFS} is not shared: a file just written by another host "
            f"has different content here (limit: one folder that all hosts see). Fix: {SHARE}",
        ),
        (
            ("tokens", 1, {"path": MANIFEST, "error": "Permission denied"}),
            f"[FAIL] file  {MANIFEST} can't be read: Permission denied (limit: readable). "
            "Fix: ls -l it on the host; train.yml publishes it again if it is missing from the shared folder",
        ),
        (
            ("tokens", 1, "sha256", "0123456789abcdef0"),
            f"[FAIL] file  {MANIFEST} has digest 0123456789abcdef (limit: da7ada7ada7ada7a). "
            "Fix: ansible-playbook -i inventory/mine train.yml sends it again; then check who can write to that folder (ls -l)",
        ),
        (
            ("throttled", {"now": ["under-voltage"], "since_boot": []}),
            "[WARN] throttling  now: under-voltage. Fix: use the maker's power supply and a short cable",
        ),
        (
            ("throttled", {"now": [], "since_boot": ["throttled"]}),
            "[WARN] throttling  since it started: throttled. Fix: give it a fan or a heat sink",
        ),
        (("temperature", 79.6), "[WARN] temperature  80 C (limit: below 75 C). Fix: give it a fan or a heat sink"),
        (
            ("governors", ["ondemand"]),
            "[WARN] governor  ondemand (limit: performance). "
            "Fix: on node02: echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        ),
        (("load", 3.2), "[WARN] load  load 3.2 on 4 cores (limit: at most 2). Fix: end what else runs there (top shows it)"),
        (("speed", 90.0), "[WARN] speed  90 MB/s per core, the others 200 (limit: at least 160). " + SLOW),
        (("cpus", 2), "[WARN] speed  2 CPUs, the others 4 (limit: at least 3.2). " + SLOW),
    ],
)
def test_troubles_of_one_host(change, line):
    assert doctor(setting("node02", *change)) == [line.replace("] ", "] node02  ", 1)]


def test_a_32_bit_system():
    (actual,) = host._machine(model.Subject({"name": "n"}, {**healthy("node02"), "machine": "armv7l"}))
    assert (actual.level, actual.value, actual.limit) == (FAIL, "armv7l", "x86_64 or aarch64")
    assert actual.fix == "install a 64-bit system, or leave this host out"


def test_shared_folder_may_wait_or_be_local():
    facts = healthy("node02")
    facts["dfs"] |= {"kind": "mounted", "type": "ext4", "source": "/dev/sda1"}
    subject = model.Subject({"name": "node02"}, facts)
    (actual,) = host._dfs(subject)
    assert (actual.level, actual.value) == (WARN, "/mnt/shared/lockstep (ext4 of /dev/sda1) is on this host's own disk")
    facts["dfs"]["kind"] = "local"
    assert [one.level for one in host._dfs(subject)] == [OK]
    facts["dfs"] |= {"kind": "mounted", "type": "nfs4"}
    assert [one.level for one in host._dfs(subject)] == [OK]
    facts = {name: healthy(name) for name in ("node01", "node02", "node03", "node04")}
    facts |= {"node03": {**healthy("node03"), "dfs": {"error": "no answer in 2 s"}}, "node05": {"unreachable": "timed out"}}
    actual = [check for check in across.examine(inventory(), facts, None, NEED) if check.level != OK]
    assert [(check.level, check.host, check.name) for check in actual] == [(WARN, "node03", "dfs"), (FAIL, "node05", "ssh")]
    assert actual[0].value == "the shared folder does not answer: no answer in 2 s"
    assert actual[0].fix == "GlusterFS waits up to 42 s for node05; look again once that is fixed"


def home(source="files:/home"):
    return {"path": "/home/pi/lockstep", "type": "nfs4", "source": source, "free_mb": 20000, "writable": True, "exists": True}


def test_one_home_for_several_hosts():
    facts = {name: {**healthy(name), "disk": home()} for name in ("node02", "node04")}
    facts["node03"] = {**healthy("node03"), "disk": home("elsewhere:/home")}
    actual = [check for check in across.examine(inventory(), facts, None, NEED) if check.name == "disk" and check.level != OK]
    assert [(check.level, check.host, check.value) for check in actual] == [
        (FAIL, "node02", "node02, node04 keep their workers in one folder: /home/pi/lockstep (nfs4 of files:/home)")
    ]
    assert actual[0].fix == "set worker_root to a local disk, or to a folder that has {{ inventory_hostname }} in its path"
    facts["node04"]["disk"]["path"] = "/home/pi/lockstep/node04"
    assert not [check for check in across.examine(inventory(), facts, None, NEED) if check.name == "disk" and check.level != OK]


def test_taken_port_of_a_server_is_named():
    taken = setting("node02", "server_port", {"number": 12845, "state": "busy", "process": "nginx (812)"})
    assert doctor(taken) == [
        "[FAIL] node02  port  12845 is held by nginx (812) (limit: free). Fix: end that program, or set another worker_port, which the "
        "parameter server's follows"
    ]


def test_parameter_server_needs_memory_beside_its_worker():
    need = {"memory_mb": 1000, "server_mb": 800}
    facts = {"available_mb": 1500, "total_mb": 4000}
    for more, level in (({}, OK), ({"server_port": 12845}, FAIL)):
        (check,) = host._memory(model.Subject({"name": "pi1", **more}, {"memory": facts}, Requirement(**need)))
        assert check.level == level
    queued = model.Subject({"name": "pi1", "server_port": 12845}, {"memory": facts}, Requirement(**need, queued=True))
    (check,) = host._memory(queued)
    assert check.level == OK


def test_taken_direct_port_is_named_unless_held():
    """A direct port that is taken is named unless a run holds both."""
    taken = setting("node02", "direct_port", {"number": 13345, "state": "busy", "process": "nginx (812)"})
    assert doctor(taken) == [
        "[FAIL] node02  port  13345 is held by nginx (812) (limit: free). Fix: end that program, or set another worker_direct_port"
    ]
    held = setting("node02", "port", {"number": 12345, "state": "held", "run": "cnn-1"})
    assert doctor(lambda facts: (taken(facts), held(facts)), need=Requirement(run="cnn-1")) == []


def test_port_held_for_a_queued_run_is_fine():
    change = setting("node02", "port", {"number": 12345, "state": "held", "run": "cnn-1", "session": "cnn-1-w0"})
    assert doctor(change, need=Requirement(run="cnn-2", queued=True)) == []


def test_port_held_by_the_run_that_is_continued():
    change = setting("node02", "port", {"number": 12345, "state": "held", "run": "cnn-1", "session": "cnn-1-w0"})
    assert doctor(change, need=Requirement(run="cnn-1")) == []
    assert len(doctor(change, need=Requirement(run="cnn-2"))) == 1


def test_clock_counts_only_what_is_certain():
    facts = {"before": 1000.0, "after": 1010.0, "seconds": 2.0, "time": 1014.9}
    (actual,) = host._clock(model.Subject({"name": "n"}, facts))
    assert (actual.level, actual.value) == (WARN, "8.9 s ahead")
    (actual,) = host._clock(model.Subject({"name": "n"}, {**facts, "time": 1010.9}))
    assert (actual.level, actual.value) == (OK, "correct within 8.9 s")


def test_load_in_a_container_is_not_its_own():
    assert doctor(lambda facts: facts["node02"].update(load=9.0, cpu_quota=0.38)) == []


def test_other_processors_may_be_hotter():
    def change(facts):
        facts["node02"].update(model="AMD EPYC", temperature=80.0)

    assert doctor(change) == []


def test_name_as_an_address_that_means_the_loopback():
    hosts = inventory()
    hosts[1]["address"] = "node02"

    def change(facts):
        facts["node02"]["name"] = {"addresses": ["127.0.1.1"]}
        facts["node02"]["address"] = {"given": "node02", "addresses": ["127.0.1.1"], "own": True, "all": ["10.0.0.2"]}

    assert doctor(change, hosts=hosts) == [
        "[FAIL] node02  name  node02 resolves to 127.0.1.1 on the host itself (limit: an address the others reach). "
        "Fix: set worker_address to its IP address; or on it, in /etc/hosts, give node02 its address instead of 127.0.1.1"
    ]


def test_two_hosts_with_one_address():
    hosts = inventory()
    hosts[3]["address"] = "10.0.0.2"

    def change(facts):
        facts["node04"] = {**healthy("node02")}

    assert doctor(change, hosts=hosts) == [
        "[FAIL] node04  address  node02 and node04 both have 10.0.0.2:12345 (limit: one worker each). "
        "Fix: give each a worker_address (or ansible_host) of its own in the inventory"
    ]


def test_an_address_that_two_machines_claim():
    assert doctor(setting("node04", "address", "all", ["10.0.0.2", "10.0.0.4"])) == [
        "[FAIL] node02  address  10.0.0.2 is also an address of node04 (limit: one machine per address). "
        "Fix: give each machine an address of its own (ip addr shows them)"
    ]


def test_one_machine_under_two_addresses():
    def change(facts):
        facts["node04"].update(boot="boot-node02", hostname="node02", name={"addresses": ["10.0.0.4"]})

    assert doctor(change) == [
        "[WARN] node04  address  node02 and node04 are one machine (node02) under two addresses (limit: one machine per host). "
        "Fix: give each a worker_address (or ansible_host) of its own in the inventory"
    ]


def test_containers_of_one_machine_are_separate_hosts():
    def change(facts):
        for actual in facts.values():
            actual["boot"] = "same"

    assert doctor(change) == []


def test_workers_of_the_local_inventory():
    hosts = [{"name": f"worker{rank}", "address": "127.0.0.1", "port": 12345 + rank} for rank in (0, 1)]
    here = {**healthy("node01"), "name": {"addresses": ["127.0.1.1"]}}
    here["address"] = {"given": "127.0.0.1", "addresses": ["127.0.0.1"], "own": True, "all": ["10.0.0.1"]}
    actual = across.examine(hosts, {host["name"]: copy.deepcopy(here) for host in hosts}, None, NEED)
    assert [check for check in actual if check.level != OK] == []


def test_foreign_address_that_is_reached_all_same():
    change = setting("node02", "address", {"given": "10.0.0.2", "addresses": ["10.0.0.2"], "own": False, "all": []})
    (line,) = doctor(change, network=network_of())
    assert line.startswith("[WARN] node02  address  10.0.0.2 is not an address of this host (it has none)")


@pytest.mark.parametrize(
    ("values", "expected"), [({}, []), ({"a": 1, "b": 1}, []), ({"a": 1, "b": 2}, [("b", 1)]), ({"a": 1, "b": 2, "c": 2}, [("a", 2)])]
)
def test_the_odd_one_out(values, expected):
    assert model.odd(values) == expected


@pytest.mark.parametrize(
    ("wanted", "there", "lines"),
    [
        (0, ["NVIDIA A100"], []),
        (2, ["NVIDIA A100", "NVIDIA A100"], ["[OK]   node02  GPUs  2 (NVIDIA A100)"]),
        (
            1,
            [],
            [
                "[FAIL] node02  GPUs  none (limit: at least 1). "
                "Fix: install NVIDIA's driver (nvidia-smi lists what it finds), or set gpus in the inventory"
            ],
        ),
    ],
)
def test_gpus_that_the_inventory_promises(wanted, there, lines):
    actual = list(host._gpus(model.Subject({"name": "node02", "gpus": wanted}, {"gpus": there})))
    assert [line for line in report.render(actual, verbose=True).splitlines() if "GPUs" in line] == lines
