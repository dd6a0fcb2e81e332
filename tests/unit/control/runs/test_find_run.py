"""What a command refuses of the image that it was given, and what it tells of one that the chief can't read."""

from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleActionFail

from control.runs.tasks import find as find_run
from control.runs.tasks import show_prediction
from tests.unit.samples import image_bytes
from trainer.errors import LockstepError


def refusal(asked):
    with pytest.raises(LockstepError) as caught:
        find_run._image(str(asked))
    return str(caught.value)


def test_an_image_is_read_before_a_host_is_touched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter.txt").write_text("no image")
    (tmp_path / "some.png").write_bytes(image_bytes(1))
    assert find_run._image("some.png") == str(tmp_path / "some.png")
    assert refusal("some/letter.txt") == "image=some/letter.txt: no such file; give the path of a JPEG, PNG, BMP or GIF"
    assert refusal("letter.txt").startswith("image=letter.txt: can't be read: not a JPEG, PNG, BMP or GIF")


def test_what_the_chief_says_of_its_copy_is_told_of_the_path_that_was_given():
    action = SimpleNamespace(
        arguments={
            "output": {"rc": 1, "stderr": "some noise\nerror: image=image: can't be read: truncated", "stderr_lines": []},
            "image": "/home/me/cat.jpg",
        }
    )
    with pytest.raises(AnsibleActionFail, match=r"^image=/home/me/cat\.jpg: can't be read: truncated$"):
        show_prediction.ShowPrediction.act(action)
