"""Submit a run to Slurm from its submit host, show its progress, fetch its results."""

import json
import re
import secrets
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from control.common import text
from control.common.plan import Plan
from control.common.progress_line import Line
from control.remote import log_lines, modules, worker_files
from control.remote.follow import HostUnreachable
from control.remote.published import Published
from control.remote.worker_access import Worker
from control.remote.worker_files import read_records
from control.runs.launch import launches, reservations
from control.runs.results import outcome
from control.runs.results.outcome import Verdict
from control.runs.results.summary import Summary
from control.runs.show.progress import Progress
from plugins.shared.base_action import Action
from trainer.common.errors import DONE, FAILED, PREEMPTED, LockstepError
from trainer.common.plain_values import from_plain
from trainer.common.safe_text import printable
from trainer.data.spec import noun
from trainer.launch.slurm import RUN
from trainer.rundir.launch_record import LaunchRecord
from trainer.rundir.layout import part_of, snapshots_policy
from trainer.rundir.metrics_log import METRICS, WORKER_LOG

POLL_S = 3.0
WAITING = ("PENDING", "CONFIGURING", "SUSPENDED", "REQUEUED", "RESIZING")


class ActionModule(Action):
    """Returns `verdicts`, one per node, from which `conclude_run` derives the outcome; none if detached."""

    def act(self, plan: dict[str, Any], published: dict[str, Any], job: str, name: str, script: str, detach: bool) -> dict[str, Any]:
        """Submit, unless the run is already in the queue or ended unwatched; follow; collect."""
        self.plan, self.job, self.name = from_plain(Plan, plan), job, name
        self.local = self.plan.folder
        self.line = Line()
        try:
            self._refuse_train()
            record = LaunchRecord.read(self.local)
            number, new = self._queued(record), False
            if number and record:
                self._refuse_others()
                launches.refuse_changes(self.plan, [f"job {number}"])
            elif not number and (ended := self._later(record) or launches.uncollected_job(record)):
                if ended != record.slurm["job"]:
                    self._record(published, ended)
                verdicts = self._collect(ended)
                if not self._goes_on(verdicts):
                    return {"verdicts": [verdict.to_dict() for verdict in verdicts]}
                self.line.print(f"job {ended} has ended and its results are collected; the run continues")
            if not number:
                number, new = self._submit(script), True
            if number != LaunchRecord.read(self.local).slurm.get("job"):
                self._record(published, number)
            reservations.release(self.plan.run)
            if detach:
                return {"changed": new, "verdicts": [], "show_last": f"{self.plan.run} is job {number}\n{self._commands(number)}"}
            self._follow(number, "is submitted" if new else "is in the queue already")
            return {"changed": new, "verdicts": [verdict.to_dict() for verdict in self._collect(number)]}
        except HostUnreachable as error:
            raise AnsibleActionFail(f"the submit host can't be reached: {error}. The job continues without it") from None
        finally:
            self.line.end()

    def _queued(self, record: LaunchRecord) -> str:
        # If Slurm was removed, a job's files in its folder are still fetched.
        gone = "command -v squeue > /dev/null || exit 0; " if launches.uncollected_job(record) else ""
        numbers = self._shell(f"{gone}squeue --me --noheader --name {shlex.quote(self.name)} --format %i", "squeue")
        return next((number for number in numbers.split() if number.isdecimal()), "")

    def _later(self, record: LaunchRecord) -> str:
        """The last finished job that the user submitted by hand after the recorded one; empty for none."""
        recorded_job = record.slurm.get("job")
        if not recorded_job:
            return ""
        jobs = self._shell(f'grep -hoE \'"job": *"[0-9]+"\' {shlex.quote(self.job)}/workers/*/exit.json 2>/dev/null; true', "grep")
        return later(jobs, recorded_job)

    def _submit(self, script: str) -> str:
        self._refuse_others()
        identity = LaunchRecord.read(self.local).id or secrets.token_hex(8)
        record = {"id": identity, "workers": len(self.plan.hosts), "kept": self.plan.kept}
        files = [
            {"path": f"{self.job}/{RUN}", "content": json.dumps(record)},
            {"path": f"{self.job}/config.yml", "content": self.plan.config_yaml},
            {"path": f"{self.job}/train.sbatch", "content": script, "mode": "0750"},
        ]
        modules.require(self, "worker_files", {"files": files})
        # Files of an earlier job of the run: its nodes may have been others.
        self._shell(f"rm -f {shlex.quote(self.job)}/workers/*/exit.json {shlex.quote(self.job)}/workers/*/metrics.jsonl", "rm")
        number = self._shell(f"sbatch --parsable {shlex.quote(self.job)}/train.sbatch", "sbatch").strip().partition(";")[0]
        if not number.isdecimal():
            raise AnsibleActionFail(f"sbatch answers {printable(number, 200)!r}, which is no number of a job; see squeue --me")
        return number

    def _identity(self) -> str:
        """Identity of the run whose jobs share that folder; empty before the first."""
        written = self._shell(f"cat {shlex.quote(self.job)}/{RUN} 2>/dev/null; true", "cat")
        return str(worker_files.answer(written, RUN).get("id", "")) if written else ""

    def _refuse_train(self) -> None:
        record = LaunchRecord.read(self.local)
        if record and "job" not in record.slurm:
            raise AnsibleActionFail(
                f"run={self.plan.run}: it was last trained by train.yml, and its state is on that run's hosts; continue it with "
                f"ansible-playbook train.yml -e run={self.plan.run}, or give a new run name"
            )

    def _refuse_others(self) -> None:
        """Refuse a folder, or a job, of another run with the same name."""
        record = LaunchRecord.read(self.local)
        trained = self._shell(f"ls -d {shlex.quote(self.job)}/workers {shlex.quote(self.job)}/state 2>/dev/null; true", "ls")
        # A run of a version without run identities is known by its job.
        unnamed = bool(record) and not record.id
        if trained and not unnamed and (not record or self._identity() != record.id):
            raise AnsibleActionFail(
                f"run={self.plan.run}: {self.job} holds the results of an older run of that name, but this machine has no record of "
                "it. Fix: choose another run name, or remove that folder"
            )

    def _goes_on(self, verdicts: list[Verdict]) -> bool:
        """Return whether a job that ended well, or was preempted, left something to train."""
        well = all(verdict.exit_code in (DONE, PREEMPTED) for verdict in verdicts)
        return well and (Summary.read(self.local).steps or 0) < self.plan.counts["total_steps"]

    def _record(self, published: dict[str, Any], number: str) -> None:
        # Hosts of the inventory, for later commands: the job's own may be others, with as many threads as Slurm grants.
        hosts = [replace(host, rank=rank, threads=0) for rank, host in enumerate(self.plan.hosts)]
        job = {"job": number, "folder": self.job}
        plan = replace(self.plan, hosts=hosts)
        launches.write_launch(self.local, plan, launches.record(plan, from_plain(Published, published), id=self._identity(), slurm=job))

    def _follow(self, number: str, how: str) -> None:
        called, asked = noun(self.plan.dataset.get("spec")), snapshots_policy(self.local)[1]
        progress, chief = Progress(self.line, self.plan.counts, called=called, asked=asked), None
        self.line.print(f"job {number} {how}; its log: {self.job}/slurm-{number}.log")
        while True:
            state, nodes = self._state(number)
            if not state:
                return
            if state in WAITING or not nodes:
                self.line.update(f"job {number}: {printable(state.lower(), 40)}")
            else:
                chief = chief or Worker(self, self.job, f"{self.job}/workers/{self._first(nodes)}", "-")
                for record in chief.poll().records:
                    progress.show(str(chief.host), record)
            time.sleep(POLL_S)

    def _state(self, number: str) -> tuple[str, str]:
        """State and nodes; an empty state once the job is no longer in Slurm's queue."""
        script = f"squeue --noheader --job {number} --format '%T %N'"
        completed = self._low_level_execute_command(script, sudoable=False, executable="/bin/bash")
        if completed["rc"] != 0:
            # A controller that does not answer does not mean that the job ended.
            return ("", "") if "Invalid job id" in completed["stderr"] + completed["stdout"] else ("UNKNOWN: Slurm does not answer", "")
        fields = completed["stdout"].split()
        return (fields[0], fields[1] if len(fields) > 1 else "") if fields else ("", "")

    def _first(self, nodes: str) -> str:
        return self._shell(f"scontrol show hostnames {shlex.quote(nodes)}", "scontrol").split()[0]

    def _collect(self, number: str) -> list[Verdict]:
        """Fetch the nodes' results, and a verdict for each."""
        Worker(self, self.job, self.job, "-").collect(self.local)
        reported = ends(self.local, number)
        verdicts = [self._verdict(ended) for ended in reported]
        if is_short(reported, len(LaunchRecord.read(self.local).hosts)):
            verdicts.append(self._lost(number))
        launches.mark_collected(self.local)
        return verdicts

    def _verdict(self, ended: dict[str, Any]) -> Verdict:
        code = ended["exit_code"]
        log = part_of(self.local, ended["host"]) / WORKER_LOG
        written = log.read_text(encoding="utf-8", errors="replace").split("\n") if code and log.is_file() else []
        lines = log_lines.readable_lines(log_lines.of_last_launch(written))[-20:]
        phase, step = worker_files.doing(read_records(log.with_name(METRICS)), "-", 0)
        state, at = outcome.of_exit_code(code), ended["ended_at"]
        return Verdict(ended["host"], ended["rank"], state, phase, step, at, exit_code=code, last_lines=lines or None)

    def _lost(self, number: str) -> Verdict:
        """Verdict if Slurm ended the job before its workers could report how they ended."""
        log = self._shell(f"tail -n 20 {shlex.quote(self.job)}/slurm-{number}.log 2>/dev/null; true", "tail").split("\n")
        reason = self._shell(
            f"scontrol show job {number} 2>/dev/null | grep -o 'JobState=[A-Z_]*\\|Reason=[A-Za-z_]*' | tr '\\n' ' '; true", "scontrol"
        )
        message = f"job {number} ended before all of its workers reported how they ended: {reason.strip() or 'Slurm no longer knows it'}"
        return Verdict(
            f"job {number}",
            "-",
            "gone",
            phase="-",
            at=time.time(),
            exit_code=FAILED,
            message=message,
            last_lines=log_lines.readable_lines(log),
        )

    def _commands(self, number: str) -> str:
        return text.next_commands(
            [
                ("watch", f"ansible-playbook playbooks/slurm.yml -e run={self.plan.run}"),
                ("queue", f"squeue --job {number}"),
                ("stop, keeping the state", f"scancel --signal=TERM {number}"),
            ]
        )

    def _shell(self, script: str, program: str) -> str:
        completed = self._low_level_execute_command(script, sudoable=False, executable="/bin/bash")
        if completed["rc"] == 127:
            raise AnsibleActionFail(
                f"{program} is missing: the inventory's first host must be one from which jobs are submitted (slurm-client)"
            )
        if completed["rc"] != 0:
            output = completed["stderr"].strip() or completed["stdout"].strip()
            raise AnsibleActionFail(f"{script.split(' /', maxsplit=1)[0]} failed: {output}")
        return str(completed["stdout"])


def later(jobs: str, recorded_job: str) -> str:
    """The highest job number in lines of `exit.json` files, if above the known one."""
    last = max((int(number) for number in re.findall(r"\b\d{1,18}\b", jobs)), default=0)
    return str(last) if last > int(recorded_job) else ""


def is_short(reported: list[dict[str, Any]], planned: int) -> bool:
    """Return whether some of a job's workers reported no end; a job submitted by hand may have other workers than planned."""
    return len(reported) < max((ended["nodes"] for ended in reported if "nodes" in ended), default=planned)


def ends(run: Path, job: str) -> list[dict[str, Any]]:
    """How the workers of a job, or of a later one, ended, by rank; files of earlier jobs of the run have another number.

    A later job is one submitted by hand: the playbook removes what its own job left before the next.
    """
    every = [ended for path in (run / "workers").glob("*/exit.json") if (ended := _end(path))]
    if every:
        latest = max(every, key=lambda ended: ended["ended_at"]).get("job", "")
        job = latest if latest.isdecimal() and int(latest) > int(job) else job
    return sorted((ended for ended in every if ended.get("job") == job), key=lambda ended: ended["rank"])


def _end(path: Path) -> dict[str, Any]:
    """How the worker that owns this folder ended; empty, as if there were no file, for an invalid one."""
    try:
        return {"rank": 0, **worker_files.end(path.read_text(encoding="utf-8", errors="replace")), "host": path.parent.name}
    except LockstepError:
        return {}
