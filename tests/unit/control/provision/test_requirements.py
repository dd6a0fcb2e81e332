"""Packages of the user's own on hosts: locked beside what training needs, once."""

import pytest

from control.provision import requirements, wheels
from tests.unit.control.provision.test_wheels import PI, X86, A, make_wheel, pin
from trainer.common.errors import ConfigError

BASE = wheels.pins(pin("fixed", A))


def asked(tmp_path, text):
    (tmp_path / "mine.txt").write_text(text)
    return tmp_path / "mine.txt"


def test_file_is_locked_once_for_kind_of_host(index, tmp_path):
    make_wheel(index, "fixed")
    arm, intel = (make_wheel(index, "photos", tag=f"cp312-cp312-manylinux_2_28_{machine}") for machine in ("aarch64", "x86_64"))
    file = asked(tmp_path, "photos>=1.0\nfixed\n")
    (photos,) = requirements.lock(file, BASE, PI, tmp_path)
    assert (photos.name, photos.version) == ("photos", "1.0")
    assert photos.hashes >= {arm}
    assert photos.hashes <= {arm, intel}
    make_wheel(index, "photos", "2.0", tag="cp312-cp312-manylinux_2_28_aarch64")
    assert requirements.lock(file, BASE, PI, tmp_path) == [photos]
    assert requirements.lock(asked(tmp_path, "photos"), BASE, PI, tmp_path)[0].version == "2.0"
    assert requirements.missing_here([photos]) == ["photos"]
    assert requirements.missing_here(wheels.pins(pin("pytest", A))) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fixed==2.0", r"mine.txt: no versions fit x86_64, Python 3.11 and what training needs \(requirements/node.txt\): .*fixed==2.0"),
        ("absent", r"no versions fit .*absent"),
        ("two words here", r"no versions fit .*mine.txt"),
    ],
)
def test_what_does_not_fit_is_refused_unkept(text, message, index, tmp_path):
    """What does not fit is refused and nothing is kept."""
    make_wheel(index, "fixed")
    make_wheel(index, "fixed", "2.0")
    file = asked(tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        requirements.lock(file, BASE, X86, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"requirements=none.txt: no such file: /"):
        requirements.lock(tmp_path.joinpath("none.txt").relative_to(tmp_path), BASE, X86, tmp_path)
