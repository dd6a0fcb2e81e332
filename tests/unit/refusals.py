"""The message of a refusal."""

import pytest

from trainer.common.errors import ConfigError, LockstepError


def refusal(function, *arguments, kind=LockstepError, **options):
    """The message with which a call is refused."""
    with pytest.raises(kind) as caught:
        function(*arguments, **options)
    return str(caught.value)


def refusal_of_typed(function, *arguments, **options):
    """The message of a ConfigError: a person typed or wrote what is refused."""
    return refusal(function, *arguments, kind=ConfigError, **options)
