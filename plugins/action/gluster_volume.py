"""The module `gluster_volume`, sent lean."""

from plugins.shared.lean import LeanAction


class ActionModule(LeanAction):
    """See `plugins/modules/gluster_volume.py`."""
