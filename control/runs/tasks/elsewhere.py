"""Show, stop and delete the hosts' parts of a run without a record here, because it was launched elsewhere or deleted here."""

from typing import Any

from control.common import project, text
from control.common.task import Task
from control.runs.launch.waiting_runs import Jobs
from control.runs.results.run_names import no_such_run
from trainer.common.errors import LockstepError

COMMANDS = ("status", "stop", "playbooks/delete_run")


def look(task: Task) -> dict[str, Any]:
    """Judge the hosts' reports of their `jobs`, by host; called once, on the control node.

    Raises:
        LockstepError: no host has the run, or a deletion is requested while it is under way.
    """
    run, command = task.arguments["run"], task.arguments["command"]
    jobs = Jobs.of({host: one["jobs"] for host, one in task.arguments["jobs"].items() if "jobs" in one})
    away = [host for host in task.arguments["jobs"] if host not in jobs.hosts]
    where = {host: job for host, listed in jobs.by_host.items() for job in listed if job["run"] == run}
    if command == "playbooks/delete_run":
        if where:
            raise LockstepError(f"run={run} is under way on {', '.join(where)}; stop it first: ansible-playbook stop.yml -e run={run}")
        if away:
            raise LockstepError(f"run={run}: {', '.join(away)} can't be reached, and may hold a part of it; nothing was deleted")
        return {}
    if not where:
        missing = f"; {', '.join(away)} can't be reached" if away else ""
        raise LockstepError(f"{no_such_run(project.RUNS, run)}. No worker of it is alive on the inventory's hosts{missing}")
    if command == "stop":
        return {}
    rows = [[host, where[host]["state"] if host in where else "-" if host in jobs.hosts else "unreachable"] for host in jobs.by_host]
    stop = ("stop it", f"ansible-playbook stop.yml -e run={run}")
    shown = [f"{run}: {jobs.states[run]}, launched elsewhere: this machine has no record of it", text.table(["host", "worker"], rows)]
    return {"show_last": "\n\n".join([*shown, text.next_commands([stop])])}


def conclude(task: Task) -> dict[str, Any]:
    """Report the stopped or deleted parts, from the result of each host's task (`done`); called once, on the control node.

    Raises:
        LockstepError: it failed on a host, or there was nothing to delete.
    """
    run, command, done = task.arguments["run"], task.arguments["command"], task.arguments["done"]
    failed = [f"{host} ({str(one.get('msg', 'no answer')).strip()})" for host, one in done.items() if _failed(one)]
    changed = [host for host, one in done.items() if one.get("changed")]
    if failed:
        raise LockstepError(
            f"run={run}: not on {', '.join(failed)}. Fix: the same command again, once {'it is' if len(failed) == 1 else 'they are'} back"
        )
    if command == "stop":
        delete = ("delete what they hold", f"ansible-playbook playbooks/delete_run.yml -e run={run}")
        lines = [
            f"{run}: stopped on {', '.join(changed)}; its states and results are there, in runs/{run} under worker_root.",
            f"Collect them where it was launched: ansible-playbook stop.yml -e run={run}",
        ]
        return {"show_last": "\n".join([*lines, text.next_commands([delete])])}
    if not changed and not task.check_mode:
        raise LockstepError(f"{no_such_run(project.RUNS, run)}. No host holds a part of it")
    return {"show_last": f"{run}: {'would be deleted' if task.check_mode else 'deleted'} from {', '.join(changed) or 'no host'}"}


def _failed(answer: dict[str, Any]) -> bool:
    return not answer or bool(answer.get("failed") or answer.get("unreachable"))
