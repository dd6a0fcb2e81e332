"""Look at a host before any change there: one plain shell script, no Python needed on the host."""

from typing import Any

from ansible.errors import AnsibleConnectionFailure

from control.provision import findings
from plugins.shared.base_action import Action


class ActionModule(Action):
    """Returns the script's `output`, or `unreachable_because`."""

    def act(self, root: str, packages: list[str], record: str, python: str = "") -> dict[str, Any]:
        """Look."""
        script = findings.look_script(root, packages, [python] if python else findings.PYTHONS, record)
        password = bool(self._play_context.become_pass or self.task_vars.get("ansible_become_password"))
        result = {"wanted": packages, "password": password}
        try:
            completed = self._low_level_execute_command("exec sh -s", in_data=script.encode(), sudoable=False, executable="/bin/sh")
        except AnsibleConnectionFailure as error:
            return {**result, "unreachable_because": str(error).strip()}
        try_sudo = password and "sudo=password" in completed["stdout"].splitlines()
        return {**result, "output": completed["stdout"], "try_sudo": try_sudo}
