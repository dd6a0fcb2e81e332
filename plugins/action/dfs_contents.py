"""The module `dfs_contents`, sent lean."""

from plugins.shared.lean import LeanAction


class ActionModule(LeanAction):
    """See `plugins/modules/dfs_contents.py`."""
