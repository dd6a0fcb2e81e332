"""Checks of one host alone."""

import ipaddress
from collections.abc import Iterator
from typing import Any

from control.doctor.checks.model import FAIL, OK, WARN, Check, Subject, on

MACHINES = ("x86_64", "aarch64")
PYTHON = ((3, 11), (3, 13))
"""The first and last supported version."""
# The order of failures on several hosts follows from the times in their records.
CLOCK_WARN_S = 1.0
# Beyond the silence (45 s) after which a worker counts as lost; certificates and package lists soon fail, too.
CLOCK_FAIL_S = 60.0
# A Raspberry Pi throttles from 80 degrees, other processors from about 95.
HOT_PI_C, HOT_C = 75.0, 90.0
COOLING = "give it a fan or a heat sink"
LOCAL_TYPES = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay", "tmpfs", "vfat")
SILENT = "the shared folder does not answer"


def _python(subject: Subject) -> Iterator[Check]:
    """The worker's Python: installed, of a supported version, with TensorFlow."""
    facts, need = subject.facts["python"], subject.need
    limit = " to ".join(f"{major}.{minor}" for major, minor in PYTHON)
    if facts.get("error"):
        yield subject.check(FAIL, "python", f"{facts['path']} {facts['error']}", limit, f"{need.provision}, or set worker_python")
    elif not supported(facts["version"]):
        fix = "install one of these and set worker_python to it"
        yield subject.check(FAIL, "python", f"{facts['version']} ({facts['path']})", limit, fix)
    elif not tensorflow(facts["packages"]):
        yield subject.check(FAIL, "python", f"no TensorFlow in {facts['path']}", "requirements/node.txt", need.provision)
    else:
        yield subject.check(OK, "python", f"{facts['version']}, TensorFlow {tensorflow(facts['packages'])}", limit)


def supported(version: str) -> bool:
    """Return whether a version of Python may train."""
    return PYTHON[0] <= tuple(int(part) for part in version.split(".")[:2]) <= PYTHON[1]


def tensorflow(packages: dict[str, str]) -> str:
    """Version of TensorFlow under either of its names, or empty."""
    return packages.get("tensorflow") or packages.get("tensorflow-cpu") or ""


def _machine(subject: Subject) -> Iterator[Check]:
    """The processor: a kind for which TensorFlow is built."""
    facts, value = subject.facts, subject.facts["machine"]
    level = OK if value in MACHINES else FAIL
    if level == OK:
        value = f"{value}, {facts.get('model', '')}, {facts['cpus']:g} CPUs, {facts.get('os', '')}"
    yield subject.check(level, "machine", value, " or ".join(MACHINES), "install a 64-bit system, or leave this host out")


def _disk(subject: Subject) -> Iterator[Check]:
    """Free space for the worker's runs."""
    facts, need = subject.facts["disk"], subject.need
    free, needed = facts["free_mb"], max(need.disk_mb, facts.get("need_mb", 0))
    enough, limit = max(2 * needed, need.disk_whole_mb), f"at least {needed:,} MB"
    if not facts.get("writable", True):
        fix = "sudo chown its folder to the worker's user, or set worker_root"
        yield subject.check(FAIL, "disk", "worker_root can't be written", limit, fix)
        return
    if free >= needed:
        limit = f"{enough:,} MB for the snapshots of all epochs, and some to spare"
    fix = "remove old runs (below worker_root/runs on it), or set worker_root to a larger disk"
    yield subject.check(_grade(free, needed, enough), "disk", f"{free:,} MB free", limit, fix)


def _memory(subject: Subject) -> Iterator[Check]:
    """Memory still available to a worker, and to a parameter server beside it."""
    facts, need = subject.facts["memory"], subject.need
    needed = need.memory_mb + (need.server_mb if "server_port" in subject.host else 0)
    # Memory that other runs use now is free when a queued run's turn comes.
    free = facts["total_mb"] if need.queued else facts["available_mb"]
    value, limit = f"{facts['available_mb']:,} of {facts['total_mb']:,} MB available", f"at least {needed:,} MB"
    fix = "end other programs on it, or -e set=train.batch_size=N with a smaller N"
    yield subject.check(_grade(free, needed, needed * 5 // 4), "memory", value, limit, fix)


def _grade(value: float, needed: float, enough: float) -> str:
    """The level of an amount: below `needed` fails, below `enough` warns."""
    return FAIL if value < needed else WARN if value < enough else OK


def _gpus(subject: Subject) -> Iterator[Check]:
    """The number of GPUs: as many as the inventory gives the worker."""
    wanted, names = subject.host.get("gpus", 0), subject.facts.get("gpus") or []
    if wanted:
        value = f"{len(names)} ({', '.join(dict.fromkeys(names))})" if names else "none"
        fix = "install NVIDIA's driver (nvidia-smi lists what it finds), or set gpus in the inventory"
        yield subject.check(OK if len(names) >= wanted else FAIL, "GPUs", value, f"at least {wanted}", fix)


def _clock(subject: Subject) -> Iterator[Check]:
    """Offset of a host's clock from the control node's; only the part beyond the uncertainty counts.

    The host read its clock at the end of a probe of `seconds`, between `before` + `seconds` and `after` on the control node's clock.
    """
    facts = subject.facts
    first, last = facts["before"] + facts["seconds"], facts["after"]
    ahead, blur = facts["time"] - (first + last) / 2, max(0.0, last - first) / 2
    certain = max(0.0, abs(ahead) - blur)
    level = FAIL if certain > CLOCK_FAIL_S else WARN if certain > CLOCK_WARN_S else OK
    value = f"{span(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}" if level != OK else f"correct within {abs(ahead) + blur:.1f} s"
    yield subject.check(level, "clock", value, f"{CLOCK_WARN_S:.0f} s", set_clock(subject.host["name"]))


def set_clock(host: str) -> str:
    """The command that corrects a host's clock."""
    return on(host, "sudo timedatectl set-ntp true")


def span(seconds: float) -> str:
    """A duration as `12.5 s`, or in hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{seconds:.1f} s" if seconds < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"


def _tmux(subject: Subject) -> Iterator[Check]:
    """The program tmux, in which workers live."""
    version = subject.facts["tmux"]
    yield subject.check(OK if version else FAIL, "tmux", version or "is missing", fix=subject.on("sudo apt-get install tmux"))


def _port(subject: Subject) -> Iterator[Check]:
    """The worker's port is free, or held by the resumed run."""
    facts = subject.facts["port"]
    number, state = facts["number"], facts["state"]
    if state == "free" or (state == "held" and facts["run"] == subject.need.run):
        yield subject.check(OK, "port", f"{number} is {'free' if state == 'free' else 'held by this run'}")
    elif state == "held" and subject.need.queued:
        yield subject.check(OK, "port", f"{number} is run {facts['run']}'s, and this run waits for its turn")
    elif state == "held":
        fix = f"wait for it (-e queue=true does); or stop it: ansible-playbook stop.yml -e run={facts['run']}; or set another worker_port"
        yield subject.check(FAIL, "port", f"run {facts['run']} is training on {number}", "free", fix)
    else:
        yield _busy_port(subject, "port", "worker_port")


def _other_ports(subject: Subject) -> Iterator[Check]:
    """The port to which other workers connect, and a parameter server's port; a run that holds the worker's port holds all of them."""
    for name, variable in (("direct_port", "worker_direct_port"), ("server_port", "worker_port, which the parameter server's follows")):
        facts = subject.facts.get(name)
        if facts and facts["state"] != "free" and subject.facts["port"]["state"] != "held":
            yield _busy_port(subject, name, variable)


def _busy_port(subject: Subject, fact: str, variable: str) -> Check:
    facts = subject.facts[fact]
    number = facts["number"]
    if facts["state"] == "forbidden":
        return subject.check(FAIL, "port", f"{number} may not be opened by this user", "1024 or above", f"set another {variable}")
    look = subject.on(f"sudo ss -ltnp 'sport = :{number}'")
    holder = facts.get("process") or f"another program ({look})"
    return subject.check(FAIL, "port", f"{number} is held by {holder}", "free", f"end that program, or set another {variable}")


def _own_name(subject: Subject) -> Iterator[Check]:
    """A host whose own name resolves to its loopback must not be addressed by that name."""
    facts, given = subject.facts, str(subject.host["address"])
    own, resolved, called = facts["name"].get("addresses", []), facts["address"].get("addresses", []), facts["hostname"]
    fix = f"on it, in /etc/hosts, give {called} its address instead of {', '.join(own) or '127.0.1.1'}"
    limit = "an address the others reach"
    if not _is_ip(given) and resolved and all(map(loopback, resolved)) and given != "localhost":
        value = f"{given} resolves to {', '.join(resolved)} on the host itself"
        yield subject.check(FAIL, "name", value, limit, f"set worker_address to its IP address; or {fix}")
    elif "error" in facts["name"]:
        value = f"{called} does not resolve: {facts['name']['error']}"
        yield subject.check(WARN, "name", value, fix=f"on it, add {called} to /etc/hosts")
    elif own and all(map(loopback, own)) and not loopback(given) and given != "localhost":
        value = f"{called} resolves to {', '.join(own)} on the host itself"
        yield subject.check(WARN, "name", value, limit, f"harmless while worker_address is an IP address; or {fix}")
    else:
        yield subject.check(OK, "name", f"{called} is {', '.join(own)}")


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def loopback(address: str) -> bool:
    """Return whether this IP address is a loopback address. A name is not."""
    return _is_ip(address) and ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _dfs(subject: Subject) -> Iterator[Check]:
    """The shared folder: mounted, writable, and the same on all hosts."""
    facts, need, limit = subject.facts["dfs"], subject.need, "one folder that all hosts see"
    if facts is None:
        return
    if "error" in facts:
        fix = subject.on(f"sudo mount -a; or {need.provision}")
        yield subject.check(FAIL, "dfs", f"{SILENT}: {facts['error']}", fix=fix)
        return
    value, wrong = f"{facts['path']} ({facts['type']} of {facts['source']})", _not_shared(subject)
    if wrong:
        fix = f"mount the shared file system there on every host ({need.provision}), or set dfs_path"
        yield subject.check(FAIL, "dfs", f"{value} {wrong}", limit, fix)
    elif not facts.get("writable", True):
        user = subject.facts.get("user")
        yield subject.check(FAIL, "dfs", f"{value} can't be written by {user}", fix=f"sudo chown {user} {facts['path']}")
    elif need.token is None and facts["kind"] != "local" and facts["type"] in LOCAL_TYPES:
        # The server of an NFS share may use its own disk; a launch checks that every host can read the published files.
        fix = "fine on the host that exports the folder; on any other: mount it there, or set dfs_path"
        yield subject.check(WARN, "dfs", f"{value} is on this host's own disk", limit, fix)
    else:
        # An upload checks for enough space itself, because the next published files are unknown here.
        yield subject.check(OK, "dfs", f"{value}, {facts['free_mb']:,} MB free")


def _not_shared(subject: Subject) -> str:
    facts, token = subject.facts["dfs"], subject.need.token
    if facts["kind"] == "local":
        return ""
    if facts["kind"] == "glusterfs" and facts["type"] != "fuse.glusterfs":
        return "is not a GlusterFS mount"
    if token is not None:
        path, digest = token
        read = _read(subject, path)
        if "error" in read:
            return f"is not shared: a file just written by another host is not there ({read['error']})"
        return "" if read.get("sha256") == digest else "is not shared: a file just written by another host has different content here"
    return ""


def _read(subject: Subject, path: str) -> dict[str, Any]:
    return next((one for one in subject.facts["tokens"] if one["path"] == path), {"error": "was not checked"})


def _files(subject: Subject) -> Iterator[Check]:
    """Dataset and code are readable and as published."""
    for path, digest in subject.need.files.items():
        read = _read(subject, path)
        if "error" in read:
            fix = "ls -l it on the host; train.yml publishes it again if it is missing from the shared folder"
            yield subject.check(FAIL, "file", f"{path} can't be read: {read['error']}", "readable", fix)
        elif digest and read.get("sha256") and read["sha256"] != digest:
            fix = f"ansible-playbook -i {subject.need.inventory} train.yml sends it again; then check who can write to that folder (ls -l)"
            yield subject.check(FAIL, "file", f"{path} has digest {read['sha256'][:16]}", digest[:16], fix)
        else:
            yield subject.check(OK, "file", f"{path} {(read.get('sha256') or 'is readable')[:16]}")


def _throttling(subject: Subject) -> Iterator[Check]:
    """A Raspberry Pi's throttling, which slows every step."""
    facts = subject.facts.get("throttled")
    if facts is not None:
        now, before = facts["now"], facts["since_boot"]
        value = f"now: {', '.join(now)}" if now else f"since it started: {', '.join(before)}" if before else "not throttled"
        fix = "use the maker's power supply and a short cable" if "under-voltage" in [*now, *before] else COOLING
        yield subject.check(WARN if now or before else OK, "throttling", value, fix=fix)


def _temperature(subject: Subject) -> Iterator[Check]:
    """The temperature of the processor, which throttles when too hot."""
    celsius = subject.facts.get("temperature")
    if celsius is not None:
        limit = HOT_PI_C if "raspberry" in str(subject.facts.get("model", "")).lower() else HOT_C
        yield subject.check(WARN if celsius >= limit else OK, "temperature", f"{celsius:.0f} C", f"below {limit:.0f} C", COOLING)


def _governor(subject: Subject) -> Iterator[Check]:
    """The governor, which should keep the processor's clock high."""
    governors = subject.facts.get("governors") or []
    if governors:
        fix = subject.on("echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
        yield subject.check(OK if governors == ["performance"] else WARN, "governor", ", ".join(governors), "performance", fix)


def _load(subject: Subject) -> Iterator[Check]:
    """Load by other programs: skipped in a container, which shows the whole machine's; never a warning for a queued run, which waits."""
    average, cores = subject.facts.get("load"), subject.facts["cores"]
    if average is not None and subject.facts.get("cpu_quota") is None:
        value, limit = f"load {average:.1f} on {cores} cores", f"at most {cores / 2:g}"
        # On the machine where the command is typed, the user can see the running programs.
        excused = subject.need.queued or subject.host["address"].startswith("127.")
        level = WARN if average > cores / 2 and not excused else OK
        yield subject.check(level, "load", value, limit, "end what else runs there (top shows it)")


def of_host(subject: Subject) -> Iterator[Check]:
    """All checks of one host's own facts, in the order shown; each yields its findings, none if there is nothing to check."""
    for check in (_python, _machine, _disk, _memory, _gpus, _clock, _tmux, _port, _other_ports, _own_name):
        yield from check(subject)
    for check in (_dfs, _files, _throttling, _temperature, _governor, _load):
        yield from check(subject)
