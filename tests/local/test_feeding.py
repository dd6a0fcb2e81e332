"""What a step is fed, through the playbooks: class weights, mixup, a user's `augment`, buckets; exact on any number of workers."""

from pathlib import Path

from tests.local_project import LocalProject

FILE = Path(__file__).with_name("sequences.py")
SEQUENCES = "set=train.batch_sizes=[5,3],train.steps_per_call=3,telemetry.profile_every=4,data.bucket=3,train.class_weight=balanced"


def sequences(project: LocalProject, name: str, *more: str, file: Path = FILE, **options):
    return project.play("train", f"run={name}", f"model={FILE}:build", f"dataset={file}:data", *more, **options)


def test_a_function_that_draws_from_elsewhere_is_refused_before_hosts_are_touched(project, tmp_path):
    careless = tmp_path / "careless.py"
    careless.write_text(FILE.read_text().replace("np.random.default_rng(seed)", "np.random.default_rng()"))
    refused = sequences(project, "refused", file=careless, check=False)
    assert "dataset=careless.py:augment: given the same seed twice, it returns two different x" in refused.stdout
    assert "--- Look at the hosts" not in refused.stdout


def test_rows_are_shown_as_they_are_and_as_training_sees_them(project):
    given = (f"dataset={FILE}:data", f"model={FILE}:build", f"{SEQUENCES},train.batch_sizes=null", "images=3")
    shown = project.play("playbooks/visualize", *given).stdout
    assert "3 rows of step 1, original and as training sees them" in shown
    (header,) = [line for line in shown.splitlines() if line.split()[:1] == ["row"]]
    assert header.split("  ")[-1].strip() == "sample_weight in training"
    assert " x in training" in header
