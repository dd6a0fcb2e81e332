"""Ansible module: stop one run's worker gracefully."""

import os

from ansible.module_utils import lockstep_tmux as tmux
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: worker_stop
short_description: Stop one run's worker
description: Asks a worker to save its state and end, and ends only its processes if it does not.
options:
  session: {type: str, required: true, description: tmux session of the worker.}
  folder: {type: path, required: true, description: The worker's folder in the run directory; a marker there says that a user asked.}
  grace: {type: float, default: 120, description: Seconds between SIGTERM and SIGKILL.}
"""

EXAMPLES = """
- name: Stop
  worker_stop: {session: my-run-w0, folder: /home/pi/lockstep/runs/my-run/workers/node01}
"""

RETURN = """
ended: {type: str, returned: always, description: "C(ended) by itself, C(killed), or C(absent) if it was not running."}
"""


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "session": {"type": "str", "required": True},
            "folder": {"type": "path", "required": True},
            "grace": {"type": "float", "default": 120},
        },
        supports_check_mode=True,
    )
    running = tmux.exists(module, module.params["session"])
    if not running or module.check_mode:
        module.exit_json(changed=running, ended="absent")
    with open(os.path.join(module.params["folder"], "stop"), "w", encoding="utf-8"):
        pass
    module.exit_json(changed=True, ended=tmux.end(module, module.params["session"], module.params["grace"]))


if __name__ == "__main__":
    main()
