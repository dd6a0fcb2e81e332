"""Ansible module: a worker's place on a host (directories, port): inspected, claimed together with the worker's start, given back."""

import contextlib
import errno
import glob
import json
import os
import platform
import shlex
import shutil
import stat
import sys
import time

from ansible.module_utils import lockstep_claims as claims
from ansible.module_utils import lockstep_files as files
from ansible.module_utils import lockstep_host as kernel
from ansible.module_utils import lockstep_ports as ports
from ansible.module_utils import lockstep_sealed as sealed
from ansible.module_utils import lockstep_tmux as tmux
from ansible.module_utils import lockstep_tmux_socket as tmux_socket
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: worker_claim
short_description: Claim a worker's port on a host for one run, and start the worker
description:
  - A claim records which run's worker holds a port. It is valid exactly as long as the worker's tmux session exists.
  - So a claim is written together with the worker's start, under a lock that excludes other launches on this host.
  - A worker with a ticket claims a place in the host's queue instead, and the port itself when its turn comes.
  - Before that, damaged files of the run's training state are put aside, so that it resumes from an intact one.
options:
  state:
    type: str
    choices: [query, present, held, absent]
    default: present
    description:
      - C(query) reports on the place and the host's facts for the run's records (versions, CPU, disk); a host that can't train fails.
      - C(present) claims the port, writes the run's files and starts C(run_worker.sh) in a tmux session.
      - C(held) reports whether the worker of O(launch) is alive.
      - C(absent) ends the run's worker and removes its claims; with O(launch), only those of that launch, which then can no longer
        start here.
  root: {type: path, required: true, description: The worker's own directory.}
  run: {type: str, required: true, description: Name of the run.}
  launch: {type: str, default: "", description: Identifies one launch of a run.}
  ticket: {type: str, default: "", description: "With C(present): the worker waits for its turn; older tickets sort before it."}
  session: {type: str, description: tmux session of the run's worker; not needed to remove a launch's claims.}
  folder: {type: path, description: The run directory on this host; needed for C(query) and C(present).}
  host: {type: str, description: Inventory name of the worker; needed for C(query) and C(present).}
  port: {type: int, description: The worker's TCP port; needed for C(query) and C(present).}
  direct_port: {type: int, description: TCP port to which other workers connect.}
  server_port: {type: int, description: TCP port of a parameter server beside the worker.}
  files:
    type: list
    elements: dict
    default: []
    description: Files to write before the start, as in M(worker_files); one with C(secret=true) and no content gets the launch's secret.
  python: {type: path, description: "The worker's Python, which must be able to train; by default the one that runs this module."}
  needs: {type: list, elements: path, default: [], description: Published files that this host must be able to read.}
  need_mb: {type: int, default: 512, description: "Disk space that must be free, MB."}
  grace: {type: float, default: 5, description: Seconds between SIGTERM and SIGKILL to end a worker.}
"""

EXAMPLES = """
- name: Start the worker of my-run on port 12345
  worker_claim:
    root: /home/pi/lockstep
    run: my-run
    launch: 5eab81
    folder: /home/pi/lockstep/runs/my-run
    host: node01
    port: 12345
    session: my-run-w0
"""

RETURN = """
running: {type: bool, returned: state=query, description: Whether this run's worker is already alive.}
identity: {type: str, returned: state=query, description: "The C(id) of the run whose files are there; empty if there are none."}
holder:
  type: dict
  returned: state=query
  description: >-
    Who else holds a port, or null: C(kind) (port, direct_port, server_port), C(number), with C(run) and C(session) of another run, or
    C(process) of another program (empty if it is hidden).
facts: {type: dict, returned: state=query, description: "Versions, CPU model, CPUs (of a quota, too) and cores."}
newest_state: {type: str, returned: state=query, description: Name of the newest intact training state on this host; may be empty.}
newest_memory: {type: str, returned: state=query, description: Name of the newest intact memory of this worker's reduction; may be empty.}
damaged:
  type: list
  returned: state=query
  description: Newer damaged files of both, each with C(kind) (state or memory), C(name) and C(reason).
held: {type: bool, returned: state=held, description: Whether the worker of that launch is alive.}
ended: {type: str, returned: state=absent, description: "How the worker ended, as of M(tmux_session)."}
"""

PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "pillow")
SUPPORTED = ((3, 11), (3, 13))
PATIENCE_S = 60.0
"""Within this, a command that starts or ends a worker is done."""
REVOKED_S = 86400
"""After this long, nothing of a launch that was taken back can still be on its way to a host."""


def main():
    needed = ["session", "folder", "host", "port"]
    module = AnsibleModule(required_if=[("state", "query", needed), ("state", "present", needed)])
    tmux_socket.mend()
    {"query": query, "present": start, "held": report, "absent": give_back}[module.params["state"]](module)


def query(module):
    """Inspect the place, and report on the host."""
    running = tmux.exists(module, module.params["session"])
    _check_root(module)
    _check_disk(module)
    _check_needs(module)
    other = None if running else holder(module)
    # Damaged files are moved only if this run may be launched now; never "changed": the recap of a checked launch says nothing is.
    state = states(module, may_move=not running and other is None and not module.check_mode)
    module.exit_json(changed=False, running=running, identity=identity(module), holder=other, facts=facts(module), **state)


def holder(module):
    """Who has a port of this run's worker, or None."""
    held = claims.read(_claim_path(module))
    if held is not None and held["run"] != module.params["run"] and tmux.exists(module, held["session"]):
        return {"kind": "port", "number": module.params["port"], "run": held["run"], "session": held["session"]}
    for kind in ("port", "direct_port", "server_port"):
        number = module.params.get(kind)
        if number and ports.taken(number):
            return {"kind": kind, "number": number, "process": ports.holder(number)}
    return None


def identity(module):
    """The identity of the run that was launched into the folder last."""
    try:
        with open(os.path.join(module.params["folder"], "cluster.json"), encoding="utf-8") as stream:
            return str(json.load(stream).get("id") or "")
    except (OSError, ValueError, AttributeError):
        return ""


def start(module):
    """Claim the port and start the worker: both or nothing, and only one of two simultaneous launches."""
    if module.check_mode:
        module.exit_json(changed=True)
    os.umask(files.OTHERS)
    with locked(module):
        refuse(module)
        prepare(module)
        for file in module.params["files"]:
            files.write(module, file)
        for path, held in _all_claims(module):
            # An earlier launch's would be valid again with the session.
            if held["session"] == module.params["session"]:
                os.unlink(path)
        # A claim without a session is void: if killed here, this leaves nothing that holds the port.
        claim = {**{name: module.params[name] for name in ("run", "launch", "session")}, "folder": _worker_folder(module)}
        files.replace(_own_path(module), json.dumps(claim), 0o640)
        session = module.params["session"]
        if error := claims.start_session(claims.session_command(session, _worker_folder(module)), module.run_command):
            module.fail_json(msg=f"{module.params['host']}: tmux could not start session {session}: {error}")
    module.exit_json(changed=True)


def refuse(module):
    """Fail if the launch was taken back, or another one came first."""
    params = module.params
    if os.path.exists(_revoked_path(module)):
        module.fail_json(msg=f"{params['host']}: this launch of run {params['run']} was taken back meanwhile")
    if tmux.exists(module, params["session"]):
        module.fail_json(
            msg=f"{params['host']}: another command has just launched run {params['run']}. "
            f"Fix: watch that one: ansible-playbook train.yml -e run={params['run']}"
        )
    other = None if params["ticket"] else holder(module)
    if other is not None:
        who = f"run {other['run']}" if "run" in other else other["process"] or "another program"
        module.fail_json(
            msg=f"port {other['number']} on {params['host']} was taken by {who} at the same moment. Fix: the same command again"
        )


def prepare(module):
    """Make the worker's folders, without the markers of an earlier launch."""
    for folder in (os.path.dirname(_claim_path(module)), os.path.dirname(_own_path(module)), _worker_folder(module)):
        os.makedirs(folder, exist_ok=True)
    # A run of an earlier version gave everyone access.
    for folder in (module.params["folder"], _worker_folder(module)):
        with contextlib.suppress(PermissionError):
            os.chmod(folder, os.stat(folder).st_mode & 0o777 & ~files.OTHERS)
    for stale in (claims.EXIT, claims.MARK, claims.SUPERVISED):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(_worker_folder(module), stale))
    _keep_metrics(module)
    for path, held in claims.listed(module.params["root"], claims.QUEUE):
        # Nothing starts it again after a restart of the host.
        if not tmux.exists(module, held["session"]) and not claims.returns(held):
            os.unlink(path)
    for path in glob.glob(os.path.join(glob.escape(module.params["root"]), "locks", "*.revoked")):
        if time.time() - os.path.getmtime(path) > REVOKED_S:
            os.unlink(path)


def report(module):
    """Report whether the launch's worker is alive."""
    module.exit_json(changed=False, held=any(tmux.exists(module, held["session"]) for _, held in _own_claims(module)))


def give_back(module):
    """End the run's worker and remove its claims; for a launch, also revoke its permission to start here."""
    if module.check_mode:
        module.exit_json(changed=bool(_own_claims(module)))
    os.umask(files.OTHERS)
    with locked(module):
        mine = _own_claims(module)
        if module.params["launch"]:
            os.makedirs(os.path.dirname(_revoked_path(module)), exist_ok=True)
            files.replace(_revoked_path(module), "", 0o640)
        own = [module.params["session"]] if module.params["session"] and not module.params["launch"] else []
        how = [tmux.end(module, session, module.params["grace"]) for session in {*own, *(held["session"] for _, held in mine)}]
        for path, _ in mine:
            os.unlink(path)
    ended = max(how, key=["absent", "ended", "killed"].index, default="absent")
    module.exit_json(changed=bool(mine) or ended != "absent", ended=ended)


def _own_claims(module):
    """Paths and contents of this run's claims, or this launch's, on a port or in the queue."""
    params = module.params
    mine = [(path, held) for path, held in _all_claims(module) if held["run"] == params["run"]]
    return [(path, held) for path, held in mine if params["launch"] in ("", held.get("launch"))]


def _all_claims(module):
    """Paths and contents of all runs' claims."""
    root = module.params["root"]
    return claims.listed(root, claims.CLAIMS) + claims.listed(root, claims.QUEUE)


def _own_path(module):
    """Path of a starting worker's claim: of the port, or of a place in the queue."""
    ticket = module.params["ticket"]
    return claims.place(module.params["root"], ticket, module.params["port"]) if ticket else _claim_path(module)


def _claim_path(module):
    return os.path.join(module.params["root"], "locks", f"{module.params['port']}.json")


def _revoked_path(module):
    """Exists if the launch was taken back."""
    return os.path.join(module.params["root"], "locks", f"{module.params['launch']}.revoked")


def _keep_metrics(module):
    """Put the records of an earlier launch aside, so that they are not taken for this one's."""
    current = os.path.join(_worker_folder(module), "metrics.jsonl")
    if os.path.exists(current):
        os.replace(current, os.path.join(_worker_folder(module), f"metrics-{int(os.path.getmtime(current))}.jsonl"))


@contextlib.contextmanager
def locked(module):
    """Keep other launches on this host from changing claims; fail if one does not come to its end."""
    os.makedirs(module.params["root"], exist_ok=True)
    try:
        with claims.locked(module.params["root"], PATIENCE_S):
            yield
    except claims.Locked as error:
        module.fail_json(
            msg=f"{module.params['host']}: {error} has been starting or ending a worker for {PATIENCE_S:.0f} s. "
            "Fix: the same command again; if that process does not end: kill it"
        )


def _worker_folder(module):
    """This worker's part of the run directory."""
    return os.path.join(module.params["folder"], "workers", module.params["host"])


def _check_root(module):
    """Refuse a folder in which every user may put, or replace, what the worker runs."""
    root = module.params["root"]
    if os.path.isdir(root) and os.stat(root).st_mode & stat.S_IWOTH:
        module.fail_json(
            msg=f"{module.params['host']}: every user may write worker_root={root}, and so decide what the worker runs. "
            f"Fix: on it, chmod o-w {shlex.quote(root)}, or set worker_root to a folder of the user who trains"
        )


def _check_disk(module):
    """Refuse if the worker's disk is nearly full."""
    free = shutil.disk_usage(kernel.existing(module.params["root"])).free // 2**20
    if free < module.params["need_mb"]:
        module.fail_json(
            msg=f"{module.params['host']}: {free:,} MB free under {module.params['root']}; at least {module.params['need_mb']:,} MB are "
            "needed. Remove old runs (ansible-playbook playbooks/delete_run.yml -e run=NAME), or set worker_root to a larger disk."
        )


def _check_needs(module):
    """Refuse if this host does not see what was published: its distributed file system is a different one, or not mounted."""
    for path in module.params["needs"]:
        if denied(path):
            module.fail_json(
                msg=f"{module.params['host']} may not read {path}: it was published by another user than the one who trains here, and is "
                "closed to others. Train as a user of one name and uid on all hosts, or give dfs_path a group that all of them are in: "
                "chgrp -R GROUP DFS_PATH; find DFS_PATH -type d -exec chmod g+s {} +"
            )
        if not os.access(path, os.R_OK):
            module.fail_json(
                msg=f"{module.params['host']} can't read {path}, which was published: its dfs_path is not shared with the other hosts. "
                "See what is mounted there (findmnt), then: ansible-playbook provision.yml; ansible-playbook doctor.yml"
            )


def denied(path):
    """Return whether this user has no access to a file, which may not even exist."""
    try:
        with open(path, "rb"):
            return False
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EPERM)


def states(module, may_move):
    """The newest intact files of the run's training state on this host; newer damaged ones are put aside, if permitted."""
    report = {"damaged": []}
    for kind, parent in (("state", module.params["folder"]), ("memory", _worker_folder(module))):
        folder = os.path.join(parent, kind)
        report[f"newest_{kind}"], broken = sealed.newest_whole(folder)
        for name, reason in broken.items():
            report["damaged"].append({"kind": kind, "name": name, "reason": reason})
            if may_move:
                with contextlib.suppress(OSError):  # the trainer skips it where it is
                    sealed.put_aside(os.path.join(folder, name))
    return report


def facts(module):
    return {
        **probe(module),
        "machine": platform.machine(),
        "cpu": kernel.cpu_model(),
        "cpus": kernel.cpus(),
        "cores": max(1, int(kernel.cpus())),
    }


def probe(module):
    """Versions of the worker's Python and packages; refuses a Python that can't train."""
    python, host = module.params["python"] or sys.executable, module.params["host"]
    versions = kernel.versions(module, python, PACKAGES)
    if "error" in versions:
        fix = "set worker_python to a Python with requirements/node.txt"
        module.fail_json(msg=f"{host}: worker_python={python} {versions['error']}; {fix}")
    if not SUPPORTED[0] <= tuple(int(part) for part in versions["python"].split(".")[:2]) <= SUPPORTED[1]:
        module.fail_json(msg=f"{host}: worker_python={python} is Python {versions['python']}; 3.11 to 3.13 are supported")
    if not any(name.startswith("tensorflow") for name in versions["packages"]):
        module.fail_json(msg=f"{host}: worker_python={python} has no TensorFlow; install requirements/node.txt into it")
    return versions


if __name__ == "__main__":
    main()
