"""Queued runs: what is refused."""


def test_a_command_that_returns_can_not_evaluate(project, pictures):
    refused = project.play("train", "queue=true", "evaluate=true", "config=task_cnn", f"dataset={pictures}", check=False)
    assert refused.returncode != 0
    assert "evaluate=true, queue=true: the command returns once the run is queued. Fix: -e detach=false" in refused.stdout
