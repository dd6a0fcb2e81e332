"""Wheels for hosts: chosen for the target's platform, downloaded by pip, verified, named by digest."""

import base64
import hashlib
import json
import zipfile

import pytest

from control.provision import wheels
from control.provision.wheels import Gathering, Target
from tests.unit.conftest import ROOT
from tests.unit.refusals import refusal
from trainer.common.errors import LockstepError
from trainer.common.files import sha256_file

X86 = Target("x86_64", "3.11.2", 36)
PI = Target("aarch64", "3.12.1", 36)


def make_wheel(folder, name, version="1.0", tag="py3-none-any", files=None):
    """A wheel of a few bytes; returns its SHA-256."""
    info = f"{name}-{version}.dist-info"
    contents = {f"{name}/__init__.py": "", **(files or {})}
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"

    def row(path, text):
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        return f"{path},sha256={digest},{len(text)}\n"

    record = "".join(row(path, text) for path, text in contents.items()) + f"{info}/RECORD,,\n"
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in {**contents, f"{info}/RECORD": record}.items():
            archive.writestr(inside, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pin(name, *digests, version="1.0", marker=""):
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in digests)
    return f"{name}=={version}{marker} {hashes}\n"


def names(lock, target):
    return [one.name for one in wheels.chosen(wheels.pins(lock), target)]


A, B = "a" * 64, "b" * 64


def test_lock_is_read_with_comments_markers_and_hashes():
    lock = f"# made by uv\nOne_Two==1.0 ; python_version < '4' \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n    # via x\n"
    (actual,) = wheels.pins(lock)
    assert (actual.name, actual.version, actual.hashes) == ("one-two", "1.0", {A, B})
    assert actual.line() == f"one-two==1.0 --hash=sha256:{A} --hash=sha256:{B}"


@pytest.mark.parametrize("line", ["one==1.0", f"one>=1.0 --hash=sha256:{A}", f"one --hash=sha256:{A}"])
def test_a_line_that_pins_nothing_is_refused(line):
    with pytest.raises(LockstepError, match=r"^requirements: one.*expected name==version with hashes; lock again: make lock$"):
        wheels.pins(line)


def test_markers_are_those_of_the_target():
    lock = pin("intel", A, marker=" ; platform_machine == 'x86_64'") + pin("arm", A, marker=" ; platform_machine == 'aarch64'")
    lock += pin("old", A, marker=" ; python_full_version < '3.12'") + pin("new", A, marker=" ; python_full_version >= '3.12'")
    lock += pin("mac", A, marker=" ; sys_platform == 'darwin'") + pin("all", A)
    assert names(lock, X86) == ["intel", "old", "all"]
    assert names(lock, PI) == ["arm", "new", "all"]


@pytest.mark.parametrize(("target", "tensorflow"), [(X86, "tensorflow-cpu"), (PI, "tensorflow")])
def test_lock_has_one_tensorflow_for_each_machine(target, tensorflow):
    chosen = names((ROOT / "requirements" / "node.txt").read_text(), target)
    assert [name for name in chosen if name.startswith("tensorflow")] == [tensorflow]
    assert len(chosen) == len(set(chosen)) > 20


def test_gpu_host_has_cuda_and_its_own_folder():
    """A host with gpus has a folder of its own and cuda beside the same packages."""
    gpu = Target("x86_64", "3.11.2", 36, gpu=True)
    assert [one.key for one in wheels.merged([X86, gpu])] == ["x86_64-cp311", "x86_64-cp311-gpu"]
    one, other = (
        {pin.name: pin.version for pin in wheels.chosen(wheels.pins((ROOT / "requirements" / f"{target.lock}.txt").read_text()), target)}
        for target in (X86, gpu)
    )
    assert {"tensorflow", "nvidia-nccl-cu12", "nvidia-cudnn-cu12"} <= other.keys()
    assert {name: version for name, version in one.items() if name != "tensorflow-cpu"}.items() <= other.items()
    assert other["tensorflow"] == one["tensorflow-cpu"]


def test_pinned_uv_is_one_of_set_up(install):
    lock = wheels.pins((ROOT / "requirements" / "control.txt").read_text())
    assert [f"{one.name}=={one.version}" for one in lock if one.name == "uv"] == [install.UV]


def test_hosts_of_a_kind_share_the_oldests_folder():
    hosts = [
        Target("x86_64", "3.11.10", 40),
        Target("x86_64", "3.11.9", 41),
        Target("x86_64", "3.12.1", 39),
        Target("aarch64", "3.11.2", 36),
    ]
    merged = {target.key: (target.python, target.glibc) for target in wheels.merged(hosts)}
    assert merged == {"x86_64-cp311": ("3.11.9", 40), "x86_64-cp312": ("3.12.1", 39), "aarch64-cp311": ("3.11.2", 36)}


def test_wheels_fit_the_c_library_of_hosts():
    tags = wheels._platforms(Target("aarch64", "3.11.2", 31))[1::2]
    assert tags[0] == "manylinux_2_31_aarch64"
    assert "manylinux_2_32_aarch64" not in tags
    assert tags[-3:] == ["manylinux_2_17_aarch64", "manylinux2014_aarch64", "linux_aarch64"]


def gathering(tmp_path, lock, target=X86, uv=None, report=None):
    lines = report if report is not None else []
    return Gathering(target, wheels.pins(lock), wheels.pins(uv)[0] if uv else None, tmp_path / "cache" / target.key, lines.append)


def test_foreign_wheels_are_gathered_verified_and_kept(index, tmp_path):
    arm = make_wheel(index, "fast", tag="cp312-cp312-manylinux_2_28_aarch64")
    make_wheel(index, "fast", tag="cp312-cp312-manylinux_2_28_x86_64")
    make_wheel(index, "fast", tag="cp312-cp312-manylinux_2_39_aarch64")
    lock = pin("fast", arm) + pin("plain", make_wheel(index, "plain")) + pin("intel", A, marker=" ; platform_machine == 'x86_64'")
    actual = gathering(tmp_path, lock, PI)
    assert actual.complete() is None
    made = actual.gather()
    assert list(made["wheels"]) == ["fast-1.0-cp312-cp312-manylinux_2_28_aarch64.whl", "plain-1.0-py3-none-any.whl"]
    assert made["wheels"]["fast-1.0-cp312-cp312-manylinux_2_28_aarch64.whl"]["sha256"] == arm
    assert (actual.folder / "requirements.txt").read_text() == pin("fast", arm) + lock.splitlines(keepends=True)[1]
    assert actual.complete() == made
    assert actual.folder.name == "aarch64-cp312"


def test_changed_lock_is_gathered_anew_and_old_goes(index, tmp_path):
    old = pin("one", make_wheel(index, "one"))
    first = gathering(tmp_path, old).gather()
    new = pin("one", make_wheel(index, "one", version="2.0"), version="2.0")
    actual = gathering(tmp_path, new)
    assert actual.complete() is None
    second = actual.gather()
    assert wheels.digest(first) != wheels.digest(second)
    assert sorted(path.name for path in actual.folder.iterdir()) == ["index.json", "one-2.0-py3-none-any.whl", "requirements.txt"]


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_bytes(b"torn")])
def test_a_missing_or_torn_wheel_is_fetched_again(spoil, index, tmp_path):
    actual = gathering(tmp_path, pin("one", make_wheel(index, "one")))
    made = actual.gather()
    spoil(actual.folder / "one-1.0-py3-none-any.whl")
    assert actual.complete() is None
    assert actual.gather() == made


def test_wheel_that_lock_does_not_name_is_refused(index, tmp_path):
    make_wheel(index, "one")
    actual = gathering(tmp_path, pin("one", A))
    message = refusal(actual.gather)
    assert message.startswith("the wheels for x86_64 and Python 3.11 can't be gathered: ")
    assert message.endswith("or give a folder that holds them: WHEELS=DIR ansible-playbook provision.yml")
    assert actual.complete() is None


def test_wheel_that_can_not_be_had_is_named(index, tmp_path):
    with pytest.raises(LockstepError, match=r"No matching distribution found for absent==1.0"):
        gathering(tmp_path, pin("absent", A)).gather()


def test_uv_comes_along_outside_the_digest(index, tmp_path):
    lock = pin("one", make_wheel(index, "one"))
    without = gathering(tmp_path, lock).gather()
    tool = pin("uv", make_wheel(index, "uv", tag="py3-none-manylinux_2_17_x86_64"))
    made = gathering(tmp_path, lock, uv=tool).gather()
    assert made["uv"]["file"] == "uv-1.0-py3-none-manylinux_2_17_x86_64.whl"
    assert wheels.digest(made) == wheels.digest(without)
    assert gathering(tmp_path, lock, uv=tool).complete() == made
    folder = gathering(tmp_path, lock, uv=tool).folder
    # Hosts use no other file of that folder.
    used = [*folder.glob("*.whl"), folder / "requirements.txt"]
    assert wheels.sums(made, folder) == {path.name: sha256_file(path) for path in used}


def test_without_uv_it_goes_on_and_says_so(index, tmp_path):
    report = []
    actual = gathering(tmp_path, pin("one", make_wheel(index, "one")), uv=pin("uv", A), report=report)
    assert actual.gather()["uv"] is None
    assert "the hosts use pip, which takes longer" in report[-1]
    assert json.loads((actual.folder / "index.json").read_text())["uv"] is None
    assert actual.complete() is not None
