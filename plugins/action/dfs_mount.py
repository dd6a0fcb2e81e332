"""The module `dfs_mount`, sent lean."""

from plugins.shared.lean import LeanAction


class ActionModule(LeanAction):
    """See `plugins/modules/dfs_mount.py`."""
