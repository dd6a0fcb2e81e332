"""The module `firewall_table`, sent lean."""

from plugins.shared.lean import LeanAction


class ActionModule(LeanAction):
    """See `plugins/modules/firewall_table.py`."""
