"""Ansible module: the runs whose workers have a host, or wait for it."""

import os

from ansible.module_utils import lockstep_claims as claims
from ansible.module_utils import lockstep_tmux_socket as tmux_socket
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: worker_jobs
short_description: Runs whose workers have this host, or wait for their turn on it
description: >-
  Reads the claims below the worker's directory whose tmux sessions exist, or will exist again after a restart of the host. Changes nothing.
options:
  root: {type: path, required: true, description: The worker's own directory.}
"""

RETURN = """
jobs:
  type: list
  returned: always
  description: >-
    Runs by age of their tickets, each with C(run), C(state) (C(queued) or C(running)), its tmux C(session) and C(ticket), which is
    empty for one that runs.
"""


def main():
    module = AnsibleModule()
    tmux_socket.mend()
    root, there = module.params["root"], claims.sessions()
    waiting = [_job(held, "queued", claims.ticket_of(path)) for path, held in _alive(root, claims.QUEUE, there)]
    # A worker that waits for the others of its run has a claim, too.
    queued = {job["run"] for job in waiting}
    running = [_job(held, "running", "") for _, held in _alive(root, claims.CLAIMS, there) if held["run"] not in queued]
    module.exit_json(changed=False, jobs=running + waiting)


def _alive(root, folder, there):
    return [(path, held) for path, held in claims.listed(root, folder) if held["session"] in there or _returns_soon(held)]


def _returns_soon(held):
    """A worker that is started again after a restart of its host, if the host has just restarted: later, nothing will start it."""
    return _up_s() < claims.RETURN_S and claims.returns(held)


def _up_s():
    """Seconds since this host, or the container that it is, began."""
    with open("/proc/uptime", encoding="ascii") as uptime, open("/proc/1/stat", encoding="ascii", errors="replace") as stat:
        # A container's own first process is younger than the machine.
        begun = int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return float(uptime.read().split()[0]) - begun


def _job(held, state, ticket):
    return {"run": held["run"], "state": state, "session": held["session"], "ticket": ticket}


if __name__ == "__main__":
    main()
