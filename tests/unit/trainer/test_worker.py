"""The worker process: what its end means."""

import pytest

from trainer.errors import FAILED, RESTART
from trainer.worker import _unforeseen

SENT = "{{function_node __wrapped__Identity}} Unable to parse request\nAdditional GRPC error information from remote target /job:worker:"


class InternalError(Exception):
    """As TensorFlow names it."""


class UnavailableError(Exception):
    """As TensorFlow names it."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnavailableError("failed to connect to all addresses"), RESTART),
        (InternalError(SENT), RESTART),
        (InternalError("Blas GEMM launch failed"), FAILED),
        (ValueError("Additional GRPC error information"), FAILED),
    ],
)
def test_loss_of_another_process_starts_all_again(error, code, tmp_path, capfd):
    assert _unforeseen(error, tmp_path) == code
    assert ("another worker was lost" in capfd.readouterr().err) == (code == RESTART)
