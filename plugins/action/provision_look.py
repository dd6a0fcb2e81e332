"""Look at a host before any change there: one plain shell script, no Python needed on the host."""

from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from control.provision import provisioning


class ActionModule(ActionBase):
    """Returns the script's `output`, or `unreachable_because`."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Look."""
        result = super().run(tmp, task_vars)
        arguments = self._task.args
        pythons = [arguments["python"]] if arguments.get("python") else provisioning.PYTHONS
        script = provisioning.look_script(arguments["root"], arguments["packages"], pythons, arguments["record"])
        result["wanted"] = arguments["packages"]
        result["password"] = bool(self._play_context.become_pass or (task_vars or {}).get("ansible_become_password"))
        try:
            completed = self._low_level_execute_command("exec sh -s", in_data=script.encode(), sudoable=False, executable="/bin/sh")
        except AnsibleConnectionFailure as error:
            result["unreachable_because"] = str(error).strip()
            return result
        result["output"] = completed["stdout"]
        result["try_sudo"] = result["password"] and "sudo=password" in completed["stdout"].splitlines()
        return result
