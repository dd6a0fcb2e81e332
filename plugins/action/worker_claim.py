"""The module `worker_claim`, sent lean."""

from plugins.shared.lean import LeanAction


class ActionModule(LeanAction):
    """See `plugins/modules/worker_claim.py`."""
