"""Limit the link of a lab node, or restore the lab's rate."""

import shlex
from typing import Any

from ansible.errors import AnsibleActionFail

from benchmarks.peer_results.peer_trials import NO_LIMIT
from plugins.shared.base_action import Action

OWN = "own"
NODE = "/usr/local/sbin/lockstep-lab"
APPLIED = "/run/lockstep-lab.link"


class ActionModule(Action):
    """Argument: `rate` as `tc` writes it, `none`, or `own` for the lab's own. Leaves the record that the node itself maintains."""

    def act(self, rate: str, host: str) -> dict[str, Any]:
        """Run the node's own script, or its equivalent for another rate."""
        completed = self._low_level_execute_command(NODE if rate == OWN else script(rate), sudoable=True, executable="/bin/sh")
        if completed["rc"] != 0:
            output = completed["stderr"].strip() or completed["stdout"].strip()
            raise AnsibleActionFail(f"{host}: its link can't be set to {rate}: {output}")
        return {"changed": "changed" in completed["stdout"].split()}


def script(rate: str) -> str:
    """Set a rate unless it is set; the same limits as in the lab's own script."""
    limit = (
        "tc qdisc del dev eth0 root" if rate == NO_LIMIT else f"tc qdisc replace dev eth0 root tbf rate {rate} burst 256kb latency 100ms"
    )
    text = f'[ "$(cat {APPLIED} 2>/dev/null || echo {NO_LIMIT})" = {rate} ] || {{ {limit} && echo {rate} > {APPLIED} && echo changed; }}'
    return f"sh -c {shlex.quote(text)}"
