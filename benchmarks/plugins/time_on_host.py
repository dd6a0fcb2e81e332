"""Run a benchmark on one host, and fetch its results."""

import shlex
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from benchmarks.shared.benchmark import CODE
from control.remote import modules, worker_files
from control.remote.shared_folder import Item, SharedFolder
from control.remote.upload import with_progress
from plugins.shared.host_job import HostJob, Job
from trainer.host.claims import path_digest


class ActionModule(HostJob):
    """Returns `timed`: the benchmark's results.json."""

    def act(self, bench: dict[str, Any], host: str, folder: str, code: str, packs: str, script: str) -> dict[str, Any]:
        """Send what is missing, start, follow, fetch."""
        job = Job("the benchmark", host, f"{bench['name']}-{path_digest(folder)}", folder, folder)
        timed = self.run_job(
            job,
            lambda: self._send(bench, host, folder, code, packs, script),
            lambda record: f"{host}: {record['note']}",
            lambda _: worker_files.answer(self.shell(host, f"cat {shlex.quote(folder)}/results.json"), "results.json"),
        )
        return {"changed": False, "timed": timed}

    def _send(self, bench: dict[str, Any], host: str, folder: str, code: str, packs: str, script: str) -> None:
        """Send the trainer, unless it is there, the configuration, the snapshot, the start script."""
        archive = CODE.build(Path(packs).parent / "code")
        if archive.name != bench["code_name"]:
            raise AnsibleActionFail("the project's files were changed after this command had begun; run it again")
        SharedFolder(self, host).agree([Item("the trainer", archive, code, bench["code_sha256"])])
        files = [
            {"path": f"{folder}/config.yml", "content": bench["config_yaml"]},
            {"path": f"{folder}/run_worker.sh", "content": script, "mode": "0750"},
        ]
        modules.require(self, "worker_files", {"files": files})
        if bench["snapshot"]:
            with_progress(self, "the snapshot", host).file(Path(bench["snapshot"]), f"{folder}/model.keras")
