"""Ansible module: a command in a tmux session."""

from ansible.module_utils import lockstep_claims as claims
from ansible.module_utils import lockstep_tmux as tmux
from ansible.module_utils import lockstep_tmux_socket as tmux_socket
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: tmux_session
short_description: Run a command in a tmux session that outlives the control node
description:
  - Starts a command in a detached tmux session, or ends a session and only its processes.
  - A session lives as long as its command. The tmux server's socket name is C(lockstep).
options:
  name: {type: str, required: true, description: "Name of the session, matched exactly."}
  argv: {type: list, elements: str, description: The command and its arguments; needed to start.}
  chdir: {type: path, default: /, description: Working directory of the command.}
  state: {type: str, choices: [present, absent], default: present, description: Whether the session should exist.}
  grace: {type: float, default: 10, description: Seconds between SIGTERM and SIGKILL when a session is ended.}
  mark: {type: path, description: Empty file to make before a session is ended; it says that a user asked for that.}
"""

RETURN = """
ended: {type: str, returned: state=absent, description: How the session ended; C(absent) if there was none.}
"""


def main():
    module = AnsibleModule(required_if=[("state", "present", ["argv"])])
    tmux_socket.mend()
    wanted, name = module.params["state"] == "present", module.params["name"]
    session = tmux.Session(module, name)
    running = session.exists()
    if wanted == running or module.check_mode:
        if not module.check_mode:
            tmux.mark(module.params["mark"] or "")
        module.exit_json(changed=wanted != running, ended="absent")
    if wanted:
        command = claims.session_command(name, module.params["chdir"], module.params["argv"])
        if error := claims.start_session(command, module.run_command):
            module.fail_json(msg=f"tmux could not start session {name}: {error}")
        module.exit_json(changed=True)
    if module.params["mark"]:
        with open(module.params["mark"], "w", encoding="utf-8"):
            pass
    module.exit_json(changed=True, ended=session.end(module.params["grace"]))


if __name__ == "__main__":
    main()
