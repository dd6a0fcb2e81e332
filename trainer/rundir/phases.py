"""Phases of a worker, as its records name them."""

from enum import StrEnum

ROOM = "ROOM FOR ANOTHER HOST"
"""Note of the phase `ended` of a worker that has ended to make room."""


class Phase(StrEnum):
    """Activity of a worker, in the words of its records and of messages."""

    QUEUED = "queued"
    """Waits for its turn; the note names what comes before."""
    STARTING = "starting"
    CACHING = "caching"
    AWAITING_FOLDER = "waiting for the shared folder"
    JOINING = "joining"
    CONNECTING = "connecting"
    BUILDING = "building"
    CHOOSING = "choosing how to send gradients"
    MEASURING = "measuring the workers"
    TRACING = "tracing"
    RESTORING = "restoring"
    TRAINING = "training"
    VALIDATING = "validating"
    SAVING = "saving"
    SERVING = "serving the chief"
    """A worker of an asynchronous run."""
    ENDED = "ended"
    REJOINING = "waiting for the other workers"
    """Between two generations."""
    STANDING_BY = "standing by"
    """A spare while others train."""
    DOWN = "waiting for the host's restart"
    BUILDING_MODEL = "building the model"
    EVALUATING = "evaluating"
    PREDICTING = "predicting"
    TIMING = "timing"
    """A benchmark of one host."""


WAITING = (Phase.STARTING, Phase.JOINING, Phase.CONNECTING)
"""A worker waits for the others, at most until the start deadline."""
TOGETHER = (Phase.TRAINING, Phase.VALIDATING, Phase.SAVING, Phase.SERVING)
"""A worker has been together with all others, or need not be."""
ONLY_ONCE = (Phase.CACHING, Phase.CHOOSING)
"""A later run on the same hosts need not have these."""
