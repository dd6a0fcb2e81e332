"""`python -m trainer.supervision.queue RUN HOST ARGUMENTS`: wait for the turn of a queued run, then become `python ARGUMENTS`.

There is no daemon: each queued worker waits in its run's tmux session, in a queue of its host (`trainer.host.claims`). The tickets
of a run's workers have the same time, so all hosts agree on the order. A worker whose turn has come claims its port and meets the
other workers of its run there. If a run with an older ticket arrives only then (two control nodes may queue at the same moment), the
worker gives way, so no two runs wait for each other. Once all workers have met, they leave the queue and keep their claims.
"""

import contextlib
import hashlib
import math
import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.common.clock import CLOCK, Clock
from trainer.common.errors import FAILED, PREEMPTED, RESTART, ClusterError
from trainer.common.files import keep_others_out, read_secret, sync, write_json
from trainer.host import claims, ports, tmux_socket
from trainer.host.claims import MARK, SUPERVISED
from trainer.network import handshake
from trainer.rundir.launch_record import LaunchRecord, peers
from trainer.rundir.metrics_log import METRICS, Metrics
from trainer.rundir.phases import Phase
from trainer.supervision import rendezvous
from trainer.supervision.supervisor import HANGUP_S, say

SUPERVISOR = "trainer.supervision"
LOOK_S = 3.0
"""Seconds between two looks at the queue."""
MEET_S = 1.0
"""Seconds between two attempts to reach a worker of the same run, whose host may still belong to another run."""
DOWN_S = 10.0
"""Seconds after SIGTERM within which a host that shuts down ends this process."""
MOMENT_S = 0.2
KILLED = 128 + signal.SIGTERM
"""Exit code after which this process is started again in its session."""
SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


class WaitInterrupt(Exception):
    """Raised when a signal arrives; the argument is its number."""


class OlderRun(Exception):
    """Raised when a run with an older ticket has arrived, which goes first."""


@dataclass(frozen=True)
class Place:
    """A worker's place in the queue of its host."""

    root: Path
    """The host's `worker_root`."""
    folder: Path
    """The worker's part of the run directory."""
    run: str
    launch: str
    """Identity of the launch."""
    session: str
    ticket: str
    rank: int
    hosts: Sequence[str]
    """Names of all workers of the run, by rank."""
    peers: Sequence[tuple[str, int]]
    """Addresses on which the workers listen for each other, by rank."""
    port: int
    """Port of the worker's claim."""
    ports: Sequence[int]
    """All ports on which the worker listens."""

    @classmethod
    def read(cls, run: Path, name: str) -> "Place":
        """The place of a host's worker, from the launch's record in the run directory."""
        record = LaunchRecord.read(run)
        hosts = record.posts
        names = [host.name for host in hosts]
        rank = names.index(name)
        own = hosts[rank]
        return cls(
            root=Path(own.root),
            folder=run / "workers" / name,
            run=record.run,
            launch=record.launch,
            session=claims.session_name(record.run, rank, own.root),
            ticket=record.ticket,
            rank=rank,
            hosts=names,
            peers=peers(hosts),
            port=int(own.port),
            ports=own.ports,
        )

    @property
    def entry(self) -> Path:
        """The worker's claim in the queue."""
        return Path(claims.place(str(self.root), self.ticket, self.port))

    @property
    def claim(self) -> Path:
        """The worker's claim on the port."""
        return self.root / claims.CLAIMS / f"{self.port}.json"

    def content(self) -> dict[str, str]:
        """Content of the claim on the port and of the entry in the queue."""
        return {"run": self.run, "launch": self.launch, "session": self.session, "folder": str(self.folder)}


class Turn:
    """Waits until all workers of a run have their turn; SIGNALS must be blocked."""

    def __init__(self, place: Place, clock: Clock = CLOCK):
        """Take the worker's place."""
        self._clock = clock
        self._place, self._metrics = place, Metrics(place.folder / METRICS)
        self._secret = read_secret(place.folder)
        self._looked_at, self._note = 0.0, ""
        self._gone: dict[str, float] = {}
        """Sessions of claims that may return, with the times since which they are gone, on this process' clock."""

    def wait(self) -> None:
        """Return once all workers of the run may start; WaitInterrupt if a signal comes first."""
        while True:
            try:
                if self._has_turn():
                    return
            except OSError as error:
                self._tell(f"tries again: {error}")
            self._pause(LOOK_S)

    def _has_turn(self) -> bool:
        """Wait for this worker's turn, then for the other workers; return whether all may start, else the wait begins again."""
        place = self._place
        # A kill of this process, or a restart of its host, does not end the wait.
        write_json(place.folder / SUPERVISED, {"session": claims.session_command(place.session, str(place.folder))})
        self._claim()
        try:
            self._meet()
        except (ClusterError, OlderRun):
            # The worker of a run that has just ended may still hold the port, and another one may arrive and give way at the same moment.
            self._release()
            return False
        place.entry.unlink()
        # After a power cut, it must not wait again for runs that train.
        sync(place.entry.parent)
        return True

    def _claim(self) -> None:
        """Claim the port once no other run occupies this host or is ahead in the queue."""
        while True:
            with claims.locked(str(self._place.root)):
                ahead = self._ahead()
                if not ahead:
                    write_json(self._place.claim, self._place.content())
                    return
                # This removes a claim of an earlier process of this worker, for which an older run would wait.
                self._release()
            self._tell(f"behind {ahead}")
            self._pause(LOOK_S)

    def _release(self) -> None:
        """Give up the claim, if it is this worker's."""
        if claims.read_claim(str(self._place.claim)) == self._place.content():
            self._place.claim.unlink()

    def _ahead(self) -> str:
        """Text on the run that is ahead on this host; empty if there is none."""
        tmux_socket.mend()
        place, there = self._place, claims.sessions()
        if place.session not in there:
            # Then it is also unknown which runs are alive.
            return "tmux, which does not list this session"
        if older := self._older(there):
            return f"run {older}, which was queued before"
        held = [claim["run"] for _, claim in claims.listed(str(place.root), claims.CLAIMS) if self._holds(claim, there)]
        if held:
            return f"run {held[0]}"
        taken = next((port for port in place.ports if ports.taken(port)), None)
        return "" if taken is None else f"{ports.holder(taken) or 'another program'}, which holds port {taken}"

    def _older(self, there: Collection[str]) -> str:
        """The first run before this one in the queue; empty if there is none."""
        entries = claims.listed(str(self._place.root), claims.QUEUE)
        return next((one["run"] for path, one in entries if claims.ticket_of(path) < self._place.ticket and one["session"] in there), "")

    def _holds(self, claim: Mapping[str, Any], there: Collection[str]) -> bool:
        """Return whether another run occupies this host: its worker lives, or will return after a restart of the host."""
        session = claim["session"]
        if claim["run"] == self._place.run:
            return False
        if session in there:
            self._gone.pop(session, None)
            return True
        now = self._clock.monotonic()
        return claims.returns(dict(claim)) and now - self._gone.setdefault(session, now) < claims.RETURN_S

    def _meet(self) -> None:
        """Wait until all workers of the run are there."""
        secret = hashlib.sha256(b"turn" + self._secret).digest()
        # On free hosts, all workers arrive within a moment, and nothing was queued.
        self._looked_at = self._clock.monotonic()
        sockets = handshake.assemble(self._place.rank, self._place.peers, secret, math.inf, self._look, MEET_S, self._clock)
        try:
            rendezvous.exchange(sockets, b"", self._clock)
            # The second exchange proves to each worker that all have made the first. If one misses the second, another may have begun.
            with contextlib.suppress(*([rendezvous.ConnectionLoss] if self._leads(sockets) else [])):
                rendezvous.exchange(sockets, b"", self._clock)
        finally:
            for connection in sockets.values():
                connection.close()

    def _leads(self, sockets: Collection[int]) -> bool:
        return all(peer > self._place.rank for peer in sockets)

    def _look(self, there: Collection[int]) -> bool:
        """Check for signals while waiting for the others; raises WaitInterrupt."""
        self._pause(0.0)
        now = self._clock.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            if self._older(claims.sessions()):
                raise OlderRun
            absent = [host for rank, host in enumerate(self._place.hosts) if rank not in there]
            self._tell(f"next; waits for {', '.join(absent)}")
        return False

    def _tell(self, note: str) -> None:
        """Record the awaited event, and that this process is there."""
        if note == self._note:
            with contextlib.suppress(OSError):
                os.utime(self._place.folder / METRICS)
            return
        self._note = note
        self._metrics.phase(Phase.QUEUED, note)
        say(f"queued: {note}")

    def _pause(self, seconds: float) -> None:
        """Wait; WaitInterrupt if a signal comes."""
        if number := self._clock.signal(SIGNALS, seconds):
            raise WaitInterrupt(number)

    def leave(self, number: int) -> int:
        """End after a signal; return the exit code."""
        place = self._place
        if number == signal.SIGINT:
            # Somebody at the session's terminal.
            (place.folder / MARK).touch()
        if self.is_cancelled():
            return self.give_up()
        if number == signal.SIGHUP and self._clock.signal({signal.SIGTERM}, HANGUP_S) is None:
            if self.is_cancelled():
                return self.give_up()
            # Only the tmux server is gone. A new server that is started with blocked signals would pass the blocking on.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            if error := claims.start_session(claims.session_command(place.session, str(place.folder))):
                say(f"error: tmux could not start session {place.session} again: {error}")
            return RESTART
        # The host goes down; the program that starts at its boot finds the file.
        self._metrics.phase(Phase.DOWN)
        alone = number == signal.SIGTERM and self._is_alone()
        if self.is_cancelled():
            return self.give_up()
        return KILLED if alone else PREEMPTED

    def _is_alone(self) -> bool:
        """Return whether only this process received SIGTERM: its session goes on, and no other signal follows. Other hosts wait for it."""
        parent, deadline = os.getppid(), self._clock.monotonic() + DOWN_S
        while self._clock.monotonic() < deadline and os.getppid() == parent:
            if self._clock.signal(SIGNALS, MOMENT_S) is not None:
                return False
        return os.getppid() == parent

    def is_cancelled(self) -> bool:
        """Return whether the end of the run was requested."""
        return (self._place.folder / MARK).exists()

    def give_up(self) -> int:
        """Leave the queue for good; return the exit code."""
        self._release()
        for path in (self._place.entry, self._place.folder / SUPERVISED):
            path.unlink(missing_ok=True)
        self._metrics.phase(Phase.ENDED)
        return PREEMPTED


def main(clock: Clock = CLOCK) -> int:
    """Read the command line, wait, and become the worker."""
    run, host, *arguments = sys.argv[1:]
    place = Place.read(Path(run), host)
    keep_others_out()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    turn = Turn(place, clock)
    if turn.is_cancelled():
        return turn.give_up()
    if place.entry.exists():
        try:
            turn.wait()
        except WaitInterrupt as interrupt:
            return turn.leave(interrupt.args[0])
    elif claims.read_claim(str(place.claim)) != place.content():
        fix = f"Fix: ansible-playbook train.yml -e run={place.run}"
        say(f"error: {place.run} has neither a place in the queue nor port {place.port} any more. {fix}")
        (place.folder / SUPERVISED).unlink(missing_ok=True)
        return FAILED
    if SUPERVISOR not in arguments:
        (place.folder / SUPERVISED).unlink(missing_ok=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    return os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - nothing here is for a shell


if __name__ == "__main__":
    sys.exit(main())
