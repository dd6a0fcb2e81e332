"""Write a run's `config.yml` and `cluster.json` on the control node, before training."""

import datetime
import subprocess
from typing import Any

from plugins.filter.cluster import tf_config, thread_share
from plugins.shared import control
from plugins.shared.remote import clear_marks
from trainer.files import read_json, write_json, write_text


class ActionModule(control.ControlAction):
    """Returns the fact `record`: what cluster.json holds."""

    def act(self) -> dict[str, Any]:
        """Write both files."""
        plan, facts = self.arguments["plan"], self.arguments["facts"]
        folder = control.RUNS / plan["run"]
        record = _record(plan, self.arguments["published"], facts, _threads_before(folder))
        write_json(folder / "cluster.json", record)
        write_text(folder / "config.yml", plan["config_yaml"])
        clear_marks(control.PRIVATE / "watch" / plan["run"])
        return {"changed": True, "ansible_facts": {"record": record}, "run_under_way": plan["run"]}


def _record(plan: dict[str, Any], published: dict[str, Any], facts: dict[str, Any], before: dict[str, int]) -> dict[str, Any]:
    cluster = plan["hosts"]
    hosts = []
    for rank, host in enumerate(cluster):
        name = host["name"]
        threads = before.get(name) or thread_share(cluster, name, facts[name]["cores"])
        hosts.append({"rank": rank, **host, "threads": threads, "tf_config": tf_config(cluster, name), **facts[name]})
    return {
        "run": plan["run"],
        "created_at": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "revision": _revision(),
        "dataset": {**plan["dataset"], "digest": published["digest"], "folder_name": published["name"]},
        "code": published["code_name"],
        "counts": plan["counts"],
        "parameters": plan["parameters"],
        "hosts": hosts,
    }


def _threads_before(folder: Any) -> dict[str, int]:
    """A resumed run keeps each host's threads: another number would round sums differently."""
    path = folder / "cluster.json"
    return {host["name"]: host["threads"] for host in read_json(path)["hosts"]} if path.is_file() else {}


def _revision() -> str | None:
    """The project's git revision, `+` when there are uncommitted changes; None outside git."""
    argv = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(argv, cwd=control.ROOT, capture_output=True, text=True, check=False, timeout=10)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
