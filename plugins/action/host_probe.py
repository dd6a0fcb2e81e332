"""The module `host_probe`, sent lean; records this machine's clock around it, from which the host's skew follows."""

import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from control.remote import lean


class ActionModule(ActionBase):
    """See `plugins/modules/host_probe.py`."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the probe between two readings of the clock."""
        before = time.time()
        try:
            result = lean.run(self, task_vars)
        except AnsibleActionFail as error:
            # A host whose Python does not answer is also a finding: judged like one that SSH does not reach.
            return {"unreachable": True, "msg": str(error)}
        if "facts" in result:
            result["facts"] |= {"before": before, "after": time.time()}
        return result
