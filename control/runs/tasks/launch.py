"""The launch of a run: judge the hosts' run directories, write `config.yml` and `cluster.json`; it ends once all workers run, or none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from control.common import project
from control.common.plan import Plan
from control.common.task import Task
from control.remote.published import Published
from control.remote.worker_access import clear_marks
from control.runs.hosts.inventory_hosts import tf_config, thread_share, worker_seconds
from control.runs.launch import launches, recent_check, reservations, resumption
from control.runs.results.run_folder import RunFolder
from trainer.common.errors import LockstepError
from trainer.common.plain_values import from_plain
from trainer.rundir.launch_record import LaunchRecord


def record(task: Task) -> dict[str, Any]:
    """Check the launch and write both files; write nothing if the run is under way or with `--check`.

    Returns the facts `cluster` (the record's hosts), `state_to_give` (by host) and `launch`.
    """
    plan, claims = task.plan, task.arguments["claims"]
    if task.check_mode:
        # With `--check`, workers that a launch would have ended are still running.
        settled = task.arguments["settled"]
        _check_claims(plan, {name: claim | {"running": claim["running"] and name not in settled} for name, claim in claims.items()})
        return {"show_last": f"{plan.run}: would be launched; with --check nothing was started or written"}
    _check_claims(plan, claims)
    folder = plan.folder
    before = LaunchRecord.read(folder)
    under_way = {"run_under_way": plan.run} if RunFolder(folder).is_users else {}
    if all(claim["running"] for claim in claims.values()):
        reservations.release(plan.run)
        return {**under_way, "before_start": None, "ansible_facts": {"cluster": before.posts}}
    found = {name: claim["facts"] | _settings(task, name) for name, claim in claims.items()}
    plan = _with_answers(plan, found, {host.name: host.threads or 0 for host in before.posts})
    # Keep the folder of the run's Slurm jobs; the previous job is not part of this launch.
    shared = {"slurm": {"folder": before.slurm["folder"]}} if before.slurm else {}
    record = launches.record(plan, from_plain(Published, task.arguments["published"]), launch=plan.nonce, **shared)
    launches.write_launch(folder, plan, record)
    clear_marks(project.PRIVATE / "watch" / plan.run)
    chosen, launch = resumption.choose(folder, {host.name: claims[host.name] for host in plan.posts}), launches.begin(plan)
    facts = {"cluster": record.posts, "state_to_give": chosen.give, "launch": launch}
    begun = {} if RunFolder(folder).is_trial else {"launch_begun": launch}
    return {"changed": True, "ansible_facts": facts, "show": "\n".join(chosen.lines), "before_start": None, **begun}


def _settings(task: Task, name: str) -> dict[str, Any]:
    """Settings that a host's supervisor reads: its folder, and the seconds without a heartbeat after which a worker counts as silent."""
    variables = task.task_vars["hostvars"][name]
    return {"root": str(variables["worker_root"]), "silence": worker_seconds(variables, "worker_silence")}


def _check_claims(plan: Plan, claims: dict[str, dict[str, Any]]) -> None:
    """Refuse a launch that would mix with an older run of the same name, or with one that still runs on some hosts.

    Raises:
        LockstepError: the findings by host, and the fix.
    """
    holders = {name: claim["holder"] for name, claim in claims.items() if claim["holder"]}
    # A queued run waits for running ones.
    if lines := [_occupied(name, holder) for name, holder in holders.items() if not (plan.ticket and "run" in holder)]:
        raise LockstepError("\n".join(lines))
    run, running = plan.run, [name for name, claim in claims.items() if claim["running"]]
    if running and len(running) < len(claims):
        raise LockstepError(
            f"run={run} is running on {len(running)} of {len(claims)} hosts ({', '.join(running)}); "
            f"stop it first: ansible-playbook stop.yml -e run={run}"
        )
    mine = LaunchRecord.read(plan.folder).id
    if others := [name for name in running if claims[name]["identity"] != mine]:
        raise LockstepError(
            f"run={run}: another run of that name trains on {', '.join(others)}, launched elsewhere; nothing was changed. "
            f"Fix: choose another run name, or stop that one: ansible-playbook stop.yml -e run={run}"
        )
    launches.refuse_changes(plan, running)
    old = [name for name, claim in claims.items() if claim["newest_state"] or claim["newest_memory"] or claim["damaged"]]
    if old and not plan.resume and not running:
        raise LockstepError(
            f"{', '.join(old)}: the training state of an older run={run} is in {plan.run_kind}/{run} under worker_root, "
            f"but this machine has no record of it. Fix: choose another run name, or delete it there: "
            f"ansible-playbook playbooks/delete_run.yml -e run={run}"
        )


def _occupied(name: str, holder: dict[str, Any]) -> str:
    """Text on the process that holds a worker's port, and the way to free the port."""
    kind = "port, which its parameter server's follows," if holder["kind"] == "server_port" else holder["kind"]
    port, other = holder["number"], f"or set another worker_{kind} in the inventory"
    if "run" in holder:
        stop = f"ansible-playbook stop.yml -e run={holder['run']}"
        later = "wait for it (-e queue=true does)"
        return f"run {holder['run']} is training on {name} (port {port}). Fix: {later}, stop it ({stop}), {other}"
    return f"port {port} on {name} is held by {holder['process'] or 'another program'}. Fix: end that program, {other}"


def _with_answers(plan: Plan, answers: dict[str, Any], before: dict[str, int]) -> Plan:
    """The plan, its hosts with what they answered, by rank.

    A resumed run keeps each host's number of threads (`before`): another number would round sums differently. A spare gets its cluster
    from its supervisor when it takes a place.
    """
    posts = []
    for rank, host in enumerate(plan.posts):
        threads = before.get(host.name) or thread_share(plan.posts, host.name, answers[host.name]["cores"])
        place = tf_config(plan.hosts, rank) if rank < len(plan.hosts) else {}
        posts.append(replace(host, **answers[host.name], rank=rank, threads=threads, tf_config=place))
    return plan.with_posts(posts)


def end(task: Task) -> dict[str, Any]:
    """End the launch: after `started`, say that training goes on without this command; else report workers that could not be ended.

    Called once, on the control node, after all hosts were requested to start or end their worker.
    """
    launch = task.arguments["launch"]
    if task.arguments["started"]:
        return _started(launch)
    recent_check.keep_if(False)
    left = [f"{name} ({why})" for name, ended in task.arguments["ended"].items() if (why := _trouble(ended))]
    if left:
        where = f"its workers could not be ended on {', '.join(left)}"
        task.warn([f"run {launch['run']}: a launch was interrupted, and {where}; the next train.yml tries again"])
        return {}
    launches.end(launch)
    taken_back = not all(ended.get("skipped") for ended in task.arguments["ended"].values())
    if taken_back:
        launches.forget_start(launch)
    message = f"run {launch['run']}: an interrupted launch was taken back; none of its workers is left"
    return {**({"show": message} if taken_back else {}), "launch_begun": None}


def _started(launch: dict[str, Any]) -> dict[str, Any]:
    # The command that starts the doctor's trial also takes it back.
    if not RunFolder(Path(launch["folder"])).is_users:
        return {}
    launches.end(launch)
    reservations.release(launch["run"])
    return {"launch_begun": None, "run_under_way": launch["run"]}


def _trouble(ended: dict[str, Any]) -> str:
    """Reason why a worker may still run; empty if it does not."""
    if not ended or ended.get("unreachable"):
        return "unreachable"
    return str(ended.get("msg")) if ended.get("failed") else ""
