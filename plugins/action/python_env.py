"""The module `python_env`, sent lean."""

from plugins.shared.lean import LeanAction


class ActionModule(LeanAction):
    """See `plugins/modules/python_env.py`."""
