"""Ansible module: a host's facts that training needs. Reads only."""

import contextlib
import glob
import hashlib
import os
import platform
import pwd
import re
import shutil
import socket
import threading
import time

from ansible.module_utils import lockstep_claims as claims
from ansible.module_utils import lockstep_host as kernel
from ansible.module_utils import lockstep_ports as ports
from ansible.module_utils import lockstep_tmux
from ansible.module_utils import lockstep_tmux_socket as tmux_socket
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: host_probe
short_description: Report the facts of a host that training needs
description: Reads only. A value that can't be read is null or an error text, never a failure.
options:
  root: {type: path, required: true, description: The worker's own directory.}
  python: {type: path, required: true, description: The worker's Python.}
  port: {type: int, required: true, description: The worker's TCP port.}
  direct_port: {type: int, description: TCP port to which other workers connect.}
  server_port: {type: int, description: TCP port of a parameter server beside the worker.}
  address: {type: str, required: true, description: Address at which other workers reach this one.}
  dfs: {type: path, description: Folder that all workers read.}
  dfs_kind: {type: str, default: mounted, description: What the folder is (passed on).}
  need_mb: {type: int, default: 0, description: MB that the run needs under O(root) (passed on).}
  tokens: {type: list, elements: path, default: [], description: Files whose existence and SHA-256 are reported.}
  fast: {type: bool, default: false, description: Skip the measurement of the processor's speed.}
"""

RETURN = """
facts:
  description: >-
    hostname, user, machine, os, model, cores, cpu_quota (CPUs or null), cpus (usable under both), speed (MB/s of SHA-256 on one core),
    load, memory, disk, dfs, tmux, python, port, direct_port, server_port, name, address, boot, governors, gpus, temperature (degrees C),
    throttled, tokens, seconds (duration of the probe), time (seconds since 1970, taken last).
  returned: always
  type: dict
"""

PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "pillow", "pyyaml")
PATIENCE_S = 2.0
SPEED_S = 0.3
# https://www.raspberrypi.com/documentation/computers/os.html#get_throttled
THROTTLED = {0: "under-voltage", 1: "frequency capped", 2: "throttled", 3: "soft temperature limit"}


def main():
    start = time.monotonic()
    module = AnsibleModule()
    tmux_socket.mend()
    facts = look(module)
    facts["seconds"] = round(time.monotonic() - start, 3)
    facts["time"] = time.time()
    module.exit_json(changed=False, facts=facts)


def look(module):
    """All facts except the time."""
    params = module.params
    # A dead mount or name server answers late or never: query it while the rest is read.
    slow = {
        "dfs": Bounded(dfs, params["dfs"], params["dfs_kind"]),
        "name": Bounded(resolve, socket.gethostname()),
        "address": Bounded(own_address, params["address"]),
    }
    tokens = [(path, Bounded(token, path)) for path in params["tokens"]]
    facts = {
        "hostname": socket.gethostname(),
        "user": _user(),
        "machine": platform.machine(),
        "os": _os_release(),
        "model": (kernel.text("/proc/device-tree/model") or kernel.cpu_model()).strip("\0"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_quota": kernel.cpu_quota(),
        "cpus": kernel.cpus(),
        "load": os.getloadavg()[0],
        "memory": memory(),
        "disk": {**_disk(params["root"]), **_mounted(params["root"]), "need_mb": params["need_mb"]},
        "tmux": _tmux(module),
        "python": python(module, params["python"]),
        "port": port(module, params["port"], params["root"]),
        **{name: port(module, params[name], params["root"]) if params.get(name) else None for name in ("direct_port", "server_port")},
        "boot": kernel.text("/proc/sys/kernel/random/boot_id"),
        "governors": sorted({kernel.text(path) for path in glob.glob("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")}),
        "gpus": gpus(),
        "temperature": _temperature(),
        "throttled": throttled(module),
        "speed": None if params["fast"] else _speed(),
    }
    return {
        **facts,
        **{name: one.result() for name, one in slow.items()},
        "tokens": [{"path": path, **one.result()} for path, one in tokens],
    }


class Bounded(threading.Thread):
    """A query that may hang: its result, or an error text once the time is up."""

    def __init__(self, function, *arguments):
        super().__init__(daemon=True)
        self.query, self.answer, self.deadline = (function, arguments), None, time.monotonic() + PATIENCE_S
        self.start()

    def run(self):
        """Query."""
        function, arguments = self.query
        try:
            self.answer = function(*arguments)
        except OSError as error:
            self.answer = {"error": error.strerror or str(error)}

    def result(self):
        """Wait no longer than the time granted at the start."""
        self.join(max(0.0, self.deadline - time.monotonic()))
        return {"error": f"no answer in {PATIENCE_S:.0f} s"} if self.is_alive() else self.answer


def _user():
    """Name of the user, or the uid if there is none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _os_release():
    """The system's display name, as `Debian GNU/Linux 12 (bookworm)`."""
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', kernel.text("/etc/os-release") or "", re.MULTILINE)
    return match.group(1) if match else platform.system()


def memory(folders=None):
    """MB of memory, total and available, within the tightest limit of a control group."""
    lines = re.findall(r"^(MemTotal|MemAvailable):\s*(\d+) kB", kernel.text("/proc/meminfo"), re.MULTILINE)
    total, available = (int(dict(lines)[name]) * 1024 for name in ("MemTotal", "MemAvailable"))
    for folder in kernel.cgroups("memory") if folders is None else folders:
        limit = kernel.text(f"{folder}/memory.max") or kernel.text(f"{folder}/memory.limit_in_bytes")
        used = kernel.text(f"{folder}/memory.current") or kernel.text(f"{folder}/memory.usage_in_bytes")
        if limit and used and limit != "max" and int(limit) < 1 << 60:
            # The kernel reclaims pages of unused files by itself.
            cached = re.search(r"^(?:total_)?inactive_file (\d+)", kernel.text(f"{folder}/memory.stat") or "", re.MULTILINE)
            available = min(available, max(0, int(limit) - int(used) + int(cached.group(1) if cached else 0)))
            total = min(total, int(limit))
    return {"total_mb": total >> 20, "available_mb": available >> 20}


def _disk(path):
    """Free MB at the path, which need not exist yet."""
    folder = kernel.existing(path)
    return {"free_mb": shutil.disk_usage(folder).free >> 20, "writable": os.access(folder, os.W_OK), "exists": folder == path}


def dfs(path, kind):
    if not path:
        return None
    os.stat(kernel.existing(path))  # a dead mount fails here
    return {"kind": kind, **_mounted(path), **_disk(path)}


def _mounted(path):
    """The path with links resolved, and what is mounted there."""
    path = os.path.realpath(path)
    point, fs_type, source = kernel.mount_of(path)
    return {"path": path, "mount": point, "type": fs_type, "source": source}


def token(path):
    """Size and SHA-256 of a file, or the error that keeps this user from reading the file."""
    try:
        with open(path, "rb") as stream:
            size, state = os.fstat(stream.fileno()).st_size, hashlib.sha256()
            for block in iter(lambda: stream.read(1 << 20), b""):
                state.update(block)
    except OSError as error:
        return {"path": path, "error": error.strerror}
    return {"path": path, "bytes": size, "sha256": state.hexdigest()}


def _tmux(module):
    program = shutil.which("tmux")
    return module.run_command([program, "-V"])[1].strip().replace("tmux ", "") if program else None


def python(module, path):
    """Version and packages of the worker's Python, or why they are unknown."""
    versions = kernel.versions(module, path, PACKAGES)
    if "error" in versions:
        return {"path": path, "error": versions["error"]}
    return {"path": path, "version": versions["python"], "packages": versions["packages"]}


def port(module, number, root):
    """State of a worker's port: free, held by one of our runs, busy, or forbidden."""
    try:
        claim = claims.read_claim(os.path.join(root, "locks", f"{number}.json"))
    except OSError:
        # Closed to this user: then the port itself says whether it is taken.
        claim = None
    if claim and shutil.which("tmux") and lockstep_tmux.Session(module, claim["session"]).exists():
        return {"number": number, "state": "held", "run": claim["run"], "session": claim["session"]}
    error = ports.taken(number)
    if isinstance(error, PermissionError):
        return {"number": number, "state": "forbidden"}
    if error is not None:
        return {"number": number, "state": "busy", "process": ports.holder(number)}
    return {"number": number, "state": "free"}


def resolve(name):
    """Addresses to which a name resolves on this host."""
    return {"addresses": sorted({entry[4][0] for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})}


def own_address(address):
    """The address as resolved on this host, and whether it is the host's own: only then can a socket be bound to it."""
    resolved = resolve(address)["addresses"]
    own = []
    for candidate in resolved:
        family = socket.AF_INET6 if ":" in candidate else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((candidate, 0))
            own.append(candidate)
    return {"given": address, "addresses": resolved, "own": bool(own), "all": own_addresses()}


def own_addresses():
    """IPv4 addresses of this host, without loopback."""
    table = re.findall(r"\|-- ([\d.]+)\n\s+/32 host LOCAL", kernel.text("/proc/net/fib_trie") or "")
    return sorted({one for one in table if not one.startswith("127.")})


def gpus(folder="/proc/driver/nvidia/gpus"):
    """Names of the GPUs found by NVIDIA's driver."""
    texts = [kernel.text(path) or "" for path in sorted(glob.glob(f"{folder}/*/information"))]
    return [(re.findall(r"^Model:\s*(.*)", text, re.MULTILINE) or ["unknown"])[0] for text in texts]


def _temperature():
    """Degrees Celsius of the hottest sensor, or None."""
    readings = [kernel.text(path) for path in glob.glob("/sys/class/thermal/thermal_zone*/temp")]
    return max((int(reading) / 1000 for reading in readings if reading and reading.lstrip("-").isdigit()), default=None)


def throttled(module):
    """Throttling of a Raspberry Pi, now and since boot; None on other machines."""
    word = kernel.text("/sys/devices/platform/soc/soc:firmware/get_throttled")
    tool = shutil.which("vcgencmd")
    if word is None and tool:
        word = module.run_command([tool, "get_throttled"])[1].strip().partition("=")[2]
    return decode(int(word, 16)) if word and re.fullmatch(r"(0x)?[0-9a-fA-F]+", word) else None


def decode(bits):
    """The firmware's bits as words."""
    return {key: [word for bit, word in THROTTLED.items() if bits >> (bit + shift) & 1] for key, shift in (("now", 0), ("since_boot", 16))}


def _speed():
    """MB/s of SHA-256 on one core for a moment, to compare hosts."""
    block, hashed, start = bytes(1 << 16), 0, time.monotonic()
    while time.monotonic() - start < SPEED_S:
        hashlib.sha256(block).digest()
        hashed += len(block)
    return round(hashed / (time.monotonic() - start) / 1e6, 1)


if __name__ == "__main__":
    main()
