"""Names from the command line, the inventory, a dataset and an archive: where each enters, what could leave a folder or reach a shell is
refused, or is nothing but a name."""

import hashlib
import io
import subprocess
import zipfile
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleFilterError
from PIL import Image

from control.campaign import store
from control.common import worker_environment
from control.datasets.sources.folder import Folder
from control.remote import admission
from control.runs.hosts.inventory_hosts import check_absolute, cluster_hosts
from control.runs.planning import script_plan
from control.runs.results import run_names
from control.runs.tasks.plan import _check_lines
from trainer.common.errors import ConfigError, LockstepError
from trainer.launch import user_script

HOSTILE = (
    *(
        "$(touch ran)",
        "`touch ran`",
        "a;touch ran",
        "a|touch ran",
        "a&touch ran",
        "a\ntouch ran",
        "a\rb",
        "a'b",
        'a"b',
        "a b",
        "a\\b",
        "a\0b",
        "~",
    ),
    *(
        "../a",
        "a/../../b",
        "/etc/passwd",
        "..",
        ".",
        "-rf",
        "--version",
        "{{ 1 }}",
        "{% raw %}",
        "{{ lookup('pipe', 'touch ran') }}",
        "*",
        "?",
    ),
    *(
        "a\u202eb",
        "a\u2066b",
        "\x1b[2Ja",
        "\x9b31m",
        "é\u0301",
        "\ud800",
        "",
        "x" * 5000,
        "#a",
        "a=b",
        "!a",
        "<a",
        ">a",
        "a\tb",
        "a\u2028b",
    ),
)
ENTRIES = {
    "run": run_names.check_run_name,
    "sweep": lambda name: store.check_name("sweep", name),
    "host": lambda name: cluster_hosts({name: {"ansible_host": "10.0.0.1"}}, [name]),
    "time": lambda name: _check_lines({"time": name}),
    "partition": lambda name: _check_lines({"partition": name}),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_hostile_name_is_refused_where_it_enters(entry, name):
    with pytest.raises((LockstepError, AnsibleFilterError)):
        ENTRIES[entry](name)


@pytest.mark.parametrize(
    ("entry", "name"), [("run", "a-1.b_c"), ("sweep", "a-1"), ("host", "Node_1.b-c"), ("time", "1-02:00:00"), ("partition", "a_b,c-d")]
)
def test_an_ordinary_name_is_taken(entry, name):
    ENTRIES[entry](name)


# `~` and a dot lead nowhere as an address, a leading `-` is no option of `ssh` or `nc`.
@pytest.mark.parametrize("address", [one for one in HOSTILE if one])
def test_a_hostile_address_is_refused(address):
    for variable in ("worker_address", "ansible_host"):
        with pytest.raises(AnsibleFilterError, match="worker_address="):
            cluster_hosts({"a": {variable: address}}, ["a"])


@pytest.mark.parametrize("address", ["10.0.0.1", "::1", "fe80::1%eth0", "node01.example.org", "localhost", "node_1"])
def test_an_ordinary_address_is_taken(address):
    assert cluster_hosts({"a": {"worker_address": address}}, ["a"])[0].address == address


@pytest.mark.parametrize("path", ["a", "~/a", "/a/../b", "/a\nb", "/a\x1b[2J", "/a\u202e", "/{{ lookup('pipe', 'id') }}", "", "/a\0b"])
def test_inventory_path_is_neither_line_nor_template(path):
    with pytest.raises(AnsibleFilterError, match="worker_root="):
        check_absolute({"worker_root": path})
    check_absolute({"worker_root": "/home/pi/my $(folder) of 'runs'; #1"})


@pytest.mark.parametrize("value", HOSTILE)
def test_worker_environment_value_reaches_the_shell_unchanged(value, tmp_path):
    """A value of worker environment reaches the shell as it is.

    A script exports it; nothing in it runs. NUL and what is no text can't be in an environment.
    """
    try:
        lines = worker_environment.exports(worker_environment.of_host({"MINE": value}, "a"), "/caches")
        message = subprocess.run(["bash", "-c", f'{lines}\nprintf %s "$MINE"'], cwd=tmp_path, capture_output=True, check=True).stdout
    except (ConfigError, ValueError):
        assert {"\0", "\ud800", "\n", "\r"} & set(value)
    else:
        assert message.decode() == value
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [one for one in HOSTILE if one not in ("a b", "a=b")])
def test_hostile_name_of_output_or_file_is_refused(name):
    with pytest.raises(ConfigError, match="outputs="):
        script_plan.outputs(name or "/")
    assert not admission.OUTPUT.fullmatch(name)


def possible(name):
    """Whether a file system of Linux can have a folder of that name."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name and len(name) < 255


@pytest.mark.parametrize("name", [one for one in HOSTILE if possible(one) and one != "\ud800"])
def test_a_class_is_named_as_its_folder_is(name, tmp_path):
    """A class name is a text in the manifest, in tables and in pages; it is never a path or a command again."""
    for part, count in (("train", 3), ("test", 1)):
        for kind in (name, "other"):
            folder = tmp_path / "data" / part / kind
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    before = set(tmp_path.rglob("*"))
    assert sorted(Folder(str(tmp_path / "data")).scan().classes) == sorted([name, "other"])
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["../evil.py", "/tmp/evil-of-a-test.py", "a/../../evil.py", "a\\..\\evil.py", "train.py\n/evil", "\x1b[2J.py"]
)
def test_archive_of_script_writes_only_below_its_folder(name, tmp_path):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(name, "evil")
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (tmp_path / "script.zip").write_bytes(data.getvalue())
    sha256 = hashlib.sha256(data.getvalue()).hexdigest()
    user_script._unpack(SimpleNamespace(archive=tmp_path / "script.zip", sha256=sha256, folder=folder, own=tmp_path))
    written = [
        path for path in tmp_path.rglob("*") if path.is_file() and path not in (tmp_path / "script.zip", tmp_path / user_script.UNPACKED)
    ]
    assert written
    assert [path for path in written if not path.is_relative_to(folder)] == []
