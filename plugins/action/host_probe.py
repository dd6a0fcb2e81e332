"""The module `host_probe`, sent lean; notes this machine's clock around it, from which the host's skew follows."""

import time
from typing import Any

from ansible.errors import AnsibleActionFail

from plugins.shared.lean import LeanAction


class ActionModule(LeanAction):
    """See `plugins/modules/host_probe.py`."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Look between two looks at the clock."""
        before = time.time()
        try:
            result = super().run(tmp, task_vars)
        except AnsibleActionFail as error:
            # A host whose Python gives no answer is a finding, too: judged like one that SSH does not reach.
            return {"unreachable": True, "msg": str(error)}
        if "facts" in result:
            result["facts"] |= {"before": before, "after": time.time()}
        return result
