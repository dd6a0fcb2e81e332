"""Memory and disk space that a run needs on a host."""

import math

from control.common import configurations
from trainer.config.schema import Config

RUNTIME_MB = 900
"""Memory of a worker besides its model, MB: Python, TensorFlow, its threads (resident size with the small models, x86_64)."""
SERVER_MB = 400
"""Memory of a parameter server, MB, without the libraries shared with the worker beside it (670 MB resident, 345 of them shared)."""
LOGS_MB = 512
FIRST_EPOCHS = 10
"""Number of snapshots that must fit before a run may start; it may end before its last epoch."""


def needs(
    config: Config, images: int, epochs: int, size: dict[str, int], resumes: bool = False, columns_bytes: int | None = None
) -> dict[str, float]:
    """Needs of a run on a host, MB: memory of a worker and of a parameter server beside it, and disk space.

    Disk is for the cache of decoded images, training states and the first, or all, snapshots.
    `free_mb` must be free at the start: a resumed run already has most of its files. There are `snapshots` of `snapshot_mb` each.
    Columns (`columns_bytes`, None for images) are copied whatever their size.
    """
    cache = images * math.prod(config.data.image_size) / 2**20
    snapshot = size["total"] * 4 / 2**20
    slots = configurations.OPTIMIZERS[config.optimizer.name]
    states = snapshot * (1 + slots) * (config.checkpoint.keep + 1)
    copied = columns_bytes / 2**20 if columns_bytes is not None else cache if cache <= config.data.cache_limit_mb else 0
    start = LOGS_MB + copied + states
    kept = _most_kept(config.checkpoint.snapshots, epochs)
    first = math.ceil(start + snapshot * min(kept, FIRST_EPOCHS))
    # Weights, optimizer arrays, gradients, the packed copy to send and the received one; the copy of a state that is being written.
    return {
        "memory_mb": math.ceil(RUNTIME_MB + (5 + 2 * slots) * snapshot),
        # Weights and optimizer arrays, and gradients that are on their way.
        "server_mb": math.ceil(SERVER_MB + (3 + slots) * snapshot),
        "disk_mb": first,
        "disk_whole_mb": math.ceil(start + snapshot * kept),
        "free_mb": LOGS_MB if resumes else first,
        "states_mb": round(states, 1),
        "snapshots": kept,
        "snapshot_mb": round(snapshot, 1),
    }


def _most_kept(policy: str | int, epochs: int) -> int:
    """The most snapshots that exist at once in a run of `epochs` epochs, including the one being written."""
    return min(epochs, {"all": epochs}.get(policy, 2) if isinstance(policy, str) else epochs // policy + 2)
