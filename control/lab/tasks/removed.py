"""Report what the removal of the lab left on this machine."""

from typing import Any

from control import text
from control.task import Task


class Removed(Task):
    """Shows the remaining images, and why they remain."""

    def act(self) -> dict[str, Any]:
        """Show."""
        return {"changed": False, "show_last": removed(self.arguments["lab"])}


def removed(made: dict[str, Any]) -> str:
    """What is gone, what remains, and how to make the lab again."""
    pairs = [("gone", "its containers and network, inventory/lab, .lockstep/lab with all that the nodes stored")]
    if made["kept"] and made["others"]:
        pairs.append(("kept", f"{', '.join(made['kept'])}: the lab of {made['others'][0]} may need it"))
    elif made["kept"]:
        pairs.append(("kept", f"{', '.join(made['kept'])}, so that the next lab starts in seconds; -e image=absent removes it, too"))
    there_was = "The lab is removed" if made["remove"] or made["networks"] else "There is no lab"
    return f"{there_was}\n{text.fields(pairs)}\n\n" + text.next_commands([("make it again", "ansible-playbook lab.yml")])
