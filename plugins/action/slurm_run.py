"""Submit a run to Slurm from its submit host, show how far it is, fetch what it made."""

import json
import re
import secrets
import shlex
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from plugins.shared import control, launches, lean
from plugins.shared.remote import Gone, Worker
from trainer.analysis import outcome, text
from trainer.analysis.progress import Estimate, Line
from trainer.errors import DONE, FAILED, PREEMPTED
from trainer.files import read_json
from trainer.rundir import recorded
from trainer.slurm import RUN

POLL_S = 3.0
WAITING = ("PENDING", "CONFIGURING", "SUSPENDED", "REQUEUED", "RESIZING")


class ActionModule(ActionBase):
    """Returns `verdicts`, one a node, from which `conclude_run` tells the outcome; none when detached."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Submit, unless the run is in the queue already, or ended while nobody looked; follow; collect."""
        result = super().run(tmp, task_vars)
        arguments = self._task.args
        self.plan, self.job, self.name = arguments["plan"], arguments["job"], arguments["name"]
        self.local, self.vars = Path(self.plan["folder"]), task_vars or {}
        self.line = Line(Display(), control.terminal())
        try:
            self._refuse_train()
            number, new = self._queued(), False
            if number and recorded(self.local):
                self._refuse_others()
            elif not number and (ended := launches.untold(recorded(self.local)) or self._later()):
                if ended != recorded(self.local)["slurm"]["job"]:
                    self._record(arguments["published"], ended)
                verdicts = self._collect(ended)
                if not self._goes_on(verdicts):
                    return {**result, "verdicts": verdicts}
                self.line.print(f"job {ended} has ended, and its results are here; the run goes on")
            if not number:
                number, new = self._submit(arguments), True
            result["changed"] = new
            if number != recorded(self.local).get("slurm", {}).get("job"):
                self._record(arguments["published"], number)
            if arguments["detach"]:
                return {**result, "verdicts": [], "show_last": f"{self.plan['run']} is job {number}\n{self._commands(number)}"}
            self._follow(number, "is submitted" if new else "is in the queue already")
            return {**result, "verdicts": self._collect(number)}
        except Gone as error:
            raise AnsibleActionFail(f"the submit host can't be reached: {error}. The job goes on without it") from None
        finally:
            self.line.end()

    def _queued(self) -> str:
        # Where Slurm was taken away, what a job left in its folder is fetched all the same.
        gone = "command -v squeue > /dev/null || exit 0; " if launches.untold(recorded(self.local)) else ""
        found = self._shell(f"{gone}squeue --me --noheader --name {shlex.quote(self.name)} --format %i", "squeue")
        return found.split()[0] if found.split() else ""

    def _later(self) -> str:
        """The last job that a person submitted by hand after the one that is recorded, and that has ended; empty for none."""
        known = recorded(self.local).get("slurm", {}).get("job", "")
        if not known:
            return ""
        return later(
            self._shell(f'grep -hoE \'"job": *"[0-9]+"\' {shlex.quote(self.job)}/workers/*/exit.json 2>/dev/null; true', "grep"), known
        )

    def _submit(self, arguments: dict[str, Any]) -> str:
        self._refuse_others()
        identity = recorded(self.local).get("id") or secrets.token_hex(8)
        files = [
            {"path": f"{self.job}/{RUN}", "content": json.dumps({"id": identity, "workers": len(self.plan["hosts"])})},
            {"path": f"{self.job}/config.yml", "content": self.plan["config_yaml"]},
            {"path": f"{self.job}/train.sbatch", "content": arguments["script"], "mode": "0755"},
        ]
        written = lean.execute(self, "worker_files", {"files": files}, self.vars)
        if written.get("failed"):
            raise AnsibleActionFail(written["msg"])
        # What an earlier job of the run left: its nodes may have been others.
        self._shell(f"rm -f {shlex.quote(self.job)}/workers/*/exit.json {shlex.quote(self.job)}/workers/*/metrics.jsonl", "rm")
        return self._shell(f"sbatch --parsable {shlex.quote(self.job)}/train.sbatch", "sbatch").strip().partition(";")[0]

    def _identity(self) -> str:
        """Of the run whose jobs share that folder; empty before the first."""
        written = self._shell(f"cat {shlex.quote(self.job)}/{RUN} 2>/dev/null; true", "cat")
        return str(json.loads(written)["id"]) if written else ""

    def _refuse_train(self) -> None:
        known = recorded(self.local)
        if known and "job" not in known.get("slurm", {}):
            raise AnsibleActionFail(
                f"run={self.plan['run']}: it was last trained by train.yml, and its state lies on that run's hosts; continue it with "
                f"ansible-playbook train.yml -e run={self.plan['run']}, or give a new run name"
            )

    def _refuse_others(self) -> None:
        """Refuse a folder, or a job, of another run of that name."""
        known = recorded(self.local)
        trained = self._shell(f"ls -d {shlex.quote(self.job)}/workers {shlex.quote(self.job)}/state 2>/dev/null; true", "ls")
        # A run of a version that gave runs no identity is known by its job.
        unnamed = "id" not in known and bool(known)
        if trained and not unnamed and self._identity() != known.get("id"):
            raise AnsibleActionFail(
                f"run={self.plan['run']}: what jobs of an older run of that name left lies in {self.job}, and this machine knows nothing "
                "of it; choose another run name, or remove that folder"
            )

    def _goes_on(self, verdicts: list[dict[str, Any]]) -> bool:
        """Whether a job that ended well, or was told to end, left something to train."""
        well = all(verdict["exit_code"] in (DONE, PREEMPTED) for verdict in verdicts)
        return well and (control.read_summary(self.local).get("steps") or 0) < self.plan["counts"]["total_steps"]

    def _record(self, published: dict[str, Any], number: str) -> None:
        # Hosts of the inventory, for the commands that come after: the job's own may be others, with as many threads as Slurm grants.
        hosts = [{"rank": rank, **host, "threads": 0} for rank, host in enumerate(self.plan["hosts"])]
        job = {"job": number, "folder": self.job}
        launches.write(self.local, self.plan, launches.record(self.plan, published, hosts, id=self._identity(), slurm=job))

    def _follow(self, number: str, how: str) -> None:
        estimate, epoch, chief = Estimate(self.plan["counts"]), None, None
        self.line.print(f"job {number} {how}; its log: {self.job}/slurm-{number}.log")
        while True:
            state, nodes = self._state(number)
            if not state:
                return
            if state in WAITING or not nodes:
                self.line.update(f"job {number}: {state.lower()}")
            else:
                chief = chief or Worker(self, self.job, f"{self.job}/workers/{self._first(nodes)}", "-")
                epoch = self._show(chief, estimate, epoch)
            time.sleep(POLL_S)

    def _state(self, number: str) -> tuple[str, str]:
        """State and nodes; an empty state once Slurm no longer has the job in its queue."""
        done = self._low_level_execute_command(f"squeue --noheader --job {number} --format '%T %N'", sudoable=False, executable="/bin/bash")
        if done["rc"] != 0:
            # A controller that does not answer is no job that ended.
            return ("", "") if "Invalid job id" in done["stderr"] + done["stdout"] else ("UNKNOWN: Slurm does not answer", "")
        said = done["stdout"].split()
        return (said[0], said[1] if len(said) > 1 else "") if said else ("", "")

    def _first(self, nodes: str) -> str:
        return self._shell(f"scontrol show hostnames {shlex.quote(nodes)}", "scontrol").split()[0]

    def _show(self, chief: Worker, estimate: Estimate, epoch: dict[str, Any] | None) -> dict[str, Any] | None:
        for record in chief.look().records:
            if record["kind"] == "phase" and record["phase"] != "training":
                self.line.update(f"{record['phase']} {record['note']}".rstrip())
            elif record["kind"] == "reduction":
                self.line.print(f"Gradients are sent {record['why']}.")
            elif record["kind"] == "steps":
                left = estimate.left(record["step"], record["images_per_s"])
                self.line.update(text.progress(record, self.plan["counts"], epoch, left))
            elif record["kind"] == "epoch":
                epoch = record
                estimate.epoch(record["t"], record["epoch"])
                left = estimate.left(record["epoch"] * self.plan["counts"]["steps_per_epoch"], record["images_per_s"])
                self.line.print(text.epoch_line(record, self.plan["counts"], left))
        return epoch

    def _collect(self, number: str) -> list[dict[str, Any]]:
        """What the nodes gave back, and a verdict for each."""
        Worker(self, self.job, self.job, "-").collect(self.local)
        found = ends(self.local, number)
        verdicts = [self._verdict(ended) for ended in found]
        if is_short(found, len(recorded(self.local)["hosts"])):
            verdicts.append(self._lost(number))
        launches.tell(self.local)
        return verdicts

    def _verdict(self, ended: dict[str, Any]) -> dict[str, Any]:
        code = ended["exit_code"]
        log = self.local / "workers" / ended["host"] / "worker.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:] if code and log.is_file() else []
        known = {"host": ended["host"], "rank": ended["rank"], "phase": "-", "at": ended["ended_at"], "exit_code": code}
        return {**known, "state": outcome.of_exit_code(code), **({"last_lines": lines} if lines else {})}

    def _lost(self, number: str) -> dict[str, Any]:
        """Slurm ended the job before its workers could say how they ended."""
        log = self._shell(f"tail -n 20 {shlex.quote(self.job)}/slurm-{number}.log 2>/dev/null; true", "tail").splitlines()
        told = self._shell(
            f"scontrol show job {number} 2>/dev/null | grep -o 'JobState=[A-Z_]*\\|Reason=[A-Za-z_]*' | tr '\\n' ' '; true", "scontrol"
        )
        message = f"job {number} ended without a word of all its workers: {told.strip() or 'Slurm no longer knows it'}"
        known = {"host": f"job {number}", "rank": "-", "state": "gone", "phase": "-", "at": time.time(), "exit_code": FAILED}
        return {**known, "message": message, "last_lines": log}

    def _commands(self, number: str) -> str:
        return text.next_commands(
            [
                ("watch", f"ansible-playbook playbooks/slurm.yml -e run={self.plan['run']}"),
                ("queue", f"squeue --job {number}"),
                ("stop, keeping the state", f"scancel --signal=TERM {number}"),
            ]
        )

    def _shell(self, script: str, program: str) -> str:
        done = self._low_level_execute_command(script, sudoable=False, executable="/bin/bash")
        if done["rc"] == 127:
            raise AnsibleActionFail(
                f"{program} is not there: the inventory's first host must be one from which jobs are submitted (slurm-client)"
            )
        if done["rc"] != 0:
            raise AnsibleActionFail(f"{script.split(' /', maxsplit=1)[0]} failed: {done['stderr'].strip() or done['stdout'].strip()}")
        return str(done["stdout"])


def later(said: str, known: str) -> str:
    """The highest number of a job in lines of `exit.json` files, if it is above the known one's."""
    last = max((int(number) for number in re.findall(r"\d+", said)), default=0)
    return str(last) if last > int(known) else ""


def is_short(found: list[dict[str, Any]], planned: int) -> bool:
    """Whether some of a job's workers did not say how they ended; one that a person submitted may have had others than planned."""
    return len(found) < max((ended["nodes"] for ended in found if "nodes" in ended), default=planned)


def ends(run: Path, job: str) -> list[dict[str, Any]]:
    """How the workers of a job, or of a later one, ended, by rank; what earlier jobs of the run left has another number.

    A later one is one that a person submitted by hand: what a job of the playbook has left is taken away before the next.
    """
    found = [read_json(path) for path in (run / "workers").glob("*/exit.json")]
    if found:
        latest = max(found, key=lambda ended: ended["ended_at"]).get("job", "")
        job = latest if latest.isdecimal() and int(latest) > int(job) else job
    return sorted((ended for ended in found if ended.get("job") == job), key=lambda ended: ended["rank"])
