"""Phases of a worker, as its records name them."""

SERVING = "serving the chief"
"""The phase of a worker of an asynchronous run."""
LOG = "ps.log"
"""In the host's part of the run directory: what its parameter server writes."""


REJOINING = "waiting for the other workers"
"""The phase of a worker between two generations."""
STANDING_BY = "standing by"
"""The phase of a spare while others train."""
DOWN = "waiting for the host's restart"
"""The phase of a worker whose host goes down."""
TRAINING = ("training", "validating", "saving", SERVING)
"""Phases of a worker that has been together with all others, or need not be."""


ROOM = "ROOM FOR ANOTHER HOST"
"""Note of the phase `ended` of a worker that has done so."""


WAITING = ("starting", "joining", "connecting")
"""Phases in which a worker waits for the others, at most until the start deadline."""


QUEUED = "queued"
"""The phase of a worker that waits for its turn; its note says for what."""
