"""Five healthy hosts as the probes see them, and what the doctor says after a change."""

from control.doctor.checks import across, report
from control.doctor.checks.model import OK, Requirement

NAMES = ["node01", "node02", "node03", "node04", "node05"]
TOKEN = "/mnt/shared/lockstep/tokens/1"
MANIFEST = "/mnt/shared/lockstep/packs/1/manifest.json"


def address(name):
    return f"10.0.0.{int(name[-2:])}"


def inventory(names=NAMES):
    return [{"name": name, "address": address(name), "port": 12345, "user": "pi"} for name in names]


def healthy(name):
    host = {
        "hostname": name,
        "user": "pi",
        "machine": "aarch64",
        "os": "Debian GNU/Linux 12 (bookworm)",
        "tmux": "3.3a",
        "boot": f"boot-{name}",
    }
    host |= {"model": "Raspberry Pi 4 Model B Rev 1.4", "cores": 4, "cpu_quota": None, "cpus": 4, "load": 0.1, "speed": 200.0}
    host |= {"governors": ["performance"], "temperature": 51.2, "throttled": {"now": [], "since_boot": []}}
    host |= {"before": 1000.0, "after": 1001.0, "seconds": 0.2, "time": 1000.7}
    packages = {"tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "2.4.6"}
    own = {"path": "/home/pi/lockstep", "mount": "/", "type": "ext4", "source": "/dev/mmcblk0p2", "free_mb": 20000, "need_mb": 0}
    shared = {
        "path": "/mnt/shared/lockstep",
        "kind": "glusterfs",
        "mount": "/mnt/shared",
        "type": "fuse.glusterfs",
        "source": "node01:/dfs",
    }
    return host | {
        "memory": {"total_mb": 3794, "available_mb": 3100},
        "disk": {**own, "writable": True, "exists": True},
        "dfs": {**shared, "free_mb": 50000, "writable": True, "exists": True},
        "python": {"path": "/home/pi/lockstep/venv/bin/python", "version": "3.11.2", "packages": packages},
        "port": {"number": 12345, "state": "free"},
        "name": {"addresses": [address(name)]},
        "address": {"given": address(name), "addresses": [address(name)], "own": True, "all": [address(name)]},
        "tokens": [{"path": TOKEN, "bytes": 1, "sha256": "70ce"}, {"path": MANIFEST, "bytes": 1, "sha256": "da7a" * 16}],
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
    actual = across.examine(hosts, facts, network, need)
    assert {check.host for check in actual} >= {host["name"] for host in hosts}
    return report.render([check for check in actual if check.level != OK]).splitlines()[:-1]


def setting(*path):
    """A change: `setting("node03", "disk", "free_mb", 3)`."""
    *keys, last, value = path

    def change(facts):
        place = facts
        for key in keys:
            place = place[key]
        place[last] = value

    return change


def change_pairs(network, value, chosen):
    for here, actual in network.items():
        for there, pair in actual["pairs"].items():
            if chosen(here, there):
                pair.update(value)
    return network


def unreachable(kind, error):
    return {"reachable": False, "kind": kind, "error": error, "mbit_s": None, "rtt_ms": None}
