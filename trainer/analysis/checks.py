"""Is this cluster able to train? From what the probes saw to a line a check. Pure functions.

Input is what `host_probe` and `network_probe` return, by host. A host that SSH did not reach is
`{"unreachable": message}`. To the facts of a host the control node adds `before` and `after`: its own
clock (seconds since 1970) around the task that read them.
"""

import ipaddress
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

OK, WARN, FAIL = "OK", "WARN", "FAIL"
Facts = dict[str, dict[str, Any]]
Hosts = list[dict[str, Any]]

MACHINES = ("x86_64", "aarch64")
EQUAL = {"tensorflow": FAIL, "keras": FAIL, "numpy": WARN}
LOCAL_TYPES = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay", "tmpfs", "vfat")
# The order of failures on several hosts is told by the times that they wrote down.
CLOCK_WARN_S = 1.0
# Beyond the silence (45 s) after which a worker counts as lost; certificates and package lists fail soon, too.
CLOCK_FAIL_S = 60.0
# A Raspberry Pi slows itself down from 80 degrees, other processors from about 95.
HOT_PI_C, HOT_C = 75.0, 90.0
SLOW_SHARE = 0.8
SLOW_LINK_SHARE = 0.5
SLOW_LINK_MBIT_S = 50.0
LONG_RTT_MS = 5.0


@dataclass(frozen=True)
class Check:
    """One line of the doctor."""

    level: str
    """OK, WARN (trains, but slower or at a risk) or FAIL (can't train)."""
    host: str
    name: str
    value: str
    """What was found."""
    limit: str = ""
    """What it should be."""
    mend: str = ""
    """What a person can do."""


@dataclass(frozen=True)
class Requirement:
    """What a run needs of every host."""

    memory_mb: int = 900
    disk_mb: int = 512
    dfs_mb: int = 0
    python: tuple[tuple[int, int], tuple[int, int]] = ((3, 11), (3, 13))
    token: tuple[str, str] | None = None
    """Path and SHA-256 of a file that one host wrote to the shared folder just now."""
    files: dict[str, str | None] = field(default_factory=dict)
    """Files that every host must read (dataset, code): path to SHA-256, or None when readable is enough."""
    run: str = ""
    """A run that may hold the port already, because it is continued."""
    inventory: str = "INVENTORY"
    """For the commands in mends."""


def examine(hosts: Hosts, facts: Facts, network: Facts | None, need: Requirement) -> list[Check]:
    """All checks, host by host in the order of the inventory, then what lies between them.

    Args:
        hosts: `name`, `address`, `port`; for the mends also `ssh` (address for SSH), `user`, `ssh_port`.
        facts: by host, as above.
        network: results of `network_probe` by host; None when it was not run.
        need: what the run needs.
    """
    seen = {name: found for name, found in facts.items() if "unreachable" not in found}
    checks: list[Check] = []
    for host in hosts:
        name = host["name"]
        if name not in seen:
            checks.append(ssh(host, facts.get(name, {}).get("unreachable", "was not asked")))
            continue
        checks.append(Check(OK, name, "ssh", f"reachable as {seen[name].get('user', '?')}"))
        checks += _of_host(host, seen[name], need)
    checks += [*_across(hosts, seen, need), *addresses(hosts, seen, network or {})]
    if network is not None:
        checks += _new(checks, between(hosts, {name: found for name, found in network.items() if "unreachable" not in found}))
    order = {host["name"]: rank for rank, host in enumerate(hosts)}
    return sorted(checks, key=lambda check: order.get(check.host, len(order)))


def _new(known: list[Check], more: list[Check]) -> list[Check]:
    """What is not told twice: a wrong clock is seen by the control node and by the other hosts."""
    told = {check.host for check in known if check.name == "clock" and check.level != OK}
    return [check for check in more if not (check.name == "clock" and check.host in told)]


def _of_host(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Iterator[Check]:
    yield python(host, facts, need)
    yield machine(host, facts)
    yield disk(host, facts, need)
    yield memory(host, facts, need)
    yield from clock(host, facts)
    yield tmux(host, facts)
    yield port(host, facts, need)
    yield own_name(host, facts)
    yield from dfs(host, facts, need)
    yield from files(host, facts, need)
    yield from pace(host, facts)


# --- one host


SSH = (
    (
        "identification has changed",
        "its host key has changed",
        "when it was set up anew: ssh-keygen -R {known}; when not, somebody answers for it",
    ),
    ("host key verification failed", "its host key is not known here", "ssh {login}, compare the key, answer yes"),
    ("unprotected private key", "the private key can be read by others, so ssh refuses it", "chmod 600 KEYFILE (ssh names it)"),
    ("permission denied", "it refuses the key", "ssh-copy-id {login}, or set ansible_user and ansible_ssh_private_key_file"),
    ("could not resolve hostname", "its name is unknown here", "set ansible_host to its address"),
    ("connection refused", "no SSH server answers", "on it: sudo apt-get install openssh-server && sudo systemctl enable --now ssh"),
    ("timed out", "it is down, or a firewall is in between", "switch it on and look: ping -c 3 {address}"),
    ("no route to host", "it is down, or in another network", "switch it on and look: ping -c 3 {address}"),
    ("network is unreachable", "this machine has no way to it", "ip route get {address}"),
    ("no space left", "its disk is full", "ssh {login} df -h, and remove what is not needed"),
    ("sudo: a password is required", "sudo asks for a password", "give --ask-become-pass, or allow {user} sudo without one"),
    ("missing sudo password", "sudo asks for a password", "give --ask-become-pass, or allow {user} sudo without one"),
    ("not in the sudoers file", "its user may not use sudo", "as root on it: usermod -aG sudo {user}"),
    ("python: not found", "it has no Python for Ansible", "ssh {login} sudo apt-get install python3"),
    ("python3: not found", "it has no Python for Ansible", "ssh {login} sudo apt-get install python3"),
    ("connection reset", "it hangs up during the greeting", "on it: sudo journalctl -u ssh -n 20"),
    ("connection closed", "it hangs up during the greeting", "on it: sudo journalctl -u ssh -n 20"),
)


def ssh(host: dict[str, Any], message: str) -> Check:
    """What an error of SSH (or of the first task over it) means, and what mends it."""
    address, user = str(host.get("ssh") or host["address"]), host.get("user")
    number = int(host.get("ssh_port") or 22)
    login = f"{user}@{address}" if user else address
    words = {
        "address": address,
        "user": user or "the user",
        "login": login if number == 22 else f"-p {number} {login}",
        "known": address if number == 22 else f"'[{address}]:{number}'",
    }
    text = message.lower()
    for pattern, value, mend in SSH:
        if pattern in text:
            return Check(FAIL, host["name"], "ssh", value, mend=mend.format(**words))
    last = ([line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"])[-1]
    return Check(FAIL, host["name"], "ssh", f"can't be reached: {last[:160]}", mend=f"ssh -v {words['login']}")


def python(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Check:
    """The worker's Python: there, of a supported version, with TensorFlow."""
    found, name = facts["python"], host["name"]
    (low, high), provision = need.python, f"ansible-playbook -i {need.inventory} provision.yml"
    limit = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
    if found.get("error"):
        return Check(FAIL, name, "python", f"{found['path']} {found['error']}", limit, f"{provision}, or set worker_python")
    if not _supported(found, need):
        return Check(
            FAIL, name, "python", f"{found['version']} ({found['path']})", limit, "install one of these and set worker_python to it"
        )
    if not tensorflow(found["packages"]):
        return Check(FAIL, name, "python", f"no TensorFlow in {found['path']}", "requirements/node.txt", provision)
    return Check(OK, name, "python", f"{found['version']}, TensorFlow {tensorflow(found['packages'])}", limit)


def _supported(found: dict[str, Any], need: Requirement) -> bool:
    return need.python[0] <= tuple(int(part) for part in found["version"].split(".")[:2]) <= need.python[1]


def tensorflow(packages: dict[str, str]) -> str:
    """Version of TensorFlow under either of its names, or nothing."""
    return packages.get("tensorflow") or packages.get("tensorflow-cpu") or ""


def machine(host: dict[str, Any], facts: dict[str, Any]) -> Check:
    """A processor that TensorFlow is built for."""
    found, limit = facts["machine"], " or ".join(MACHINES)
    if found in MACHINES:
        return Check(
            OK, host["name"], "machine", f"{found}, {facts.get('model', '')}, {facts['cpus']:g} CPUs, {facts.get('os', '')}", limit
        )
    return Check(FAIL, host["name"], "machine", found, limit, "install a 64-bit system, or leave this host out")


def disk(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Check:
    """Free space where the worker keeps its runs."""
    found = facts["disk"]
    wanted = max(need.disk_mb, found.get("need_mb", 0))
    value, limit = f"{found['free_mb']:,} MB free", f"at least {wanted:,} MB"
    mend = "df -h on it; remove old runs (ansible-playbook playbooks/delete_run.yml -e run=NAME), or set worker_root to a larger disk"
    if not found.get("writable", True):
        return Check(
            FAIL,
            host["name"],
            "disk",
            "worker_root can't be written",
            limit,
            "sudo chown its folder to the worker's user, or set worker_root",
        )
    return Check(
        _level(found["free_mb"], wanted, 2 * wanted), host["name"], "disk", value, limit, mend if found["free_mb"] < 2 * wanted else ""
    )


def memory(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Check:
    """Memory that a worker can still get."""
    free, enough = facts["memory"]["available_mb"], need.memory_mb * 5 // 4
    value, limit = f"{free:,} of {facts['memory']['total_mb']:,} MB available", f"at least {need.memory_mb:,} MB"
    mend = "" if free >= enough else "end other programs on it, or -e set=train.batch_size=N with a smaller N"
    return Check(_level(free, need.memory_mb, enough), host["name"], "memory", value, limit, mend)


def _level(found: float, needed: float, enough: float) -> str:
    return FAIL if found < needed else WARN if found < enough else OK


def skew(facts: dict[str, Any]) -> tuple[float, float] | None:
    """Seconds that a host's clock is ahead of the control node's, and how far that may be off.

    The host read its clock at the end of a probe of `seconds`, between `before` + `seconds` and `after`.
    """
    if "before" not in facts or "after" not in facts:
        return None
    first, last = facts["before"] + facts.get("seconds", 0.0), facts["after"]
    return facts["time"] - (first + last) / 2, max(0.0, last - first) / 2


def clock(host: dict[str, Any], facts: dict[str, Any]) -> Iterator[Check]:
    """A host's clock against the control node's; only what is certain counts."""
    found = skew(facts)
    if found is not None:
        ahead, blur = found
        certain = max(0.0, abs(ahead) - blur)
        level = FAIL if certain > CLOCK_FAIL_S else WARN if certain > CLOCK_WARN_S else OK
        value = f"{_span(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}" if level != OK else f"right within {abs(ahead) + blur:.1f} s"
        yield Check(
            level, host["name"], "clock", value, f"{CLOCK_WARN_S:.0f} s", "" if level == OK else "on it: sudo timedatectl set-ntp true"
        )


def _span(seconds: float) -> str:
    whole = round(seconds)
    return f"{seconds:.1f} s" if seconds < 60 else f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d} h"


def tmux(host: dict[str, Any], facts: dict[str, Any]) -> Check:
    """Workers live in tmux."""
    if facts["tmux"]:
        return Check(OK, host["name"], "tmux", facts["tmux"])
    return Check(FAIL, host["name"], "tmux", "is missing", mend="on it: sudo apt-get install tmux")


def port(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Check:
    """The worker's port is free, or held by the run that is continued."""
    found, name = facts["port"], host["name"]
    number, state = found["number"], found["state"]
    if state == "free" or (state == "held" and found["run"] == need.run):
        return Check(OK, name, "port", f"{number} is {'free' if state == 'free' else 'held by this run'}")
    if state == "held":
        mend = f"wait for it, ansible-playbook stop.yml -e run={found['run']}, or set another worker_port"
        return Check(FAIL, name, "port", f"run {found['run']} is training on {number}", "free", mend)
    if state == "forbidden":
        return Check(FAIL, name, "port", f"{number} may not be opened by this user", "1024 or above", "set another worker_port")
    holder = found.get("process") or f"another user's program (on it: sudo ss -ltnp 'sport = :{number}')"
    return Check(FAIL, name, "port", f"{number} is held by {holder}", "free", "end that program, or set another worker_port")


def own_name(host: dict[str, Any], facts: dict[str, Any]) -> Check:
    """A host whose own name leads to its loopback must not be addressed by that name."""
    found = facts["name"].get("addresses", [])
    given, meant = str(host["address"]), facts["address"].get("addresses", [])
    name, called = host["name"], facts["hostname"]
    mend = f"on it, in /etc/hosts, give {called} its address instead of {', '.join(found) or '127.0.1.1'}"
    if not _is_ip(given) and meant and all(map(_loopback, meant)) and given != "localhost":
        value = f"{given} means {', '.join(meant)} on the host itself"
        return Check(FAIL, name, "name", value, "an address the others reach", f"set worker_address to its IP address; or {mend}")
    if "error" in facts["name"]:
        return Check(WARN, name, "name", f"{called} can't be resolved: {facts['name']['error']}", mend=f"on it, add {called} to /etc/hosts")
    if found and all(map(_loopback, found)) and not _loopback(given) and given != "localhost":
        value = f"{called} means {', '.join(found)} on the host itself"
        return Check(WARN, name, "name", value, "an address the others reach", f"harmless while worker_address is an IP address; or {mend}")
    return Check(OK, name, "name", f"{called} is {', '.join(found)}")


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _loopback(address: str) -> bool:
    return _is_ip(address) and ipaddress.ip_address(address.partition("%")[0]).is_loopback


def dfs(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Iterator[Check]:
    """The shared folder: mounted, writable, and truly the same one."""
    found, name = facts["dfs"], host["name"]
    if found is None:
        return
    if "error" in found:
        mend = "on it: sudo mount -a; or ansible-playbook -i " + need.inventory + " provision.yml"
        yield Check(FAIL, name, "dfs", f"the shared folder does not answer: {found['error']}", mend=mend)
        return
    value, wrong = f"{found['path']} ({found['type']} of {found['source']})", _not_shared(found, facts, need)
    if wrong:
        mend = f"mount the shared file system there on every host (ansible-playbook -i {need.inventory} provision.yml), or set dfs_path"
        yield Check(FAIL, name, "dfs", f"{value} {wrong}", "one folder that all hosts see", mend)
    elif not found.get("writable", True):
        yield Check(
            FAIL, name, "dfs", f"{value} can't be written by {facts.get('user')}", mend=f"sudo chown {facts.get('user')} {found['path']}"
        )
    else:
        mend = f"df -h {found['path']} on it; remove what is not needed"
        level = _level(found["free_mb"], need.dfs_mb, need.dfs_mb)
        limit = f"at least {need.dfs_mb:,} MB" if need.dfs_mb else ""
        yield Check(level, name, "dfs", f"{value}, {found['free_mb']:,} MB free", limit, mend if level != OK else "")


def _not_shared(found: dict[str, Any], facts: dict[str, Any], need: Requirement) -> str:
    if found["kind"] == "local":
        return ""
    if found["kind"] == "glusterfs" and found["type"] != "fuse.glusterfs":
        return "is no GlusterFS mount"
    if need.token is not None:
        path, digest = need.token
        read = _read(facts, path)
        if "error" in read:
            return f"is not shared: a file just written by another host is not there ({read['error']})"
        return "" if read.get("sha256") == digest else "is not shared: a file just written by another host has another content here"
    return "is on this host's own disk" if found["type"] in LOCAL_TYPES else ""


def _read(facts: dict[str, Any], path: str) -> dict[str, Any]:
    tokens = facts["tokens"]
    if isinstance(tokens, dict):
        return tokens
    return next((one for one in tokens if one["path"] == path), {"error": "was not looked for"})


def files(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Iterator[Check]:
    """Dataset and code can be read, and are what was published."""
    for path, digest in need.files.items():
        read = _read(facts, path)
        if "error" in read:
            mend = "ls -l it on the host; train.yml publishes it anew when it is gone from the shared folder"
            yield Check(FAIL, host["name"], "file", f"{path} can't be read: {read['error']}", "readable", mend)
        elif digest and read.get("sha256") and read["sha256"] != digest:
            mend = f"remove {path}; train.yml publishes it anew"
            yield Check(FAIL, host["name"], "file", f"{path} has digest {read['sha256'][:16]}", digest[:16], mend)
        else:
            yield Check(OK, host["name"], "file", f"{path} {(read.get('sha256') or 'is readable')[:16]}")


def pace(host: dict[str, Any], facts: dict[str, Any]) -> Iterator[Check]:
    """What makes one host slow, and with it every step of all."""
    name = host["name"]
    held = facts.get("throttled")
    if held is not None:
        now, before = held["now"], held["since_boot"]
        value = f"now: {', '.join(now)}" if now else f"since it started: {', '.join(before)}" if before else "not throttled"
        yield Check(WARN if now or before else OK, name, "throttling", value, mend=_cooling([*now, *before]))
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
        mend = "on it: echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
        yield Check(WARN if slow else OK, name, "governor", ", ".join(governors), "performance", mend if slow else "")
    # In a container the load is that of the whole machine.
    if facts.get("load") is not None and facts.get("cpu_quota") is None:
        busy = facts["load"] > facts["cores"] / 2
        value = f"load {facts['load']:.1f} on {facts['cores']} cores"
        mend = "end what else runs there (top shows it)" if busy else ""
        yield Check(WARN if busy else OK, name, "load", value, f"at most {facts['cores'] / 2:g}", mend)


def _cooling(words: list[str]) -> str:
    if "under-voltage" in words:
        return "use the maker's power supply and a short cable"
    return "give it a fan or a heat sink" if words else ""


# --- hosts against each other


def _across(hosts: Hosts, facts: Facts, need: Requirement) -> Iterator[Check]:
    names = [host["name"] for host in hosts if host["name"] in facts]
    working = [name for name in names if "packages" in facts[name]["python"]]
    for package, level in EQUAL.items():
        versions = {name: _version(facts[name], package) for name in working if tensorflow(facts[name]["python"]["packages"])}
        yield from _equal_versions(versions, package, level, need)
    minor = {name: ".".join(facts[name]["python"]["version"].split(".")[:2]) for name in working if _supported(facts[name]["python"], need)}
    for name, usual in odd(minor):
        yield Check(
            WARN, name, "python", f"{minor[name]}, the others {usual}", usual, "use one version everywhere, so that results can be repeated"
        )
    kinds = {name: facts[name]["machine"] for name in names}
    for name, usual in odd(kinds):
        yield Check(WARN, name, "machine", f"{kinds[name]}, the others {usual}", usual, "trains; the slower kind sets the pace of all")
    yield from _paces({name: facts[name] for name in names})


def _version(facts: dict[str, Any], package: str) -> str:
    packages = facts["python"]["packages"]
    return tensorflow(packages) if package == "tensorflow" else packages.get(package, "")


def _equal_versions(versions: dict[str, str], package: str, level: str, need: Requirement) -> Iterator[Check]:
    for name, usual in odd(versions):
        value = f"{versions[name] or 'missing'}, the others {usual or 'without'}"
        yield Check(
            level, name, package, value, usual, f"ansible-playbook -i {need.inventory} provision.yml (installs the locked versions)"
        )


def odd(values: dict[str, Any]) -> list[tuple[str, Any]]:
    """Keys whose value is not the usual one, each with the usual one: the most frequent, of several the first."""
    if not values:
        return []
    usual = Counter(values.values()).most_common(1)[0][0]
    return [(name, usual) for name, value in values.items() if value != usual]


def _paces(facts: Facts) -> Iterator[Check]:
    for key, what in (("cpus", "CPUs"), ("speed", "MB/s a core")):
        known = {name: found[key] for name, found in facts.items() if found.get(key)}
        usual = statistics.median(known.values()) if known else 0.0
        for name, value in known.items():
            if value < SLOW_SHARE * usual:
                mend = "the slowest host sets the pace: leave it out, or mend what holds it back"
                yield Check(WARN, name, "speed", f"{value:g} {what}, the others {usual:g}", f"at least {SLOW_SHARE * usual:g}", mend)


def addresses(hosts: Hosts, facts: Facts, network: Facts) -> Iterator[Check]:
    """Every worker has an address of its own, and is really there."""
    for rank, host in enumerate(hosts):
        for earlier in hosts[:rank]:
            yield from _same_place(earlier, host, facts)
        if host["name"] in facts:
            yield from _elsewhere(host, facts, network)


def _same_place(first: dict[str, Any], second: dict[str, Any], facts: Facts) -> Iterator[Check]:
    names = f"{first['name']} and {second['name']}"
    mend = "give each a worker_address (or ansible_host) of its own in the inventory"
    machines = [_machine(facts.get(host["name"])) for host in (first, second)]
    if first["address"] == second["address"]:
        if first["port"] == second["port"]:
            yield Check(FAIL, second["name"], "address", f"{names} both have {first['address']}:{first['port']}", "one worker each", mend)
        elif None not in machines and machines[0] != machines[1]:
            yield Check(
                WARN, second["name"], "address", f"{names} both have {first['address']}, but are two machines", "one address each", mend
            )
    elif machines[0] is not None and machines[0] == machines[1]:
        yield Check(
            WARN, second["name"], "address", f"{names} are one machine ({machines[0][1]}) under two addresses", "a machine each", mend
        )


def _machine(facts: dict[str, Any] | None) -> tuple[str, str] | None:
    # Containers of one machine share the boot's id; two Raspberry Pis may share the name.
    return (facts["boot"], facts["hostname"]) if facts else None


def _elsewhere(host: dict[str, Any], facts: Facts, network: Facts) -> Iterator[Check]:
    name, mine = host["name"], facts[host["name"]]["address"]
    given = str(host["address"])
    others = [other for other, found in facts.items() if other != name and given in found["address"].get("all", [])]
    strangers = [other for other in others if _machine(facts[other]) != _machine(facts[name])]
    if "error" in mine:
        yield Check(FAIL, name, "address", f"{given} can't be resolved on it: {mine['error']}", mend="set worker_address to its IP address")
    elif not mine["own"]:
        all_ = ", ".join(mine["all"]) or "none"
        reached = any(found.get("pairs", {}).get(name, {}).get("reachable") for found in network.values())
        mend = f"set worker_address to {mine['all'][0]}" if len(mine["all"]) == 1 else "set worker_address to the one that the others reach"
        yield Check(WARN if reached else FAIL, name, "address", f"{given} is not an address of this host (it has {all_})", "its own", mend)
    elif strangers and not _loopback(given):
        mend = "give each machine an address of its own (ip addr shows them)"
        yield Check(FAIL, name, "address", f"{given} is also an address of {', '.join(strangers)}", "one machine an address", mend)
    else:
        yield Check(OK, name, "address", given)


# --- the network


UNREACHABLE = {
    "refused": "on {there}: a firewall that rejects? sudo nft list ruleset; the port must be open for all workers",
    "timeout": "a firewall drops it, or the address is wrong: open TCP port {port} of {there} for all workers",
    "no_route": "is {there} on, and in the same network? On {here}: ip route get {address}",
    "name": "set worker_address of {there} to its IP address",
    "silent": "on {there}: sudo ss -ltnp 'sport = :{port}' shows the program; end it, or set another worker_port",
    "stranger": "on {there}: sudo ss -ltnp 'sport = :{port}' shows the program; end it, or set another worker_port",
    "other_run": "another doctor is at work there; wait and run this one again",
    "wrong_host": "two hosts have one address: give each a worker_address of its own",
    "other": "on {here}: nc -vz {address} {port}",
}


def between(hosts: Hosts, network: Facts) -> list[Check]:
    """Every pair: reachable, how far, how fast, and whether large packets pass."""
    checks = [
        Check(
            FAIL,
            name,
            "listen",
            f"could not listen: {found['listening']}",
            "free",
            "end the program that holds it, or set another worker_port",
        )
        for name, found in network.items()
        if found.get("listening")
    ]
    busy = {check.host for check in checks}
    checks += [*_unreachable(hosts, network, busy), *_vanishing(network), *_lost(network), *_clocks(network), *_mtus(network)]
    checks += [*slow_links(network, DELAY), *slow_links(network, BANDWIDTH), *_ring(network)]
    return [*checks, *_summary(network, {check.host for check in checks})]


def _pairs(network: Facts) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for here, found in network.items():
        for there, pair in found["pairs"].items():
            yield here, there, pair


def _unreachable(hosts: Hosts, network: Facts, busy: set[str]) -> Iterator[Check]:
    places = {host["name"]: host for host in hosts}
    for there, place in places.items():
        asked = {here: found["pairs"][there] for here, found in network.items() if there in found["pairs"]}
        failed = {here: pair for here, pair in asked.items() if not pair["reachable"]}
        if not failed or there in busy:
            continue
        # One host that nobody reaches is one trouble, not one for each pair.
        whole = len(failed) == len(asked) > 1
        shown = dict([_most_telling(failed)]) if whole else failed
        for here, pair in shown.items():
            words = {"here": here, "there": there, "port": place["port"], "address": place["address"]}
            value = f"{there} ({place['address']}:{place['port']}) can't be reached from {'any host' if whole else here}: {pair['error']}"
            yield Check(FAIL, there if whole else here, "reach", value, "reachable", UNREACHABLE[pair["kind"]].format(**words))


def _most_telling(failed: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """One of several failures to reach a host; silence says least."""
    return min(failed.items(), key=lambda one: one[1]["kind"] == "timeout")


def _vanishing(network: Facts) -> Iterator[Check]:
    known = {(here, there): pair for here, there, pair in _pairs(network) if "mtu_trouble" in pair}
    bad = {pair for pair, found in known.items() if found["mtu_trouble"]}
    limit = "all sizes pass"
    mend = "set the smallest MTU of the path on {} (sudo ip link set dev INTERFACE mtu 1400), or let ICMP through"
    for host in [] if len(bad) == len(known) else _culprits(known, bad):
        bad = {pair for pair in bad if host not in pair}
        yield Check(FAIL, host, "mtu", f"on all links of {host} small packets pass and large ones vanish", limit, mend.format("all hosts"))
    for here, there in sorted(bad):
        value = f"to {there} small packets pass and large ones vanish (MTU here {known[here, there].get('mtu', '?')})"
        yield Check(FAIL, here, "mtu", value, limit, mend.format(f"{here} and {there}"))


def _lost(network: Facts) -> Iterator[Check]:
    for here, there, pair in _pairs(network):
        if pair["reachable"] and "error" in pair:
            yield Check(
                WARN,
                here,
                "network",
                f"to {there}: {pair['error']}",
                mend=f"run the doctor again; then look at the cables of {here} and {there}",
            )


def _clocks(network: Facts) -> Iterator[Check]:
    """Clocks of the hosts against each other, by the echoes: finer than what the control node can tell."""
    for here, found in network.items():
        ahead = [-pair["clock_s"] for pair in found["pairs"].values() if "clock_s" in pair]
        certain = statistics.median(ahead) if len(ahead) > 1 else 0.0
        if abs(certain) > CLOCK_WARN_S:
            value = f"{_span(abs(certain))} {'ahead of' if certain > 0 else 'behind'} the other hosts"
            yield Check(WARN, here, "clock", value, f"{CLOCK_WARN_S:.0f} s", "on it: sudo timedatectl set-ntp true")


def _mtus(network: Facts) -> Iterator[Check]:
    smallest = {here: [pair["mtu"] for pair in found["pairs"].values() if "mtu" in pair] for here, found in network.items()}
    known = {here: max(values) for here, values in smallest.items() if values}
    for here, usual in odd(known):
        value = f"{known[here]}, the others {usual}"
        yield Check(WARN, here, "mtu", value, str(usual), f"on it: sudo ip link set dev INTERFACE mtu {usual}, and the same on the switch")


@dataclass(frozen=True)
class Scale:
    """How one measure of a link is judged."""

    key: str
    name: str
    unit: str
    decimals: int
    more_is_better: bool
    advice: str

    def limit(self, good: float) -> float:
        """What a link must keep, where good links have `good`."""
        return max(SLOW_LINK_SHARE * good, SLOW_LINK_MBIT_S) if self.more_is_better else max(3 * good, LONG_RTT_MS)

    def good(self, values: Iterable[float]) -> float:
        """A good link's value: only a fifth of all are better. The median is bad where one of three hosts is."""
        ranked = sorted(values, reverse=not self.more_is_better)
        return ranked[round(0.8 * (len(ranked) - 1))]

    def show(self, value: float) -> str:
        """The value with its unit."""
        return f"{value:,.{self.decimals}f} {self.unit}"


DELAY = Scale("rtt_ms", "delay", "ms", 1, False, "connect {} by cable to the others' switch")
BANDWIDTH = Scale("mbit_s", "bandwidth", "Mbit/s", 0, True, "look at the cable and switch port of {}: sudo ethtool INTERFACE | grep Speed")


def slow_links(network: Facts, scale: Scale) -> Iterator[Check]:
    """Links that are much worse than good ones; a host whose links are all bad is the culprit, and named once."""
    known = {(here, there): pair[scale.key] for here, there, pair in _pairs(network) if pair.get(scale.key) is not None}
    if not known:
        return
    good = scale.good(known.values())
    limit = scale.limit(good)
    bad = {pair for pair, value in known.items() if (value < limit if scale.more_is_better else value > limit)}
    rule = f"at {'least' if scale.more_is_better else 'most'} {scale.show(limit)}"
    if len(bad) == len(known) > 2:
        middle = scale.show(statistics.median(known.values()))
        yield Check(WARN, "all", scale.name, f"every link is slow (median {middle})", rule, scale.advice.format("every host"))
        return
    for host in _culprits(known, bad):
        own = scale.show(statistics.median(value for pair, value in known.items() if host in pair))
        bad = {pair for pair in bad if host not in pair}
        yield Check(
            WARN, host, scale.name, f"all links of {host} are slow: {own}, good ones {scale.show(good)}", rule, scale.advice.format(host)
        )
    for here, there in sorted(bad):
        value = f"to {there} {scale.show(known[here, there])}, good links {scale.show(good)}"
        yield Check(WARN, here, scale.name, value, rule, scale.advice.format(f"{here} and {there}"))


def _culprits(known: Iterable[tuple[str, str]], bad: set[tuple[str, str]]) -> list[str]:
    links: dict[str, list[tuple[str, str]]] = {}
    for pair in known:
        for host in pair:
            links.setdefault(host, []).append(pair)
    return [host for host, pairs in links.items() if len(pairs) > 2 and bad.issuperset(pairs)]


def _ring(network: Facts) -> Iterator[Check]:
    """Links that are fast alone and slow when all hosts send at once, as they do in training."""
    for here, found in network.items():
        ring = found.get("ring") or {}
        alone = found["pairs"].get(ring.get("to"), {}).get("mbit_s")
        if alone and ring["mbit_s"] < SLOW_LINK_SHARE * alone:
            value = f"{BANDWIDTH.show(ring['mbit_s'])} to {ring['to']} while all send at once, {BANDWIDTH.show(alone)} alone"
            limit = f"at least {BANDWIDTH.show(SLOW_LINK_SHARE * alone)}"
            yield Check(
                WARN, here, "ring", value, limit, "a switch, an uplink or a processor is shared: give every host its own port on one switch"
            )


def _summary(network: Facts, troubled: set[str]) -> Iterator[Check]:
    for here, found in network.items():
        if here in troubled or not found["pairs"]:
            continue
        pairs = list(found["pairs"].values())
        parts = [
            f"reaches {sum(pair['reachable'] for pair in pairs)} of {len(pairs)} others",
            _median(pairs, DELAY),
            _median(pairs, BANDWIDTH),
        ]
        yield Check(OK, here, "network", ", ".join(part for part in parts if part))


def _median(pairs: list[dict[str, Any]], scale: Scale) -> str:
    known = [pair[scale.key] for pair in pairs if pair.get(scale.key) is not None]
    return scale.show(statistics.median(known)) if known else ""


# --- what a person and a program read


def render(checks: list[Check], verbose: bool = False) -> str:
    """A line a check, or only those that are not OK, one line for the hosts that have the same trouble; then a line that counts them."""
    shown = checks if verbose else _together([check for check in checks if check.level != OK])
    hosts = max((len(check.host) for check in shown), default=0)
    names = max((len(check.name) for check in shown), default=0)
    return "\n".join([*(_line(check, hosts, names) for check in shown), summary(checks)])


def _together(checks: list[Check]) -> list[Check]:
    """One check for several hosts of which everything else is the same."""
    hosts: dict[Check, list[str]] = {}
    for check in checks:
        hosts.setdefault(replace(check, host=""), []).append(check.host)
    return [replace(check, host=", ".join(names)) for check, names in hosts.items()]


def _line(check: Check, hosts: int, names: int) -> str:
    limit = f" (limit: {check.limit})" if check.limit and check.level != OK else ""
    mend = f". Mend: {check.mend}" if check.mend else ""
    return f"{f'[{check.level}]':<6} {check.host:<{hosts}}  {check.name:<{names}}  {check.value}{limit}{mend}"


def summary(checks: list[Check]) -> str:
    """How many checks came out how."""
    count = Counter(check.level for check in checks)
    hosts = len({check.host for check in checks} - {"all"})
    verdict = "can't train" if count[FAIL] else "can train"
    plural = "" if hosts == 1 else "s"
    return f"{hosts} host{plural}, {len(checks)} checks: {count[OK]} OK, {count[WARN]} WARN, {count[FAIL]} FAIL; this cluster {verdict}"


def matrix(network: Facts) -> str:
    """Tables of delay and bandwidth from each host (rows) to each (columns); `!` is unreachable, `?` unknown."""
    seen = {name: found for name, found in network.items() if "unreachable" not in found}
    return "\n\n".join(_table(seen, scale) for scale in (DELAY, BANDWIDTH) if any(pair.get(scale.key) for _, _, pair in _pairs(seen)))


def _table(network: Facts, scale: Scale) -> str:
    columns = list(dict.fromkeys([*network, *(there for _, there, _ in _pairs(network))]))
    title = f"{scale.name} ({scale.unit})"
    first, width = max(len(name) for name in [title, *columns]), max(8, *(len(name) for name in columns))
    lines = [f"{title:<{first}}" + "".join(f"  {there:>{width}}" for there in columns)]
    for here, found in network.items():
        cells = [_cell(found["pairs"].get(there), scale) if there != here else "-" for there in columns]
        lines.append(f"{here:<{first}}" + "".join(f"  {cell:>{width}}" for cell in cells))
    return "\n".join(lines)


def _cell(pair: dict[str, Any] | None, scale: Scale) -> str:
    if pair is None or (pair["reachable"] and pair.get(scale.key) is None):
        return "?"
    return f"{pair[scale.key]:,.{2 if scale is DELAY else 0}f}" if pair["reachable"] else "!"


def document(checks: list[Check], facts: Facts, network: Facts | None, prediction: dict[str, Any] | None = None) -> dict[str, Any]:
    """Everything, for `doctor.json`."""
    return {
        "ok": exit_status(checks) == 0,
        "summary": summary(checks),
        "checks": [asdict(check) for check in checks],
        "facts": facts,
        "network": network,
        "prediction": prediction,
    }


def exit_status(checks: list[Check]) -> int:
    """1 when anything fails, else 0; warnings do not count."""
    return int(any(check.level == FAIL for check in checks))
