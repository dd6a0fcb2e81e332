"""The worker process: what its end means."""

from pathlib import Path

import pytest

from trainer.common.errors import FAILED, RESTART
from trainer.data.manifest import Published
from trainer.worker.process import Launch, _enter_output, _unforeseen

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


@pytest.mark.parametrize(("chief", "folder"), [(True, "run/output"), (False, "run/workers/node1/output")])
def test_files_of_callbacks_lie_in_output(tmp_path, monkeypatch, chief, folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_OUTPUT", "")
    _enter_output(Launch(Path("run"), "node1", Published(tmp_path, ""), tmp_path, 1, 0, 0, 1.0), chief)
    Path("log.csv").write_text("epoch")
    assert (tmp_path / folder / "log.csv").is_file()
