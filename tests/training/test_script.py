"""Scripts of the user's own that train with TensorFlow: one line for Keras, and TensorFlow's tutorial as it is."""

import numpy as np

from tests import preloaded
from tests.project import EXHAUSTIVE, ROOT

SCRIPTS = ROOT / "tests" / "scripts"


def test_one_line_makes_fit_that_of_all_workers(project, tmp_path):
    given = ("args=0.01", "run=distributed", "outputs=none", "preflight=false")
    done = project.play("train", f"script={SCRIPTS}/distributed.py", *given).stdout
    assert done.count("Epoch 4/4") == 1
    environment = {**preloaded.ONE_THREAD, "PYTHONPATH": str(ROOT / "trainer" / "keras_fit" / "site")}
    preloaded.printed(("-c", (SCRIPTS / "distributed.py").read_text(), "0.01"), tmp_path, environment)
    alone = np.load(tmp_path / "result.npz")
    for where in ("output", "workers/worker2/output"):
        result = np.load(project.run("distributed") / where / "result.npz")
        for key in alone.files:
            np.testing.assert_allclose(result[key], alone[key], rtol=1e-4, atol=1e-6, err_msg=key)
    assert (project.run("distributed") / "output" / "best.keras").is_file()
    assert (project.run("distributed") / "output" / "log.csv").is_file()
    others = {path.name for path in (project.run("distributed") / "workers" / "worker2" / "output").iterdir()}
    assert others == {"result.npz"}


@EXHAUSTIVE
def test_tensorflows_tutorial_runs_as_it_is(project):
    done = project.play("train", f"script={SCRIPTS}/tutorial", "run=tutorial", "outputs=model.keras").stdout
    assert "tutorial: SUCCEEDED" in done
    logs = [(project.run("tutorial") / "workers" / f"worker{number}" / "worker.log").read_text() for number in (1, 2)]
    ends = [line.partition(": ")[2] for log in logs for line in log.splitlines() if "2 replicas, accuracy" in line]
    assert len(ends) == 2
    assert len(set(ends)) == 1
    assert (project.run("tutorial") / "output" / "model.keras").is_file()
    assert not (project.run("tutorial") / "workers" / "worker2" / "output" / "model.keras").exists()
