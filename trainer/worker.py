"""The worker process: from a run directory on this node to an exit code.

Exit codes: 0 done, 75 a peer was lost (restart me), 42 preempted with the state saved, 3 the loss
diverged, anything else failed.
"""

import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path

import yaml

from trainer import config as configs
from trainer import schedule
from trainer.data.cache import open_images
from trainer.errors import DIVERGED, FAILED, RESTART, Diverged, LockstepError, PeerLost
from trainer.telemetry import Metrics
from trainer.watchdog import Watchdog

PEER_ERRORS = ("UnavailableError", "DeadlineExceededError", "AbortedError", "CancelledError")


def main(run: Path, host: str, packs: Path, caches: Path, threads: int, gpus: int, start_deadline: float) -> int:
    """Train as one worker of the cluster that TF_CONFIG describes.

    Args:
        run: the run directory on this node, with `config.yml`.
        host: this worker's inventory name, for `workers/<host>/`.
        packs: folder of the published dataset.
        caches: folder for packed caches on this node.
        threads: intra-op threads.
        gpus: how many GPUs it trains on; 0: the processor.
        start_deadline: seconds to wait for the other workers.
    """
    # Importing and tracing make nothing but what stays: the collector would walk through it again and again (a sixth of the import).
    gc.disable()
    metrics = Metrics(run / "workers" / host / "metrics.jsonl")
    metrics.phase("starting")
    watchdog = Watchdog(metrics, start_deadline)
    watchdog.start()
    try:
        return _train(run, host, packs, caches, (threads, gpus), metrics, watchdog)
    except Diverged as error:
        print(f"error: {error}", file=sys.stderr)
        return DIVERGED
    except PeerLost as error:
        print(f"error: {error}; this worker ends so that all can start again", file=sys.stderr)
        return RESTART
    except LockstepError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except Exception as error:
        traceback.print_exc()
        if type(error).__name__ in PEER_ERRORS:
            print("error: another worker was lost; this one ends so that all can start again", file=sys.stderr)
            return RESTART
        return FAILED
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _train(run: Path, host: str, packs: Path, caches: Path, share: tuple[int, int], metrics: Metrics, watchdog: Watchdog) -> int:
    started = time.monotonic()
    threads, gpus = share
    config = configs.build(yaml.safe_load((run / "config.yml").read_text(encoding="utf-8")))
    metrics.phase("caching")
    data = config.data

    def progress(done: int, total: int) -> None:
        metrics.phase("caching", f"{done}/{total} images")

    manifest, images = open_images(packs, caches, data.image_size, data.cache_limit_mb, progress, data.loaders)
    metrics.phase("joining")
    # From here on TensorFlow runs; whatever forks or has no need of it comes before.
    import tensorflow as tf

    from trainer.cluster import Cluster, place_from_environment
    from trainer.loop import Job, Trainer

    place = place_from_environment()
    print(
        f"rank {place.rank} of {place.workers}: {json.dumps(place.addresses)}, {threads} threads{f', GPUs: {gpus}' if gpus else ''}",
        flush=True,
    )
    cluster = Cluster(place, threads, gpus=gpus)
    watchdog.catch_signals()
    metrics.phase("building")
    counts = schedule.counts(config, place.workers, len(manifest.train.files), manifest.held_out)
    job = Job(config, counts, run, manifest, images, metrics, watchdog.stop_asked.is_set, run / "workers" / host, started)
    try:
        code = Trainer(job, cluster).run()
    except tf.errors.OpError:
        # TensorFlow tells of an exception inside a step in words of its own.
        if cluster.direct is not None and cluster.direct.lost is not None:
            raise cluster.direct.lost from None
        raise
    watchdog.ignore_signals()
    return code


def quiet_tensorflow() -> None:
    """Keep TensorFlow's start-up chatter out of worker.log; errors stay."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
