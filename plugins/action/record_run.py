"""Judge the hosts' claims, then write a run's `config.yml` and `cluster.json` on the control node, before training."""

from pathlib import Path
from typing import Any

from plugins.filter.cluster import tf_config, thread_share
from plugins.shared import control, launches
from plugins.shared.remote import clear_marks
from trainer.errors import LockstepError
from trainer.rundir import recorded


class ActionModule(control.ControlAction):
    """Returns the fact `record`, what cluster.json holds, and `record_text`, the file as it is written."""

    def act(self) -> dict[str, Any]:
        """Check, write both files; nothing is written when the run is under way or nothing may be touched."""
        plan, places = self.arguments["plan"], self.arguments["places"]
        if self._task.check_mode:
            # Who would have been ended by now runs still.
            settled = self.arguments["settled"]
            check_places(plan, {name: place | {"running": place["running"] and name not in settled} for name, place in places.items()})
            return {}
        check_places(plan, places)
        before = recorded(Path(plan["folder"]))
        under_way = {"run_under_way": plan["run"]} if plan["place"] == "runs" else {}
        if all(place["running"] for place in places.values()):
            return under_way
        folder = Path(plan["folder"])
        facts = {name: place["facts"] for name, place in places.items()}
        hosts = _hosts(plan["hosts"], facts, {host["name"]: host["threads"] for host in before.get("hosts", [])})
        # What Slurm's jobs of the run left in their folder stays known; the job of before is none of this launch.
        shared = {"slurm": {"folder": before["slurm"]["folder"]}} if "slurm" in before else {}
        record = launches.record(plan, self.arguments["published"], hosts, **shared)
        launches.write(folder, plan, record)
        clear_marks(control.PRIVATE / "watch" / plan["run"])
        found = {"record": record, "record_text": (folder / "cluster.json").read_text(encoding="utf-8")}
        return {"changed": True, "ansible_facts": found, **under_way}


def check_places(plan: dict[str, Any], places: dict[str, dict[str, Any]]) -> None:
    """Refuse a launch that would mix with an older run of that name, or with one that runs on some hosts.

    Raises:
        LockstepError: what was found where, and what to do.
    """
    run, running = plan["run"], [name for name, place in places.items() if place["running"]]
    if running and len(running) < len(places):
        raise LockstepError(
            f"run={run} is running on {len(running)} of {len(places)} hosts ({', '.join(running)}); "
            f"stop it first: ansible-playbook stop.yml -e run={run}"
        )
    old = [name for name, place in places.items() if place["newest_state"] or place["newest_memory"]]
    if old and not plan["resume"] and not running:
        raise LockstepError(
            f"{', '.join(old)}: the training state of an older run={run} lies in {plan['place']}/{run} under worker_root, "
            "and this machine knows nothing of it; choose another run name, or remove that folder."
        )


def _hosts(cluster: list[dict[str, Any]], facts: dict[str, Any], before: dict[str, int]) -> list[dict[str, Any]]:
    """By rank, with facts; a resumed run keeps each host's threads: another number would round sums differently."""
    hosts = []
    for rank, host in enumerate(cluster):
        name = host["name"]
        threads = before.get(name) or thread_share(cluster, name, facts[name]["cores"])
        hosts.append({"rank": rank, **host, "threads": threads, "tf_config": tf_config(cluster, name), **facts[name]})
    return hosts
