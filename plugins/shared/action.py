"""Common to all actions."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ansible.errors import AnsibleActionFail, AnsibleFilterError

from control.project import ROOT
from trainer.errors import LockstepError
from trainer.files import full, shortage
from trainer.saving import FIX


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turn a refusal by us or by a filter into a failed task with only its message."""
    try:
        yield
    except (LockstepError, AnsibleFilterError) as error:
        raise AnsibleActionFail(str(error)) from None
    except OSError as error:
        if not full(error):
            raise
        raise AnsibleActionFail(f"{shortage(Path(error.filename or ROOT), error)} on this machine. {FIX}") from None
