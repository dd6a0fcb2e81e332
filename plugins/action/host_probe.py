"""The module `host_probe`, sent lean; records this machine's clock around it, from which the host's skew follows."""

import time
from typing import Any

from ansible.errors import AnsibleActionFail

from control.remote import modules
from plugins.shared.base_action import Action


class ActionModule(Action):
    """See `plugins/modules/host_probe.py`."""

    def act(self, **arguments: Any) -> dict[str, Any]:
        """Run the probe between two readings of the clock."""
        before = time.time()
        try:
            result = modules.execute(self, "host_probe", arguments, bool(self._task.check_mode))
        except AnsibleActionFail as error:
            # A host whose Python does not answer is also a finding: judged like one that SSH does not reach.
            return {"unreachable": True, "msg": str(error)}
        if "facts" in result:
            result["facts"] |= {"before": before, "after": time.time()}
        return result
