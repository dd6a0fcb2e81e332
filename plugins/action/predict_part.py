"""Predict one host's part of new examples there, with progress, and fetch what it gives."""

import shutil
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from control.common import configurations
from control.remote import modules
from control.remote.upload import with_progress
from control.runs.predict import predictions
from plugins.shared.host_job import HostJob, Job
from trainer.evaluation.predict import CONFIG, DATA, MODEL
from trainer.rundir import layout


class ActionModule(HostJob):
    """Writes `predictions.results` on the control node; does nothing on a host that has no rows."""

    def act(self, planned: dict[str, Any], host: str, rank: int, session: str, run_folder: str) -> dict[str, Any]:
        """Send, start, follow, fetch."""
        rows, others = planned["rows"], sum(1 for count in planned["rows"] if count) - 1
        if int(rank) >= len(rows) or not rows[int(rank)]:
            return {"changed": False}
        local, folder = Path(planned["folder"]), f"{run_folder}/{predictions.FOLDER}"
        job = Job("the prediction", host, session, folder, run_folder)
        beside = f" (and {others} more)" if others else ""

        def shown(record: dict[str, Any]) -> str:
            return f"{host}{beside}: {record['phase']} {record['note']}".rstrip()

        into, sizes = predictions.results(local, int(rank)), predictions.sizes(planned, int(rank))
        run = Path(planned["run_folder"])
        snapshot = layout.snapshot_path(run, planned["epoch"])
        script = self.start_script(f"Prediction of {run.name}", folder, ["-m", "trainer", "predict", "--folder", folder])
        files = {"run_worker.sh": (script, "0750"), CONFIG: (configurations.rewritten(run / "config.yml"), "0640")}
        self.run_job(
            job,
            lambda: self._send(host, folder, local / str(rank), snapshot, files),
            shown if int(rank) == 0 else lambda _: "",
            lambda worker: worker.collect(into, predictions.FOLDER, outputs=sizes),
            # With the parts of all hosts: whichever ends last removes what the others still fetched.
            lambda: shutil.rmtree(local, ignore_errors=True),
        )
        return {"changed": False}

    def _send(self, host: str, folder: str, part: Path, snapshot: Path, files: dict[str, tuple[str, str]]) -> None:
        """Send the start script, the configuration, the snapshot and the rows."""
        written = [{"path": f"{folder}/{name}", "content": content, "mode": mode} for name, (content, mode) in files.items()]
        modules.require(self, "worker_files", {"files": written})
        if not snapshot.is_file():
            raise AnsibleActionFail(f"{snapshot} was removed after this command had begun; run it again")
        with_progress(self, "the snapshot", host).file(snapshot, f"{folder}/{MODEL}")
        with_progress(self, "the examples", host).folder(part, f"{folder}/{DATA}")
