"""`playbooks/visualize.yml`: one batch, as it is and as training sees it."""

from PIL import Image

from tests.contract.samples import SEQUENCES

BUCKETS = "set=train.steps_per_call=3,telemetry.profile_every=4,data.bucket=3,train.class_weight=balanced"


def test_rows_are_shown_twice(commands):
    shown = commands.ended("playbooks/visualize", f"dataset={SEQUENCES}:data", f"model={SEQUENCES}:build", BUCKETS, "images=3").stdout
    assert "3 rows of step 1, original and as training sees them" in shown
    (header,) = [line for line in shown.splitlines() if line.split()[:1] == ["row"]]
    assert header.split("  ")[-1].strip() == "sample_weight in training"
    assert " x in training" in header


def test_images_are_drawn_twice(commands, pictures):
    given = (f"dataset={pictures}", "config=resnet_cifar", "set=model.layers=8", "images=4")
    commands.check("playbooks/visualize", *given)
    assert not (commands.root / "pictures").exists()
    shown = commands.ended("playbooks/visualize", *given)
    assert "4 images of step 1, original and as training sees them" in shown.stdout
    (picture,) = (commands.root / "pictures").iterdir()
    first = picture.read_bytes()
    with Image.open(picture) as image:
        assert min(image.size) > 300
    commands.ended("playbooks/visualize", *given)
    assert picture.read_bytes() == first
    commands.ended("playbooks/visualize", *given, "step=2")
    assert picture.read_bytes() != first
