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
    _Place(module).act()


class _Place(kernel.Change):
    """A worker's place on this host, and the claims of its run or launch."""

    def __init__(self, module):
        super().__init__(module)
        self.root, self.run, self.launch, self.ticket = (self.params[name] for name in ("root", "run", "launch", "ticket"))
        self.host, self.session, self.locks = self.params["host"] or "", self.params["session"], os.path.join(self.root, "locks")
        self.worker = os.path.join(self.params["folder"] or "", "workers", self.host)
        """This worker's part of the run directory."""
        self.port_claim = os.path.join(self.locks, f"{self.params['port']}.json")
        self.revoked = os.path.join(self.locks, f"{self.launch}.revoked")
        """Exists if the launch was taken back."""

    def fail(self, message):
        """End with a message about this host."""
        self.module.fail_json(msg=f"{self.host}: {message}")

    def query(self):
        """Inspect the place, and report on the host."""
        running = self._alive(self.session)
        self._check_root()
        self._check_disk()
        self._check_needs()
        other = None if running else self._holder()
        # Damaged files are moved only if this run may be launched now; never "changed": the recap of a checked launch says nothing is.
        state = self._states(may_move=not running and other is None and not self.module.check_mode)
        try:
            # Of the run that was launched into the folder last.
            identity = str(files.parsed(os.path.join(self.params["folder"], "cluster.json")).get("id") or "")
        except (OSError, AttributeError):
            identity = ""
        self.module.exit_json(changed=False, running=running, identity=identity, holder=other, facts=self._facts(), **state)

    def present(self):
        """Claim the port and start the worker: both or nothing, and only one of two simultaneous launches."""
        if self.module.check_mode:
            self.module.exit_json(changed=True)
        os.umask(files.OTHERS)
        with self._locked():
            self._refuse()
            own = claims.place(self.root, self.ticket, self.params["port"]) if self.ticket else self.port_claim
            self._prepare(own)
            for file in self.params["files"]:
                files.write(self.module, file)
            for path, held in self._all_claims():
                # An earlier launch's would be valid again with the session.
                if held["session"] == self.session:
                    os.unlink(path)
            # A claim without a session is void: if killed here, this leaves nothing that holds the port.
            claim = {"run": self.run, "launch": self.launch, "session": self.session, "folder": self.worker}
            files.replace(own, json.dumps(claim), 0o640)
            if error := claims.start_session(claims.session_command(self.session, self.worker), self.module.run_command):
                self.fail(f"tmux could not start session {self.session}: {error}")
        self.module.exit_json(changed=True)

    def held(self):
        """Report whether the launch's worker is alive."""
        self.module.exit_json(changed=False, held=any(self._alive(held["session"]) for _, held in self._own_claims()))

    def absent(self):
        """End the run's worker and remove its claims; for a launch, also revoke its permission to start here."""
        if self.module.check_mode:
            self.module.exit_json(changed=bool(self._own_claims()))
        os.umask(files.OTHERS)
        with self._locked():
            mine = self._own_claims()
            if self.launch:
                os.makedirs(self.locks, exist_ok=True)
                files.replace(self.revoked, "", 0o640)
            own = [self.session] if self.session and not self.launch else []
            how = [
                tmux.Session(self.module, session).end(self.params["grace"]) for session in {*own, *(held["session"] for _, held in mine)}
            ]
            for path, _ in mine:
                os.unlink(path)
        ended = max(how, key=["absent", "ended", "killed"].index, default="absent")
        self.module.exit_json(changed=bool(mine) or ended != "absent", ended=ended)

    def _alive(self, session):
        return tmux.Session(self.module, session).exists()

    def _holder(self):
        """Who has a port of this run's worker, or None."""
        held = claims.read_claim(self.port_claim)
        if held is not None and held["run"] != self.run and self._alive(held["session"]):
            return {"kind": "port", "number": self.params["port"], "run": held["run"], "session": held["session"]}
        for kind in ("port", "direct_port", "server_port"):
            number = self.params[kind]
            if number and ports.taken(number):
                return {"kind": kind, "number": number, "process": ports.holder(number)}
        return None

    def _refuse(self):
        """Fail if the launch was taken back, or another one came first."""
        if os.path.exists(self.revoked):
            self.fail(f"this launch of run {self.run} was taken back meanwhile")
        if self._alive(self.session):
            self.fail(
                f"another command has just launched run {self.run}. Fix: watch that one: ansible-playbook train.yml -e run={self.run}"
            )
        other = None if self.ticket else self._holder()
        if other is not None:
            who = f"run {other['run']}" if "run" in other else other["process"] or "another program"
            self.module.fail_json(
                msg=f"port {other['number']} on {self.host} was taken by {who} at the same moment. Fix: the same command again"
            )

    def _prepare(self, own):
        """Make the folders of the worker and of its claim, without the markers of an earlier launch."""
        for folder in (self.locks, os.path.dirname(own), self.worker):
            os.makedirs(folder, exist_ok=True)
        # A run of an earlier version gave everyone access.
        for folder in (self.params["folder"], self.worker):
            with contextlib.suppress(PermissionError):
                os.chmod(folder, os.stat(folder).st_mode & 0o777 & ~files.OTHERS)
        for stale in (claims.EXIT, claims.MARK, claims.SUPERVISED):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.worker, stale))
        metrics = os.path.join(self.worker, "metrics.jsonl")
        if os.path.exists(metrics):
            # An earlier launch's records must not be taken for this one's.
            os.replace(metrics, os.path.join(self.worker, f"metrics-{int(os.path.getmtime(metrics))}.jsonl"))
        for path, held in claims.listed(self.root, claims.QUEUE):
            # Nothing starts it again after a restart of the host.
            if not self._alive(held["session"]) and not claims.returns(held):
                os.unlink(path)
        for path in glob.glob(os.path.join(glob.escape(self.locks), "*.revoked")):
            if time.time() - os.path.getmtime(path) > REVOKED_S:
                os.unlink(path)

    def _own_claims(self):
        """Paths and contents of this run's claims, or this launch's, on a port or in the queue."""
        mine = [(path, held) for path, held in self._all_claims() if held["run"] == self.run]
        return [(path, held) for path, held in mine if self.launch in ("", held.get("launch"))]

    def _all_claims(self):
        return claims.listed(self.root, claims.CLAIMS) + claims.listed(self.root, claims.QUEUE)

    @contextlib.contextmanager
    def _locked(self):
        """Keep other launches on this host from changing claims; fail if one does not come to its end."""
        os.makedirs(self.root, exist_ok=True)
        try:
            with claims.locked(self.root, PATIENCE_S):
                yield
        except claims.Locked as error:
            self.fail(
                f"{error} has been starting or ending a worker for {PATIENCE_S:.0f} s. "
                "Fix: the same command again; if that process does not end: kill it"
            )

    def _check_root(self):
        """Refuse a folder in which every user may put, or replace, what the worker runs."""
        if os.path.isdir(self.root) and os.stat(self.root).st_mode & stat.S_IWOTH:
            self.fail(
                f"every user may write worker_root={self.root}, and so decide what the worker runs. "
                f"Fix: on it, chmod o-w {shlex.quote(self.root)}, or set worker_root to a folder of the user who trains"
            )

    def _check_disk(self):
        free, needed = shutil.disk_usage(kernel.existing(self.root)).free // 2**20, self.params["need_mb"]
        if free < needed:
            self.fail(
                f"{free:,} MB free under {self.root}; at least {needed:,} MB are needed. "
                "Remove old runs (ansible-playbook playbooks/delete_run.yml -e run=NAME), or set worker_root to a larger disk."
            )

    def _check_needs(self):
        """Refuse if this host does not see what was published: its distributed file system is a different one, or not mounted."""
        for path in self.params["needs"]:
            if _denied(path):
                self.module.fail_json(
                    msg=f"{self.host} may not read {path}: it was published by another user than the one who trains here, and is "
                    "closed to others. Train as a user of one name and uid on all hosts, or give dfs_path a group that all of them are in: "
                    "chgrp -R GROUP DFS_PATH; find DFS_PATH -type d -exec chmod g+s {} +"
                )
            if not os.access(path, os.R_OK):
                self.module.fail_json(
                    msg=f"{self.host} can't read {path}, which was published: its dfs_path is not shared with the other hosts. "
                    "See what is mounted there (findmnt), then: ansible-playbook provision.yml; ansible-playbook doctor.yml"
                )

    def _states(self, may_move):
        """The newest intact files of the run's training state on this host; newer damaged ones are put aside, if permitted."""
        found = {"damaged": []}
        for kind, parent in (("state", self.params["folder"]), ("memory", self.worker)):
            folder = os.path.join(parent, kind)
            found[f"newest_{kind}"], broken = sealed.newest_whole(folder)
            for name, reason in broken.items():
                found["damaged"].append({"kind": kind, "name": name, "reason": reason})
                if may_move:
                    with contextlib.suppress(OSError):  # the trainer skips it where it is
                        sealed.put_aside(os.path.join(folder, name))
        return found

    def _facts(self):
        """Versions of the worker's Python and packages, and the processor; refuses a Python that can't train."""
        python = self.params["python"] or sys.executable
        versions = kernel.versions(self.module, python, PACKAGES)
        if "error" in versions:
            self.fail(f"worker_python={python} {versions['error']}; set worker_python to a Python with requirements/node.txt")
        if not SUPPORTED[0] <= tuple(int(part) for part in versions["python"].split(".")[:2]) <= SUPPORTED[1]:
            self.fail(f"worker_python={python} is Python {versions['python']}; 3.11 to 3.13 are supported")
        if not any(name.startswith("tensorflow") for name in versions["packages"]):
            self.fail(f"worker_python={python} has no TensorFlow; install requirements/node.txt into it")
        cpus = kernel.cpus()
        return {**versions, "machine": platform.machine(), "cpu": kernel.cpu_model(), "cpus": cpus, "cores": max(1, int(cpus))}


def _denied(path):
    """Return whether this user has no access to a file, which may not even exist."""
    try:
        with open(path, "rb"):
            return False
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EPERM)


if __name__ == "__main__":
    main()
