"""Checks of one host alone."""

from collections.abc import Iterator

from control.doctor.checks.addresses import own_name
from control.doctor.checks.clocks import clock
from control.doctor.checks.model import FAIL, OK, WARN, Check, Subject, grade
from control.doctor.checks.packages import python
from control.doctor.checks.shared_folder import dfs, files

MACHINES = ("x86_64", "aarch64")
# A Raspberry Pi throttles from 80 degrees, other processors from about 95.
HOT_PI_C, HOT_C = 75.0, 90.0
COOLING = "give it a fan or a heat sink"


def of_host(subject: Subject) -> Iterator[Check]:
    """All checks of one host's own facts."""
    for check in ALL:
        yield from check(subject)


def machine(subject: Subject) -> Iterator[Check]:
    """A processor that TensorFlow is built for."""
    facts, value = subject.facts, subject.facts["machine"]
    level = OK if value in MACHINES else FAIL
    if level == OK:
        value = f"{value}, {facts.get('model', '')}, {facts['cpus']:g} CPUs, {facts.get('os', '')}"
    yield subject.check(level, "machine", value, " or ".join(MACHINES), "install a 64-bit system, or leave this host out")


def disk(subject: Subject) -> Iterator[Check]:
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
    yield subject.check(grade(free, needed, enough), "disk", f"{free:,} MB free", limit, fix)


def memory(subject: Subject) -> Iterator[Check]:
    """Memory still available to a worker."""
    facts, needed = subject.facts["memory"], subject.need.memory_mb
    free = facts["available_mb"]
    value, limit = f"{free:,} of {facts['total_mb']:,} MB available", f"at least {needed:,} MB"
    fix = "end other programs on it, or -e set=train.batch_size=N with a smaller N"
    yield subject.check(grade(free, needed, needed * 5 // 4), "memory", value, limit, fix)


def gpus(subject: Subject) -> Iterator[Check]:
    """As many GPUs as the inventory says the worker trains on."""
    wanted, names = subject.host.get("gpus", 0), subject.facts.get("gpus") or []
    if wanted:
        value = f"{len(names)} ({', '.join(dict.fromkeys(names))})" if names else "none"
        fix = "install NVIDIA's driver (nvidia-smi lists what it finds), or set gpus in the inventory"
        yield subject.check(OK if len(names) >= wanted else FAIL, "GPUs", value, f"at least {wanted}", fix)


def tmux(subject: Subject) -> Iterator[Check]:
    """Workers live in tmux."""
    version = subject.facts["tmux"]
    yield subject.check(OK if version else FAIL, "tmux", version or "is missing", fix=subject.on("sudo apt-get install tmux"))


def port(subject: Subject) -> Iterator[Check]:
    """The worker's port is free, or held by the resumed run."""
    facts = subject.facts["port"]
    number, state = facts["number"], facts["state"]
    if state == "free" or (state == "held" and facts["run"] == subject.need.run):
        yield subject.check(OK, "port", f"{number} is {'free' if state == 'free' else 'held by this run'}")
    elif state == "held":
        end = subject.on(f"tmux -L lockstep kill-session -t ={facts['session']}")
        fix = (
            f"wait for it; or stop it where it was started: ansible-playbook stop.yml -e run={facts['run']}; or end it: {end}; "
            "or set another worker_port"
        )
        yield subject.check(FAIL, "port", f"run {facts['run']} is training on {number}", "free", fix)
    else:
        yield _busy_port(subject, "port", "worker_port")


def direct_port(subject: Subject) -> Iterator[Check]:
    """Also the direct port, to which other workers connect; the run that holds the worker's port holds both."""
    facts = subject.facts.get("direct_port")
    if facts and facts["state"] != "free" and subject.facts["port"]["state"] != "held":
        yield _busy_port(subject, "direct_port", "worker_direct_port")


def _busy_port(subject: Subject, fact: str, variable: str) -> Check:
    facts = subject.facts[fact]
    number = facts["number"]
    if facts["state"] == "forbidden":
        return subject.check(FAIL, "port", f"{number} may not be opened by this user", "1024 or above", f"set another {variable}")
    look = subject.on(f"sudo ss -ltnp 'sport = :{number}'")
    holder = facts.get("process") or f"another program ({look})"
    return subject.check(FAIL, "port", f"{number} is held by {holder}", "free", f"end that program, or set another {variable}")


def throttling(subject: Subject) -> Iterator[Check]:
    """A Raspberry Pi that reduces its clock slows every step."""
    facts = subject.facts.get("throttled")
    if facts is not None:
        now, before = facts["now"], facts["since_boot"]
        value = f"now: {', '.join(now)}" if now else f"since it started: {', '.join(before)}" if before else "not throttled"
        fix = "use the maker's power supply and a short cable" if "under-voltage" in [*now, *before] else COOLING
        yield subject.check(WARN if now or before else OK, "throttling", value, fix=fix)


def temperature(subject: Subject) -> Iterator[Check]:
    """A processor that is about to throttle."""
    celsius = subject.facts.get("temperature")
    if celsius is not None:
        limit = HOT_PI_C if "raspberry" in str(subject.facts.get("model", "")).lower() else HOT_C
        yield subject.check(WARN if celsius >= limit else OK, "temperature", f"{celsius:.0f} C", f"below {limit:.0f} C", COOLING)


def governor(subject: Subject) -> Iterator[Check]:
    """A governor that keeps the processor's clock high."""
    governors = subject.facts.get("governors") or []
    if governors:
        fix = subject.on("echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
        yield subject.check(OK if governors == ["performance"] else WARN, "governor", ", ".join(governors), "performance", fix)


def load(subject: Subject) -> Iterator[Check]:
    """Other programs that use the processor; in a container, the load is the whole machine's."""
    average, cores = subject.facts.get("load"), subject.facts["cores"]
    if average is not None and subject.facts.get("cpu_quota") is None:
        value, limit = f"load {average:.1f} on {cores} cores", f"at most {cores / 2:g}"
        yield subject.check(WARN if average > cores / 2 else OK, "load", value, limit, "end what else runs there (top shows it)")


ALL = (
    python,
    machine,
    disk,
    memory,
    gpus,
    clock,
    tmux,
    port,
    direct_port,
    own_name,
    dfs,
    files,
    throttling,
    temperature,
    governor,
    load,
)
"""Each takes a host and yields its findings, none if there is nothing to check; in the order shown."""
