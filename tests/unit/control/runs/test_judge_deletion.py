"""What of Slurm's queue forbids that a run is deleted."""

import pytest

from control.runs.tasks import deletion
from control.task import Task
from trainer.errors import LockstepError


@pytest.mark.parametrize("queued", [{}, {"rc": 0, "stdout": "", "stderr": ""}, {"rc": 2, "msg": "no squeue"}])
def test_without_a_job_it_may_go(queued):
    deletion.judge(Task({"run": "r", "seen": [], "queued": queued}))


@pytest.mark.parametrize(
    ("queued", "message"),
    [
        ({"rc": 0, "stdout": "7\n8\n", "stderr": ""}, "run=r: job 7 8 of Slurm is queued or runs; end it first: scancel 7 8"),
        ({"rc": 1, "stdout": "", "stderr": "no controller"}, "run=r: Slurm does not report whether it has a job: no controller"),
    ],
)
def test_silent_job_and_queue_are_told(queued, message):
    with pytest.raises(LockstepError) as caught:
        deletion.judge(Task({"run": "r", "seen": [], "queued": queued}))
    assert str(caught.value) == message
