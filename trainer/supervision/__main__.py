"""`python -m trainer.supervision OPTIONS -- WORKER ARGUMENTS`: supervise a worker, `python -m trainer` with these arguments."""

import argparse
import subprocess
import sys
from pathlib import Path

from trainer.claims import session_command
from trainer.clock import CLOCK, Clock
from trainer.errors import FAILED, LockstepError
from trainer.files import keep_others_out, read_secret
from trainer.member import address
from trainer.supervision import asynchronous
from trainer.supervision.child import Patience, Start
from trainer.supervision.policy import Elasticity, Limits
from trainer.supervision.supervisor import Post, Supervisor, say


def main(popen: Start = subprocess.Popen) -> int:
    """Read the command line, and supervise to the end of the run; `popen` starts the workers."""
    line = argparse.ArgumentParser(prog="python -m trainer.supervision", description=__doc__)
    line.add_argument("--folder", type=Path, required=True, help="the worker's part of the run directory; the launch's secret is in it")
    line.add_argument("--rank", type=int, required=True)
    line.add_argument("--hosts", required=True, help="names of all workers, by rank, then of spares")
    line.add_argument("--workers", type=int, required=True, help="how many train; the hosts after them are spares")
    line.add_argument("--peers", required=True, help="address:port of all workers' direct ports, by rank")
    line.add_argument("--endpoints", required=True, help="address:port of all workers' TensorFlow, by rank")
    line.add_argument("--launch", required=True)
    line.add_argument("--session", required=True, help="name of the tmux session")
    for name in ("--max-restarts", "--max-restarts-per-hour"):
        line.add_argument(name, type=int, required=True)
    for name in ("--rejoin-wait", "--silence", "--hang"):
        line.add_argument(name, type=float, required=True)
    line.add_argument("--standby", action="store_true", help="keep a process beside the worker that becomes the next one")
    line.add_argument("--elastic-wait", type=float, help="seconds after which the others go on without a host; default: they do not")
    line.add_argument("--min-workers", type=int, default=1, help="fewest workers that go on without a host")
    line.add_argument("--servers", help="RANK=address:port of the parameter servers of an asynchronous run, with commas")
    line.add_argument("--apart", help="RANK=ps or RANK=evaluator of its hosts that compute no steps, with commas")
    line.add_argument("worker", nargs="+")
    given = line.parse_args()
    keep_others_out()
    return supervise(
        Post(
            given.folder,
            given.rank,
            given.hosts.split(","),
            given.workers,
            given.endpoints.split(","),
            [address(peer) for peer in given.peers.split(",")],
            read_secret(given.folder),
            given.launch,
            [sys.executable, "-m", "trainer"],
            given.worker,
            [sys.executable, "-m", "trainer.standby"] if given.standby else [],
            session_command(given.session, str(given.folder)),
            Limits(given.max_restarts, given.max_restarts_per_hour),
            Patience(given.silence, given.hang),
            given.rejoin_wait,
            None if given.elastic_wait is None else Elasticity(given.elastic_wait, given.min_workers),
            _by_rank(given.servers) or None,
            _by_rank(given.apart),
        ),
        popen=popen,
    )


def _by_rank(listed: str | None) -> dict[int, str]:
    pairs = [one.partition("=") for one in listed.split(",")] if listed else []
    return {int(rank): value for rank, _, value in pairs}


def supervise(post: Post, clock: Clock = CLOCK, popen: Start = subprocess.Popen) -> int:
    """Supervise a worker to the end of the run."""
    try:
        return (Supervisor if post.servers is None else asynchronous.of)(post, clock, popen).run()
    except LockstepError as error:
        say(f"error: {error}")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
