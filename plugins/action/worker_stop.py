"""The module `worker_stop`, sent lean."""

from plugins.shared.lean import LeanAction


class ActionModule(LeanAction):
    """See `plugins/modules/worker_stop.py`."""
