"""The message of a refusal."""

import pytest

from trainer.common.errors import ConfigError, LockstepError


def refusal(function, *arguments, kind=LockstepError, **options):
    """What a call is refused with."""
    with pytest.raises(kind) as caught:
        function(*arguments, **options)
    return str(caught.value)


def refusal_of_typed(function, *arguments, **options):
    """The same, where what a person typed or wrote is to blame."""
    return refusal(function, *arguments, kind=ConfigError, **options)
