"""Delete runs, except one that is under way or has files on an unreachable host; its folder on the control node is deleted last."""

import fnmatch
import re
import shutil
from typing import Any

from control.common import project, text
from control.common.task import Task
from control.runs.launch import under_way
from control.runs.results.run_names import check_run_name, no_such_run
from control.runs.show import status
from control.runs.show.status import WorkerSeen
from control.runs.tasks import several
from trainer.common.errors import LockstepError

PATTERN = re.compile(r"[A-Za-z0-9._*?-]{1,64}")


def names_several(asked: str) -> bool:
    """Return whether `run=` is a list of names, or of patterns."""
    return any(letter in asked for letter in ",*?")


def _matching(asked: str) -> list[str]:
    """Names of the runs here that match a list such as `old,test-*`, in order.

    Raises:
        LockstepError: a part of the list matches no run, or could leave the folder.
    """
    there, found = project.runs(), dict[str, None]()
    for part in filter(None, (one.strip() for one in asked.split(","))):
        if not PATTERN.fullmatch(part):
            raise LockstepError(f"run={asked}: {part!r} is no name of a run; * and ? stand for any letters, or one")
        names = [name for name in there if fnmatch.fnmatchcase(name, part)]
        if not names:
            raise LockstepError(no_such_run(project.RUNS, part))
        found |= dict.fromkeys(names)
    return list(found)


def delete(asked: str, confirmed: bool) -> dict[str, Any]:
    """Delete each of several runs with a separate command; without `confirmed`, only list them.

    Raises:
        LockstepError: a run that could not be deleted, with the reason; the others are deleted.
    """
    names = _matching(asked)
    if not confirmed:
        again = ("delete them", f"ansible-playbook playbooks/delete_run.yml -e 'run={asked}' -e confirm=true")
        title = f"{text.count(len(names), 'run')} would be deleted; nothing was"
        return {"show_last": "\n".join([title, status.listed(names), "", text.next_commands([again])])}
    if left := several.each("playbooks/delete_run", "playbooks/delete_run", names, "deleting"):
        raise LockstepError("\n".join([f"{len(left)} of {len(names)} runs were not deleted", *left]))
    shown = f"{text.count(len(names), 'run')} deleted: {', '.join(names)}"
    return {"changed": True, "show_last": f"{shown}\n\nNext\n  see what is left  ansible-playbook status.yml"}


def judge(task: Task) -> dict[str, Any]:
    """Judge a deletion once, on the control node, from every host's state (`seen`) and `squeue`'s answer for a Slurm run (`queued`)."""
    name, seen = task.arguments["run"], [WorkerSeen(**look) for look in task.arguments["seen"] if look]
    running = [look.host for look in seen if look.state == "running"]
    if running:
        raise LockstepError(f"run={name} is under way on {', '.join(running)}; stop it first: ansible-playbook stop.yml -e run={name}")
    away = [f"{look.host} ({look.note})" for look in seen if look.state == "unreachable"]
    if away:
        raise LockstepError(
            f"run={name}: {', '.join(away)} can't be reached, and holds a part of it; nothing was deleted. Try again when it can"
        )
    queued = task.arguments["queued"]
    if jobs := " ".join(queued.get("stdout", "").split()):
        raise LockstepError(f"run={name}: job {jobs} of Slurm is queued or runs; end it first: scancel {jobs}")
    # Without Slurm `squeue` can't be started (2), and there is no job.
    if queued.get("rc") == 1:
        raise LockstepError(f"run={name}: Slurm does not report whether it has a job: {queued['stderr']}")
    return {}


def forget(task: Task) -> dict[str, Any]:
    """Remove `runs/<run>`, if it exists, as the last step of a deletion, after the hosts' files are gone."""
    name = str(task.arguments["run"])
    check_run_name(name)
    folder = project.RUNS / name
    exists = folder.is_dir()
    if exists and not task.check_mode:
        shutil.rmtree(folder)
        under_way.forget(folder)
    again = ("delete it", f"ansible-playbook playbooks/delete_run.yml -e run={name}")
    outcome, command = ("would be deleted", again) if task.check_mode else ("deleted", ("see what is left", "ansible-playbook status.yml"))
    return {"changed": exists, "show_last": f"{name}: {outcome}\n\n{text.next_commands([command])}"}
