"""Wait until SSH answers on every node of the lab, with the inventory's key and known hosts, and show the lab; or what its removal left."""

import shlex
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from control.common import project, text
from control.common.task import Task
from control.lab import lab_inventory
from trainer.common.errors import LockstepError

ATTEMPT_S = 5
PAUSE_S = 0.3


def ready(task: Task) -> dict[str, Any]:
    """Fails if a node does not answer before `deadline` (seconds)."""
    plan, user, deadline = task.arguments["lab"], str(task.arguments["user"]), float(task.arguments["deadline"])
    until = time.monotonic() + deadline
    with ThreadPoolExecutor(len(plan["nodes"])) as pool:
        answers = list(pool.map(lambda node: _wait(node, user, Path(plan["inventory"]), until), plan["nodes"]))
    silent = [(node, answer) for node, answer in zip(plan["nodes"], answers, strict=True) if answer]
    if silent:
        node, answer = silent[0]
        names = ", ".join(each["name"] for each, _ in silent)
        raise LockstepError(
            f"no SSH on {names} within {deadline:.0f} s; {node['name']} ({node['address']}): {answer}. "
            f"Look inside: {plan['engine']} logs {node['container']}; {plan['engine']} exec -it {node['container']} bash"
        )
    return {"changed": False, "show_last": _shown(plan)}


def _wait(node: dict[str, Any], user: str, inventory: Path, until: float) -> str:
    """Ask until the node answers; returns the last error if it does not in time, otherwise an empty string."""
    while error := _try(node, user, inventory):
        if time.monotonic() > until:
            return error
        time.sleep(PAUSE_S)
    return ""


def _try(node: dict[str, Any], user: str, inventory: Path) -> str:
    known_hosts = f'UserKnownHostsFile="{inventory / ".ssh" / "known_hosts"}"'
    options = ["BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", f"ConnectTimeout={ATTEMPT_S}", known_hosts]
    argv = ["ssh", "-F", "none", "-i", str(inventory / ".ssh" / "key"), *(part for option in options for part in ("-o", option))]
    argv += [f"{user}@{node['address']}", "true"]
    try:
        completed = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=2 * ATTEMPT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {2 * ATTEMPT_S} s"
    return lab_inventory.telling_line(completed.stderr.splitlines()) if completed.returncode != 0 else ""


def _shown(plan: dict[str, Any]) -> str:
    """The lab as a table, and the next commands."""
    asked, cli, where = plan["settings"], "ansible-playbook", shlex.quote(project.relative(Path(plan["inventory"])))
    limits = (lab_inventory.memory_text(asked["memory"]), asked["link"])
    rows = [(node["name"], node["address"], f"{share:g}", *limits) for node, share in zip(plan["nodes"], asked["cpus"], strict=True)]
    note = ""
    if plan["older"]:
        note = f"\n  {', '.join(plan['older'])}: made from an older image; to make them anew, remove the lab first\n"
    following = [
        ("provision it", f"{cli} -i {where} provision.yml"),
        ("check it", f"{cli} -i {where} doctor.yml"),
        ("train on it", f"{cli} -i {where} train.yml"),
        ("remove it", f"{cli} lab.yml -e state=absent"),
    ]
    header = ("node", "address", "cores", "memory", "link")
    return f"The lab is up\n{text.table(header, rows)}\n{note}\n" + text.next_commands(following)


def removed(task: Task) -> dict[str, Any]:
    """Shows the remaining images, and why they remain."""
    plan = task.arguments["lab"]
    things = [("container", plan["remove"]), ("network", plan["networks"]), ("image", plan["images"])]
    names = [f"{what}{'s' if len(those) > 1 else ''} {', '.join(those)}" for what, those in things if those]
    pairs = [("gone", "; ".join([*names, "inventory/lab", ".lockstep/lab with all that the nodes stored"]))]
    pairs += [("left", line) for line in plan["abandoned"]]
    if plan["kept"] and plan["others"]:
        pairs.append(("kept", f"{', '.join(plan['kept'])}: the lab of {plan['others'][0]} may need it"))
    elif plan["kept"]:
        pairs.append(("kept", f"{', '.join(plan['kept'])}, so that the next lab starts in seconds; -e image=absent removes it, too"))
    there_was = "The lab is removed" if plan["remove"] or plan["networks"] else "There is no lab"
    commands = text.next_commands([("make it again", "ansible-playbook lab.yml")])
    return {"changed": False, "show_last": f"{there_was}\n{text.fields(pairs)}\n\n{commands}"}
