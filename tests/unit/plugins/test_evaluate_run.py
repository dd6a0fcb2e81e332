"""The evaluation of a run's snapshots with `--check`."""

from types import SimpleNamespace

import pytest

from plugins.action.evaluate_run import ActionModule


@pytest.mark.parametrize(("asked", "named"), [("4,1-2", "epochs 1-2, 4"), ("last", "epoch 4")])
def test_check_names_the_epochs(asked, named, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for epoch in (1, 2, 4):
        (tmp_path / "checkpoints" / f"epoch-000{epoch}.keras").touch()
    action = ActionModule.__new__(ActionModule)
    action._task = SimpleNamespace(check_mode=True)
    done = action.act({"run": "one", "folder": str(tmp_path)}, {}, asked, "pi1", "one-w0", "/srv/runs/one", "/srv/dfs", "packs")
    assert done == {"changed": True, "show_last": f"one: would evaluate {named} on pi1; with --check nothing was started"}
