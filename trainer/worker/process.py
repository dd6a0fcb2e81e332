"""The worker process: from a run directory on this node to an exit code of `trainer.common.errors`."""

import faulthandler
import gc
import os
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trainer.common.errors import DIVERGED, FAILED, RESTART, Diverged, LockstepError, PeerLost
from trainer.common.files import full, read_secret, shortage
from trainer.config import loading, schedule
from trainer.data.manifest import Published, await_published
from trainer.data.open_examples import open_examples
from trainer.engine.job import Job
from trainer.host.fork_server import import_modules
from trainer.host.process import STACKS
from trainer.network.peer_watch import STOPPED_ANSWERING, PeerWatch
from trainer.parameter_server.roles import EVALUATOR, SERVER, WORKER, Task
from trainer.rundir.full_disk import FIX, Log, Reserve
from trainer.rundir.launch_record import LaunchRecord
from trainer.rundir.layout import SERVER_LOG, output_of, part_of
from trainer.rundir.metrics_log import METRICS, Metrics
from trainer.rundir.phases import Phase
from trainer.worker import backend
from trainer.worker.loop import Trainer
from trainer.worker.watchdog import Watchdog

PEER_ERRORS = ("UnavailableError", "DeadlineExceededError", "AbortedError", "CancelledError")


@dataclass(frozen=True)
class Launch:
    """Options of `python -m trainer train`, which launch a worker."""

    run: Path
    host: str
    """The host's name in the inventory."""
    published: Published
    caches: Path
    threads: int
    gpus: int
    direct_port: int
    """For this and the next two fields see `trainer.network.cluster.Cluster`."""
    start_deadline: float
    """Seconds that the other workers may take to start."""
    weights: Path | None = None
    generation: int = 1
    """Number of the start of all workers in one launch: a worker of another generation is kept out."""
    elapsed: float = 0.0
    """Seconds since the launch."""
    server: int | None = None
    """Index of the parameter server beside this process; None if there is none."""

    @property
    def own(self) -> Path:
        """This worker's part of the run directory."""
        return part_of(self.run, self.host)


def main(launch: Launch) -> int:
    """Train as one worker of the cluster that TF_CONFIG describes."""
    faulthandler.register(STACKS, all_threads=True)
    # Importing and tracing create only long-lived objects: see `load_tensorflow`.
    gc.disable()
    sys.stdout, sys.stderr = Log(sys.stdout), Log(sys.stderr)
    reserve = Reserve(launch.own / ".part-reserve")
    metrics = Metrics(launch.own / METRICS, reserve)
    metrics.phase(Phase.STARTING)
    watchdog = Watchdog(metrics, launch.start_deadline, FAILED if launch.generation <= 1 else RESTART)
    watchdog.start()
    try:
        task = Task.from_environment()
        if task is not None and launch.server is not None:
            task.start_server(launch.server, launch.threads, launch.own / SERVER_LOG)
        if task is not None and task.role in (WORKER, SERVER):
            metrics.phase(Phase.JOINING)
            task.serve(launch.threads, lambda: metrics.phase(Phase.SERVING))
        if launch.generation > 1:
            metrics.phase(Phase.AWAITING_FOLDER)
            await_published(launch.published, launch.start_deadline)
        if task is not None and task.role == EVALUATOR:
            _evaluate(launch, metrics, task)
        return _train(launch, metrics, watchdog, task)
    except Diverged as error:
        print(f"error: {error}", file=sys.stderr)
        return DIVERGED
    except PeerLost as error:
        print(f"error: {error}; this worker ends so that all can start again", file=sys.stderr)
        return RESTART
    except LockstepError as error:
        reserve.release()
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except Exception as error:
        reserve.release()
        return _unforeseen(error, launch.run)
    finally:
        reserve.release()
        sys.stdout.flush()
        sys.stderr.flush()


def _evaluate(launch: Launch, metrics: Metrics, task: Task) -> NoReturn:
    """Evaluate the chief's snapshots until this process is ended from outside."""
    from trainer.evaluation.evaluate import Test
    from trainer.network.cluster import set_threads
    from trainer.parameter_server.evaluator import follow

    set_threads(launch.threads)
    test = Test.of_run(launch.run, launch.published, launch.caches, metrics)
    follow(task, test, launch.own, read_secret(launch.own), metrics)


def _unforeseen(error: Exception, run: Path) -> int:
    """Report the error that ended this worker; return its exit code."""
    if full(error):
        print(f"error: {shortage(Path(getattr(error, 'filename', None) or run), error)}. {FIX}", file=sys.stderr)
        return FAILED
    traceback.print_exception(error)
    if _is_a_peers(error):
        print("error: another worker was lost; this one ends so that all can start again", file=sys.stderr)
        return RESTART
    return FAILED


def _is_a_peers(error: Exception) -> bool:
    """Return whether a TensorFlow error comes from the loss of another process, or from data lost on the way to it.

    On five hosts, the chief of a run with parameter servers once got `INTERNAL: Unable to parse request` for an intact request.
    """
    sent = type(error).__name__ == "InternalError" and "Additional GRPC error information" in str(error)
    return sent or type(error).__name__ in PEER_ERRORS


def _train(launch: Launch, metrics: Metrics, watchdog: Watchdog, task: Task | None = None) -> int:
    started = time.monotonic()
    run, own = launch.run, launch.own
    config = loading.build(loading.load(run / "config.yml"))
    metrics.phase(Phase.CACHING)
    manifest, examples = open_examples(launch.published, launch.caches, config.data, metrics.caching)
    metrics.phase(Phase.JOINING)
    # TensorFlow runs from here on; anything that forks or does not need TensorFlow comes earlier.
    cluster = backend.join(task, launch.threads, launch.gpus, launch.direct_port)
    member = cluster.member
    cluster.check_generation(launch.generation)
    watchdog.catch_signals()

    def lost(rank: int) -> None:
        message = f"rank {rank} ({member.hosts[rank]}) {STOPPED_ANSWERING}"
        watchdog.end(RESTART, f"error: {message}; this worker ends so that all can start again")

    watch = PeerWatch([rank for rank in range(member.workers) if rank != member.rank], backend.ask, lost)
    watch.start()
    launched = LaunchRecord.read(run).counts.get("workers")
    workers = member.workers if task is None else launched or member.workers
    counts = schedule.counts(config, workers, manifest.count("train"), manifest.held_out, launched)
    stop_asked, room_asked, elapsed = watchdog.stop_asked.is_set, watchdog.room_asked.is_set, launch.elapsed
    job = Job(config, counts, run, manifest, examples["train"], metrics, stop_asked, own, started, elapsed, launch.weights, room_asked)
    if config.train.callbacks:
        _enter_output(launch, member.is_chief)
    try:
        code = Trainer(job, cluster).run()
    except Exception as error:
        # TensorFlow replaces an exception raised inside a step with one of its own.
        if cluster.direct is not None and cluster.direct.lost is not None and backend.is_error(error):
            raise cluster.direct.lost from None
        raise
    watchdog.ignore_signals()
    watch.stop()
    return code


def _enter_output(launch: Launch, is_chief: bool) -> None:
    """Enter the folder in which files that callbacks write under relative names are collected; the chief's files are the run's."""
    folder = output_of(launch.run.absolute(), launch.host, is_chief)
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    os.environ["LOCKSTEP_OUTPUT"] = str(folder)


def quiet_tensorflow() -> None:
    """Keep TensorFlow's start-up chatter out of worker.log; errors stay."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def load_tensorflow() -> None:
    """Import TensorFlow ahead of the modules that need it, without its start-up chatter."""
    quiet_tensorflow()
    import_modules(backend.LIBRARIES)
