"""Checks of one host alone."""

from collections.abc import Iterator
from typing import Any

from control.doctor.checks.addresses import own_name
from control.doctor.checks.clocks import clock
from control.doctor.checks.model import FAIL, OK, WARN, Check, Requirement, grade, on
from control.doctor.checks.packages import python
from control.doctor.checks.shared_folder import dfs, files

MACHINES = ("x86_64", "aarch64")
# A Raspberry Pi throttles from 80 degrees, other processors from about 95.
HOT_PI_C, HOT_C = 75.0, 90.0


def of_host(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Iterator[Check]:
    """Checks of one host's own facts."""
    yield python(host, facts, need)
    yield machine(host, facts)
    yield disk(host, facts, need)
    yield memory(host, facts, need)
    yield from gpus(host, facts)
    yield from clock(host, facts)
    yield tmux(host, facts)
    yield port(host, facts, need)
    yield from direct_port(host, facts)
    yield own_name(host, facts)
    yield from dfs(host, facts, need)
    yield from files(host, facts, need)
    yield from pace(host, facts)


def machine(host: dict[str, Any], facts: dict[str, Any]) -> Check:
    """A processor that TensorFlow is built for."""
    found, limit = facts["machine"], " or ".join(MACHINES)
    if found in MACHINES:
        return Check(
            OK, host["name"], "machine", f"{found}, {facts.get('model', '')}, {facts['cpus']:g} CPUs, {facts.get('os', '')}", limit
        )
    return Check(FAIL, host["name"], "machine", found, limit, "install a 64-bit system, or leave this host out")


def disk(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Check:
    """Free space for the worker's runs."""
    found = facts["disk"]
    wanted = max(need.disk_mb, found.get("need_mb", 0))
    enough = max(2 * wanted, need.disk_whole_mb)
    value = f"{found['free_mb']:,} MB free"
    limit = f"at least {wanted:,} MB" if found["free_mb"] < wanted else f"{enough:,} MB for the snapshots of all epochs, and some to spare"
    fix = "remove old runs (below worker_root/runs on it), or set worker_root to a larger disk"
    if not found.get("writable", True):
        return Check(
            FAIL,
            host["name"],
            "disk",
            "worker_root can't be written",
            f"at least {wanted:,} MB",
            "sudo chown its folder to the worker's user, or set worker_root",
        )
    return Check(grade(found["free_mb"], wanted, enough), host["name"], "disk", value, limit, fix if found["free_mb"] < enough else "")


def memory(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Check:
    """Memory still available to a worker."""
    free, enough = facts["memory"]["available_mb"], need.memory_mb * 5 // 4
    value, limit = f"{free:,} of {facts['memory']['total_mb']:,} MB available", f"at least {need.memory_mb:,} MB"
    fix = "" if free >= enough else "end other programs on it, or -e set=train.batch_size=N with a smaller N"
    return Check(grade(free, need.memory_mb, enough), host["name"], "memory", value, limit, fix)


def gpus(host: dict[str, Any], facts: dict[str, Any]) -> Iterator[Check]:
    """As many GPUs as the inventory says the worker trains on."""
    wanted, found = host.get("gpus", 0), facts.get("gpus") or []
    if wanted:
        value = f"{len(found)} ({', '.join(dict.fromkeys(found))})" if found else "none"
        fix = "" if len(found) >= wanted else "install NVIDIA's driver (nvidia-smi lists what it finds), or set gpus in the inventory"
        yield Check(FAIL if fix else OK, host["name"], "GPUs", value, f"at least {wanted}", fix)


def tmux(host: dict[str, Any], facts: dict[str, Any]) -> Check:
    """Workers live in tmux."""
    if facts["tmux"]:
        return Check(OK, host["name"], "tmux", facts["tmux"])
    return Check(FAIL, host["name"], "tmux", "is missing", fix=on(host["name"], "sudo apt-get install tmux"))


def port(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Check:
    """The worker's port is free, or held by the resumed run."""
    found, name = facts["port"], host["name"]
    number, state = found["number"], found["state"]
    if state == "free" or (state == "held" and found["run"] == need.run):
        return Check(OK, name, "port", f"{number} is {'free' if state == 'free' else 'held by this run'}")
    if state == "held":
        end = on(name, f"tmux -L lockstep kill-session -t ={found['session']}")
        fix = (
            f"wait for it; or stop it where it was started: ansible-playbook stop.yml -e run={found['run']}; or end it: {end}; "
            "or set another worker_port"
        )
        return Check(FAIL, name, "port", f"run {found['run']} is training on {number}", "free", fix)
    return _no_port(name, found, "worker_port")


def direct_port(host: dict[str, Any], facts: dict[str, Any]) -> Iterator[Check]:
    """Also the direct port, to which other workers connect; the run that holds the worker's port holds both."""
    found = facts.get("direct_port")
    if found and found["state"] != "free" and facts["port"]["state"] != "held":
        yield _no_port(host["name"], found, "worker_direct_port")


def _no_port(name: str, found: dict[str, Any], variable: str) -> Check:
    number = found["number"]
    if found["state"] == "forbidden":
        return Check(FAIL, name, "port", f"{number} may not be opened by this user", "1024 or above", f"set another {variable}")
    look = on(name, f"sudo ss -ltnp 'sport = :{number}'")
    holder = found.get("process") or f"another program ({look})"
    return Check(FAIL, name, "port", f"{number} is held by {holder}", "free", f"end that program, or set another {variable}")


def pace(host: dict[str, Any], facts: dict[str, Any]) -> Iterator[Check]:
    """Causes that slow one host, and with it every step."""
    name = host["name"]
    held = facts.get("throttled")
    if held is not None:
        now, before = held["now"], held["since_boot"]
        value = f"now: {', '.join(now)}" if now else f"since it started: {', '.join(before)}" if before else "not throttled"
        yield Check(WARN if now or before else OK, name, "throttling", value, fix=_cooling([*now, *before]))
    heat = facts.get("temperature")
    if heat is not None:
        limit = HOT_PI_C if "raspberry" in str(facts.get("model", "")).lower() else HOT_C
        hot = heat >= limit
        yield Check(
            WARN if hot else OK, name, "temperature", f"{heat:.0f} C", f"below {limit:.0f} C", "give it a fan or a heat sink" if hot else ""
        )
    governors = facts.get("governors") or []
    if governors:
        slow = governors != ["performance"]
        fix = on(name, "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
        yield Check(WARN if slow else OK, name, "governor", ", ".join(governors), "performance", fix if slow else "")
    # In a container, the load is the whole machine's.
    if facts.get("load") is not None and facts.get("cpu_quota") is None:
        busy = facts["load"] > facts["cores"] / 2
        value = f"load {facts['load']:.1f} on {facts['cores']} cores"
        fix = "end what else runs there (top shows it)" if busy else ""
        yield Check(WARN if busy else OK, name, "load", value, f"at most {facts['cores'] / 2:g}", fix)


def _cooling(words: list[str]) -> str:
    if "under-voltage" in words:
        return "use the maker's power supply and a short cable"
    return "give it a fan or a heat sink" if words else ""
