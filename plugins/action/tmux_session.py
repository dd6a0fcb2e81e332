"""The module `tmux_session`, sent lean."""

from plugins.shared.lean import LeanAction


class ActionModule(LeanAction):
    """See `plugins/modules/tmux_session.py`."""
