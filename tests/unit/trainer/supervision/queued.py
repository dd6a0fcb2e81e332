"""Two hosts, each with a queue, in which runs have a worker on each of them: folders, claims and the tmux sessions that there are."""

import json
import secrets
from pathlib import Path

from control.remote.worker_files import read_records
from tests.ports import free_ports
from trainer.host import claims
from trainer.rundir.phases import Phase


class Hosts:
    """The hosts; what waits in their queues is a matter of `begin`."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "sessions").touch()
        self.roots = [folder / "one", folder / "two"]
        self.ports, self.direct, self.servers = (free_ports(2) for _ in range(3))
        for root in self.roots:
            for part in (claims.CLAIMS, claims.QUEUE):
                (root / part).mkdir(parents=True)
        self.secrets = {}

    def path(self, run, rank):
        return self.roots[rank] / "runs" / run / "workers" / f"host{rank}"

    def entry(self, run, rank, number):
        return Path(claims.place(str(self.roots[rank]), self.ticket(run, number), self.ports[rank]))

    def claim(self, rank):
        return self.roots[rank] / claims.CLAIMS / f"{self.ports[rank]}.json"

    def session(self, run, rank):
        return claims.session_name(run, rank, str(self.roots[rank]))

    def ticket(self, run, number):
        return f"{number:013d}-{run.encode().hex():0>8}"

    def content(self, run, rank):
        return {"run": run, "launch": "l", "session": self.session(run, rank), "folder": str(self.path(run, rank))}

    def add_session(self, run, rank):
        with (self.folder / "sessions").open("a") as stream:
            stream.write(f"{self.session(run, rank)}\n")

    def end_session(self, run, rank):
        path = self.folder / "sessions"
        path.write_text("".join(line + "\n" for line in path.read_text().split() if line != self.session(run, rank)))

    def queue(self, run, rank, number, begin=True, **others):
        """A worker as `worker_claim` and `run_worker.sh` start it; `number` is its place in time."""
        own = self.path(run, rank)
        own.mkdir(parents=True)
        (own / "secret").write_text(self.secrets.setdefault(run, secrets.token_hex(32)))
        self.entry(run, rank, number).write_text(json.dumps(self.content(run, rank)))
        self.add_session(run, rank)
        return self.begin(run, rank, number, **others) if begin else None

    def place(self, run, rank, number):
        """The arguments of a worker's place."""
        return {
            "root": self.roots[rank],
            "folder": self.path(run, rank),
            "run": run,
            "launch": "l",
            "session": self.session(run, rank),
            "ticket": self.ticket(run, number),
            "rank": rank,
            "port": self.ports[rank],
        }

    def listens(self, rank):
        """All ports of a worker."""
        return [self.ports[rank], self.direct[rank], self.servers[rank]]

    def occupy(self, run, rank):
        """Let a run have a host."""
        self.claim(rank).write_text(json.dumps(self.content(run, rank)))
        self.add_session(run, rank)

    def notes(self, run, rank):
        path = self.path(run, rank) / "metrics.jsonl"
        records = read_records(path) if path.exists() else []
        return [record["note"] for record in records if record["kind"] == "phase" and record["phase"] == Phase.QUEUED]
