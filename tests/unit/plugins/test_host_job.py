"""Programs of ours that run on one host: which end is a good one, and hosts that have nothing to do."""

from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleActionFail

from plugins.action.predict_part import ActionModule as PredictPart
from plugins.shared.host_job import HostJob, Job
from trainer.common.errors import DONE, FAILED

JOB = Job("the prediction", "pi2", "s", "/runs/r/predict", "/runs/r")


@pytest.mark.parametrize("ended", [None, {"exit_code": FAILED}, {"exit_code": DONE}])
def test_only_what_ended_well_is_fetched(ended, monkeypatch):
    monkeypatch.setattr("plugins.shared.host_job.Worker", lambda *_: SimpleNamespace(last_lines=lambda: ["no memory"]))
    job, done = HostJob.__new__(HostJob), []
    monkeypatch.setattr(job, "run_session", lambda *_: SimpleNamespace(exit=ended), raising=False)
    monkeypatch.setattr(job, "_remove", lambda _: done.append("removed"))
    fetched = ["removed", "sent", "fetched", "removed"]

    def run():
        job.run_job(JOB, lambda: done.append("sent"), str, lambda _: done.append("fetched"))

    if ended == {"exit_code": DONE}:
        run()
        assert done == fetched
    else:
        with pytest.raises(AnsibleActionFail, match=r"(?s)pi2: the prediction failed, .*no memory"):
            run()
        assert done == [step for step in fetched if step != "fetched"]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_host_without_rows_predicts_nothing(rank):
    planned = {"rows": [5, 0], "folder": "/nowhere"}
    assert PredictPart.__new__(PredictPart).act(planned, "pi9", rank, "s", "/nowhere") == {"changed": False}
