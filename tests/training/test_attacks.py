"""A run is evaluated with the code that was published, whatever became of it; training: tests/contract/test_attacks.py."""

import warnings
import zipfile

from tests.project import EXHAUSTIVE

SMALL = ("config=task_cnn", "epochs=1", "set=train.global_batch=20,reduction.name=packed")


@EXHAUSTIVE
def test_changed_code_evaluates_nothing(project, pictures):
    project.play("train", "run=resumed", f"dataset={pictures}", *SMALL)
    harm = project.root / "harm"
    for code in (project.root / ".lockstep/dfs/code").iterdir():
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(code, "a") as archive:
            archive.writestr("trainer/__init__.py", f"open({str(harm)!r}, 'a').write('harm')")
    assert "resumed on its test images" in project.play("evaluate", "run=resumed", "epoch=last").stdout
    assert not harm.exists()
