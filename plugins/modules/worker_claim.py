"""Ansible module: a worker's place on a host (directories, port) claimed for one run."""

import contextlib
import fcntl
import json
import os
import platform
import shutil
import socket
import sys
import time

from ansible.module_utils import lockstep_files as files
from ansible.module_utils import lockstep_host as kernel
from ansible.module_utils import lockstep_tmux as tmux
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: worker_claim
short_description: Claim a worker's port and directories on a host for one run
description:
  - Refuses when another run that is alive holds the port, or when another program listens on it.
  - A claim of a run that is gone is recognised (its tmux session is no more) and replaced.
  - Reports what the run's records need of the host (versions, CPU, disk).
options:
  root:
    description: The worker's own directory.
    type: path
    required: true
  run:
    description: Name of the run.
    type: str
    required: true
  folder:
    description: The run directory on this host.
    type: path
    required: true
  host:
    description: Inventory name of the worker.
    type: str
    required: true
  port:
    description: The worker's TCP port.
    type: int
    required: true
  session:
    description: tmux session that the run's worker has or will have.
    type: str
    required: true
  python:
    description: The worker's Python, which must be able to train.
    type: path
  needs:
    description: Files on the distributed file system that were published and that this host must be able to read.
    type: list
    elements: path
    default: []
  state:
    description: C(present) claims, C(absent) gives back what this run holds.
    type: str
    choices: [present, absent]
    default: present
author: Lockstep
"""

EXAMPLES = """
- name: Claim port 12345 for my-run
  worker_claim:
    root: /home/pi/lockstep
    run: my-run
    folder: /home/pi/lockstep/runs/my-run
    host: node01
    port: 12345
    session: my-run-w0
"""

RETURN = """
running:
  description: Whether this very run's worker is alive already.
  returned: state=present
  type: bool
facts:
  description: Versions, CPU model, cores, free disk of the host.
  returned: state=present
  type: dict
newest_state:
  description: Name of the newest training state on this host, or an empty string.
  returned: state=present
  type: str
newest_memory:
  description: Name of the newest file of what this worker's reduction remembered, or an empty string.
  returned: state=present
  type: str
"""

STARTING_S = 60
PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "pillow")
MINIMUM_FREE_MB = 512
SUPPORTED = ((3, 11), (3, 13))


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "run": {"type": "str", "required": True},
            "folder": {"type": "path", "required": True},
            "host": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "session": {"type": "str", "required": True},
            "python": {"type": "path", "default": sys.executable},
            "needs": {"type": "list", "elements": "path", "default": []},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    path = os.path.join(module.params["root"], "locks", f"{module.params['port']}.json")
    if module.params["state"] == "absent":
        give_back(module, path)
    claim(module, path)


def give_back(module, path):
    """Remove the claim when this run holds it."""
    mine = holds(module, path)
    if mine and not module.check_mode:
        with locked(module):
            if holds(module, path):
                os.unlink(path)
    module.exit_json(changed=mine)


def holds(module, path):
    """Whether this run has the claim."""
    held = read(path)
    return held is not None and held["run"] == module.params["run"]


def claim(module, path):
    """Refuse, continue or take the claim; then report on the host."""
    run, session = module.params["run"], module.params["session"]
    running = tmux.exists(module, session)
    held = read(path)
    if held is not None and held["run"] != run and alive(module, held):
        module.fail_json(
            msg=f"run {held['run']} is training on {module.params['host']} (port {module.params['port']}). Wait for it, stop it "
            f"(ansible-playbook stop.yml -e run={held['run']}), or give the inventory other ports (worker_port)."
        )
    if not running and listening(module.params["port"]):
        module.fail_json(
            msg=f"port {module.params['port']} on {module.params['host']} is in use by another program; end it or set another worker_port."
        )
    check_disk(module)
    check_needs(module)
    # With --check not "changed" either: the recap of a checked launch says that nothing is touched.
    changed = not running and not module.check_mode
    if changed:
        take(module, path, held)
    states = {"newest_state": newest(module.params["folder"], "state"), "newest_memory": newest(worker_folder(module), "memory")}
    module.exit_json(changed=changed, running=running, facts=facts(module), **states)


def read(path):
    """The claim on disk, or None; a torn file counts as none."""
    try:
        with open(path, encoding="utf-8") as stream:
            held = json.load(stream)
    except (FileNotFoundError, ValueError):
        return None
    return held if isinstance(held, dict) and {"run", "session", "at"} <= held.keys() else None


def alive(module, held):
    """Whether the run that holds a claim still runs or is just being started."""
    if tmux.exists(module, held["session"]):
        return True
    ended = "folder" in held and os.path.exists(os.path.join(held["folder"], "exit.json"))
    return time.time() - held["at"] < STARTING_S and not ended


def take(module, path, held):
    """Put the claim in the place of the one judged stale (or none); of two launches at once only one gets it."""
    for folder in (os.path.dirname(path), worker_folder(module)):
        os.makedirs(folder, exist_ok=True)
    with locked(module):
        if read(path) != held:
            module.fail_json(
                msg=f"another launch took port {module.params['port']} on {module.params['host']} at the same moment: {read(path)}"
            )
        # Before the claim can be seen: an old exit.json would say that the new run has ended.
        for stale in ("exit.json", "stop"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(worker_folder(module), stale))
        keep_metrics(module)
        write(module, path)


def keep_metrics(module):
    """Put the records of an earlier launch aside, so that nobody takes them for this one's."""
    current = os.path.join(worker_folder(module), "metrics.jsonl")
    if os.path.exists(current):
        os.replace(current, os.path.join(worker_folder(module), f"metrics-{int(os.path.getmtime(current))}.jsonl"))


@contextlib.contextmanager
def locked(module):
    """Keep other launches on this host from changing claims; the kernel gives the lock back when a process dies."""
    with open(os.path.join(module.params["root"], ".lock"), "a", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def write(module, path):
    """Write this run's claim, whole or not at all."""
    claimed = {"run": module.params["run"], "session": module.params["session"], "folder": worker_folder(module), "at": time.time()}
    files.replace(path, json.dumps(claimed))


def worker_folder(module):
    """This worker's part of the run directory."""
    return os.path.join(module.params["folder"], "workers", module.params["host"])


def listening(port):
    """Whether somebody listens on the port, on any address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def check_disk(module):
    """Refuse when the worker's disk is nearly full."""
    folder = module.params["root"]
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free // 2**20
    if free < MINIMUM_FREE_MB:
        module.fail_json(
            msg=f"{module.params['host']}: {free} MB free under {module.params['root']}; at least {MINIMUM_FREE_MB} MB are needed."
        )


def check_needs(module):
    """Refuse when this host does not see what was published: its distributed file system is another one, or not mounted."""
    for path in module.params["needs"]:
        if not os.access(path, os.R_OK):
            module.fail_json(
                msg=f"{module.params['host']} can't read {path}, which was published: its dfs_path is not shared with the other hosts. "
                "See what is mounted there (findmnt), then: ansible-playbook provision.yml; ansible-playbook doctor.yml"
            )


def newest(place, kind):
    """Name of the newest file of a training state in a folder."""
    folder = os.path.join(place, kind)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return max((name for name in names if name.startswith("step-") and name.endswith(".npz")), default="")


def facts(module):
    """What the records of a run say of a host."""
    return {**probe(module), "machine": platform.machine(), "cpu": kernel.cpu_model(), "cores": max(1, int(kernel.cpus()))}


def probe(module):
    """Versions of the worker's Python and packages; refuses a Python that can't train."""
    python, host = module.params["python"], module.params["host"]
    if not os.access(python, os.X_OK):
        module.fail_json(msg=f"{host}: worker_python={python} is no program; set worker_python to a Python with requirements/node.txt")
    code, out, error = module.run_command([python, "-c", kernel.VERSIONS, *PACKAGES])
    if code != 0:
        module.fail_json(msg=f"{host}: worker_python={python} does not run: {error.strip()[-300:]}")
    found = json.loads(out)
    if not SUPPORTED[0] <= tuple(int(part) for part in found["python"].split(".")[:2]) <= SUPPORTED[1]:
        module.fail_json(msg=f"{host}: worker_python={python} is Python {found['python']}; 3.11 to 3.13 are supported")
    if not any(name.startswith("tensorflow") for name in found["packages"]):
        module.fail_json(msg=f"{host}: worker_python={python} has no TensorFlow; install requirements/node.txt into it")
    return found


if __name__ == "__main__":
    main()
