"""Report what the removal of the lab left on this machine."""

from typing import Any

from control import text
from control.task import Task


def removed(task: Task) -> dict[str, Any]:
    """Shows the remaining images, and why they remain."""
    plan = task.arguments["lab"]
    pairs = [("gone", "its containers and network, inventory/lab, .lockstep/lab with all that the nodes stored")]
    if plan["kept"] and plan["others"]:
        pairs.append(("kept", f"{', '.join(plan['kept'])}: the lab of {plan['others'][0]} may need it"))
    elif plan["kept"]:
        pairs.append(("kept", f"{', '.join(plan['kept'])}, so that the next lab starts in seconds; -e image=absent removes it, too"))
    there_was = "The lab is removed" if plan["remove"] or plan["networks"] else "There is no lab"
    commands = text.next_commands([("make it again", "ansible-playbook lab.yml")])
    return {"changed": False, "show_last": f"{there_was}\n{text.fields(pairs)}\n\n{commands}"}
