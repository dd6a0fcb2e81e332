"""Fetch what the workers of an elastic run wrote as chiefs, when all have ended: first what the last chief did, then what others did."""

from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from control.remote.follow import HostUnreachable
from control.remote.worker_access import Worker
from control.runs.results.generations import Generations
from control.runs.results.run_folder import RunFolder
from plugins.shared.base_action import Action


class ActionModule(Action):
    """Nothing in other runs. A host that can't be reached is only warned of: the run is over."""

    def act(
        self, run: str, host: str, hosts: list[str], workers: int, session: str, run_folder: str, folder: str, local: str, former: bool
    ) -> dict[str, Any]:
        """With `former`, what a host wrote that is not the last chief; else what the last chief wrote."""
        into = Path(local)
        if not (RunFolder(into).is_elastic and RunFolder(into).is_users):
            return {}
        # Every watcher has noted its worker's last generation by now.
        is_chief = Generations.of_run(run).chief(hosts, int(workers)) == host
        if is_chief == bool(former):
            return {}
        worker = Worker(self, run_folder, folder, session)
        try:
            fetched = self._of_former(worker, into) if former else worker.collect(into)
        except (HostUnreachable, OSError) as error:
            Display().warning(f"{host}: what it wrote could not be collected: {error}")
            return {}
        return {"changed": bool(fetched)}

    def _of_former(self, worker: Worker, into: Path) -> list[str]:
        """Snapshots of epochs that the last chief's history has and this machine lacks; event files that are new."""
        kept = RunFolder(into).missing_snapshots
        return [
            *worker.collect(into, "checkpoints", wanted=kept.__contains__),
            *worker.collect(into, "logs", wanted=lambda name: not (into / name).exists()),
        ]
