"""The module `gluster_server`, sent lean."""

from plugins.shared.lean import LeanAction


class ActionModule(LeanAction):
    """See `plugins/modules/gluster_server.py`."""
