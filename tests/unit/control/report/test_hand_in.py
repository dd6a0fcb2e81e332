"""What is handed in: the zip's files, the user's own among them, who and for what, where Lockstep is from, pictures that went wrong."""

import base64
import json
import os
import re
import subprocess
import zipfile

import numpy as np
import pytest
from PIL import Image

from control.common import plotting, written_files
from control.report import mistakes, own_files, page, repeating, report
from control.report.archive import Parts
from control.report.facts import Run
from control.report.own_files import OwnFiles
from control.report.tasks import write as write_report
from control.runs.results import run_plots
from tests.project import ROOT
from tests.unit.report_samples import make_archive, make_project, make_run
from trainer.common.errors import ConfigError
from trainer.config.schema import Report as Heading

MINE = "import parts\n\n\ndef build():\n    pass\n"
MODEL = {"name": "own", "file": "mine.py", "function": "build", "source": MINE, "parts.py": "WIDTH = 3\n"}
CALLBACKS = {"file": "mine.py", "function": "stop", "source": MINE, "parts.py": "WIDTH = 3\n"}


def made(tmp_path, name="first", **more):
    return Run.read(make_run(tmp_path / "runs", name, tests={3: 0.5}, **more))


@pytest.fixture
def compose(tmp_path, monkeypatch):
    """Write a report of runs without its drawings; its folder."""
    for name in ("history", "compare", "split"):
        monkeypatch.setattr(run_plots, name, lambda values, path, *_: path.write_bytes(f"PNG {values}".encode()))

    def composed(*runs, **more):
        folder = tmp_path / "made"
        folder.mkdir()
        project = make_project(tmp_path / "project", ROOT / "templates")
        report.Request(runs, None, project, [tmp_path / "code"], **more).make(folder)
        return folder

    return composed


def gather(tmp_path, *runs):
    return Parts.gather("first", runs, None, make_project(tmp_path / "project", ROOT / "templates"), [tmp_path / "code"])


def entries(tmp_path, *runs):
    pages = tmp_path / "pages"
    pages.mkdir()
    return gather(tmp_path, *runs).entries(pages)


def texts(section):
    return " ".join(block.text for block in section.blocks if block.kind in ("text", "command"))


# --- the user's own files


def test_own_files_are_files_of_the_zip(tmp_path):
    packed = entries(tmp_path, made(tmp_path, config={"model": MODEL, "train": {"callbacks": CALLBACKS}}))
    own = {name: content for name, content in packed.items() if name.startswith("first/code/")}
    assert own == {"first/code/mine.py": MINE.encode(), "first/code/parts.py": b"WIDTH = 3\n"}


def test_each_own_file_says_what_it_is(tmp_path):
    own = OwnFiles.of(made(tmp_path, config={"model": MODEL, "train": {"callbacks": CALLBACKS}}))
    assert {name: one.what for name, one in own.files.items()} == {
        "mine.py": "model: build; callbacks: stop",
        "parts.py": "a module that these import",
    }


def test_files_that_differ_do_not_replace_each_other(tmp_path):
    other = {**CALLBACKS, "source": "def stop():\n    pass\n"}
    own = OwnFiles.of(made(tmp_path, config={"model": MODEL, "data": {"image_size": [32, 32, 3], "augment": other}}))
    assert own.files["mine.py"].text == MINE
    assert own.files["augment/mine.py"].text == other["source"]


def test_several_runs_have_folders_of_their_own_files(tmp_path):
    packed = entries(tmp_path, made(tmp_path, config={"model": MODEL}), made(tmp_path, "second", config={"model": MODEL}))
    assert {"first/code/first/mine.py", "first/code/second/parts.py"} <= packed.keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mine.py", "mine.py"),
        ("parts/__init__.py", "parts/__init__.py"),
        ("../../etc/x.py", "etc/x.py"),
        ("/etc/x.py", "etc/x.py"),
        ("..\\x.py", "x.py"),
        ("C:\\x.py", "C_/x.py"),
        ("a\nb\x1b.py", "a_b_.py"),
        ("größe.py", "größe.py"),
        ("..", "_"),
    ],
)
def test_no_own_file_leaves_its_folder(name, expected):
    assert own_files._safe(name) == expected


@pytest.fixture
def own_data(tmp_path):
    """A run on data of a function, whose file was written before it began."""
    file = tmp_path / "data.py"
    file.write_text("def rows(split):\n    pass\n")
    os.utime(file, (0, 0))
    return file, made(tmp_path, config={"data": {"source": "own", "path": f"{file}:rows", "image_size": [32, 32, 3]}})


def test_file_of_dataset_is_todays(own_data):
    file, run = own_data
    own = OwnFiles.of(run)
    assert (own.files["data.py"].what, own.dataset) == ("dataset: rows, as it was when the run began", "data.py:rows")
    os.utime(file)
    assert OwnFiles.of(run).files["data.py"].what == "dataset: rows, written after the run began, so perhaps not what it read"


def test_lost_file_of_the_dataset_is_named(tmp_path, own_data):
    file, run = own_data
    file.unlink()
    section = gather(tmp_path, run).section(tmp_path)
    assert f"The dataset's file is missing: `dataset={file}:rows: no such file: {file}`." in texts(section)


def test_page_shows_code_and_config_without_it(compose, tmp_path):
    readme = (compose(made(tmp_path, config={"model": MODEL})) / "README.md").read_text()
    assert "## Code\n\ncode/mine.py:\n\n    import parts\n" in readme
    assert "      source: (a file)\n      parts.py: (a file)\n" in readme


# --- Lockstep itself


def test_lockstep_is_a_revision_and_no_files(tmp_path):
    make_archive(tmp_path / "code")
    run = made(tmp_path)
    assert not [name for name in entries(tmp_path, run) if "lockstep" in name or "/code/" in name]
    (table, lockstep) = Parts.gather("first", [run], None, tmp_path, []).section(tmp_path).blocks
    assert table.rows[0] == ["`index.html`", "this report as one page, which needs nothing else"]
    assert lockstep.text == (
        "Lockstep itself is not in it. What trained is git revision `89ef59ecae6f`; its clone names no address that other machines reach."
    )


@pytest.mark.parametrize("revision", ["89ef59ecae6f+", None])
def test_trainer_without_a_revision_is_in_the_zip(tmp_path, revision):
    path = make_archive(tmp_path / "code")
    packed = entries(tmp_path, made(tmp_path, cluster={"revision": revision}))
    assert packed[f"first/lockstep/{path.name}"] == path


def test_lost_trainer_and_lost_snapshot_are_named(tmp_path):
    run = made(tmp_path, cluster={"revision": None})
    (run.folder / "checkpoints/epoch-0003.keras").unlink()
    words = texts(gather(tmp_path, run).section(tmp_path))
    assert "The snapshot of the best epoch of `first` (epoch-0003.keras) is missing: there is none in checkpoints/." in words
    assert "`trainer-a95c9b7542a78a4c.zip`, which ran on the hosts, is not on this machine." in words


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://github.com/me/lockstep.git", "https://github.com/me/lockstep.git"),
        ("https://me:ghp_secret@github.com/me/lockstep?token=1#x", "https://github.com/me/lockstep"),
        ("https://ghp_secret@github.com:8443/me", "https://github.com:8443/me"),
        ("git@github.com:me/lockstep.git", "git@github.com:me/lockstep.git"),
        ("ssh://git:pass@host/me.git", "ssh://git@host/me.git"),
        ("/home/me/lockstep", None),
        ("file:///home/me/lockstep", None),
        ("../lockstep", None),
        ("javascript:alert(1)", None),
        ("https://a b", None),
        ("https://host/\x1b[2J", None),
        ("https://[", None),
        ("", None),
    ],
)
def test_address_that_others_reach_has_no_password(url, expected):
    assert repeating._public(url) == expected


def test_address_is_the_projects_or_its_remotes(tmp_path):
    assert repeating.address(tmp_path) is None
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert repeating.address(tmp_path) is None
    subprocess.run(["git", "remote", "add", "origin", "https://example.org/clone"], cwd=tmp_path, check=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert repeating.address(tmp_path) == "https://example.org/clone"
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nDocs = "https://example.org/docs"\nSource = "https://example.org/source"\n')
    assert repeating.address(tmp_path) == "https://example.org/source"
    folder = tmp_path / "inside"
    folder.mkdir()
    assert repeating.address(folder) is None, "the remote is that of a repository around the folder"


def test_link_is_one_on_the_page(compose, tmp_path, monkeypatch):
    monkeypatch.setattr(repeating, "address", lambda _: "https://example.org/lockstep")
    folder = compose(made(tmp_path))
    page, readme = ((folder / name).read_text() for name in ("index.html", "README.md"))
    assert '<a href="https://example.org/lockstep" rel="noreferrer">https://example.org/lockstep</a>' in page
    assert "It is from <https://example.org/lockstep>" in readme
    assert "git clone https://example.org/lockstep lockstep && cd lockstep && git checkout 89ef59ecae6f" in readme


# --- to train it again


def again(run, where=None):
    return texts(repeating.section(run, "first", where, OwnFiles.of(run)))


def test_run_is_trained_again_here_and_elsewhere(tmp_path):
    assert again(made(tmp_path)) == (
        "It began at 2026-11-21 05:26 UTC with the code of git revision `89ef59ecae6f`. The same training again, under a new name: "
        "ansible-playbook train.yml -e config=runs/first/config.yml -e workers=2 "
        "On another machine, with first.zip (not in it: the dataset `pets`, here PATH): "
        "cd lockstep && git checkout 89ef59ecae6f\nmake setup && . .venv/bin/activate\nunzip first.zip\n"
        "ansible-playbook train.yml -e config=first/runs/first/config.yml -e workers=2 -e dataset=PATH"
    )


def test_own_dataset_and_weights_are_given_elsewhere(own_data):
    _, run = own_data
    run.config["train"] = {"weights": {"file": "old.keras", "sha256": "0"}}
    words = again(run)
    assert words.endswith(" -e dataset=first/code/data.py:rows -e weights=WEIGHTS")
    assert "with first.zip (not in it: the weights `old.keras`, here WEIGHTS):" in words


def test_what_auto_chose_is_named_again(tmp_path):
    run = made(tmp_path, config={"reduction": {"name": "auto"}}, reduction={"name": "powersgd"})
    assert " -e workers=2 -e set=reduction.name=powersgd " in again(run)


def test_uncommitted_code_continued_runs_and_no_git(tmp_path):
    assert "It was last continued at 2026-11-21" in again(made(tmp_path, "a", restarts=1))
    dirty = again(made(tmp_path, "b", cluster={"revision": "89ef59ecae6f+"}))
    assert "git revision `89ef59ecae6f` with changes that were not committed." in dirty
    assert "with the code of a copy outside git." in again(made(tmp_path, "c", cluster={"revision": None}))


# --- who and for what


NASTY = "<script>x</script> `a` *b* [c](d) | & #"


def test_author_and_title_are_text_on_both_pages(compose, tmp_path):
    folder = compose(made(tmp_path), heading=Heading(author=NASTY, title=NASTY))
    page, readme = ((folder / name).read_text() for name in ("index.html", "README.md"))
    shown = "&lt;script&gt;x&lt;/script&gt; &#39;a&#39; *b* [c](d) | &amp; #"
    assert f"<h1>{shown}</h1>" in page
    assert f'<p class="author">By {shown}</p>' in page
    assert "<script>" not in page
    escaped = r"\<script\>x\</script\> 'a' \*b\* \[c\](d) \| &amp; #"
    assert readme.startswith(f"# {escaped}\n\nBy {escaped}\n\n- `first` trained")


def test_nobody_is_named_unless_asked(compose, tmp_path):
    folder = compose(made(tmp_path))
    assert (folder / "README.md").read_text().startswith("# Report: `first`\n\n- `first` trained")
    assert 'class="author"' not in (folder / "index.html").read_text()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, Heading("Ada", "Course")),
        ("report.author=Bob", Heading("Bob", "Course")),
        ("report.author=null,report.title='a, b'", Heading(None, "a, b")),
        ("report.author=7,report.title=Exercise 3: images", Heading("7", "Exercise 3: images")),
        ("report.title=*all* [of: it", Heading("Ada", "*all* [of: it")),
    ],
)
def test_set_precedes_the_run_and_the_inventory(tmp_path, given, expected):
    run = made(tmp_path, config={"report": {"author": "Ada", "title": None}})
    assert write_report._heading(given, [run], {"author": "Lab", "title": "Course"}) == expected


@pytest.mark.parametrize(
    ("given", "usual", "message"),
    [
        ("report.autor=x", {}, "report.autor: unknown key (did you mean report.author?); known: report.author, report.title"),
        (
            "train.epochs=3",
            {},
            "set=train.epochs: of a run that has trained, report.yml takes report.author and report.title only",
        ),
        (
            None,
            {"author": "a\nb"},
            "report.author: a\nb is not allowed; it must be null or at most 200 printable characters on one line",
        ),
    ],
)
def test_other_keys_and_broken_names_are_refused(given, usual, message):
    with pytest.raises(ConfigError) as caught:
        write_report._heading(given, [], usual)
    assert str(caught.value) == message


# --- pictures


WRONG = {
    "example": 7,
    "of": 0,
    "taken_for": 1,
    "probability": 0.984,
    "shape": [1, 2, 3],
    "rows": [base64.b64encode(b"\1\2\3\4\5\6").decode()],
}
OUTPUT = {"name": "", "classes": ["`cat`/../<b>", "dog"], "confusion": [[3, 1], [0, 4]], "mistakes": [WRONG]}
NAME = "misclassified/first/01-_cat_.._b_-taken-for-dog.png"


@pytest.fixture
def confused(tmp_path):
    """A run with a picture that its best epoch takes for another class."""
    run = made(tmp_path)
    record = {"epoch": 3, "split": "test", "metrics": {}, "images": 8, "seconds": 1.0, "evaluated_at": "2026-11-21T05:29:37+00:00"}
    (run.folder / "evaluate").mkdir()
    (run.folder / "evaluate/epoch-0003.json").write_text(json.dumps(record | {"outputs": [OUTPUT]}))
    return run


def test_wrong_pictures_are_beside_the_report(confused, compose):
    folder = compose(confused)
    with Image.open(folder / NAME) as picture:
        assert np.asarray(picture).tolist() == [[[1, 2, 3], [4, 5, 6]]]
    readme, page = ((folder / name).read_text() for name in ("README.md", "index.html"))
    assert f"| ![]({NAME}) | 'cat'/../\\<b\\>, taken for dog (98%) |" in readme
    assert "<figcaption>&#39;cat&#39;/../&lt;b&gt;, taken for dog (98%)</figcaption>" in page
    with zipfile.ZipFile(folder / "first.zip") as stream:
        assert f"first/{NAME}" in stream.namelist()


def test_how_many_wrong_pictures_are_shown(confused):
    *_, gallery = mistakes.blocks(confused)
    assert gallery.caption == "Epoch 3 is wrong about 1 of 8 test images (in brackets: the probability that the model gives)"
    fewer = {**OUTPUT, "confusion": [[3, 2], [0, 4]]}
    (caption,) = [block.caption for block in mistakes._gallery(confused, "confusion", "", fewer)]
    assert caption.startswith("Epoch 3 is wrong about 2 of 9 test images; the 1 of which it is surest (in")


def test_wrong_pictures_of_an_earlier_report_go(confused, compose):
    folder, into = compose(confused), confused.folder / "report"
    written_files.put_changed(folder, into, report.OURS)
    assert (into / NAME).is_file()
    (folder / NAME).unlink()
    assert written_files.put_changed(folder, into, report.OURS) == [NAME]
    assert not (into / "misclassified").exists(), "its folders are empty"


def test_dark_pictures_keep_hues_and_exchange_lightness(tmp_path):
    colours = [(255, 255, 255), (0, 0, 0), (255, 0, 0), (64, 0, 0)]
    Image.new("RGB", (4, 1)).save(tmp_path / "a.png")
    picture = Image.new("RGB", (4, 1))
    picture.putdata(colours)
    picture.save(tmp_path / "a.png")
    plotting.darken(tmp_path / "a.png", tmp_path / "b.png")
    with Image.open(tmp_path / "b.png") as dark:
        white, black, red, deep = map(tuple, np.asarray(dark)[0].tolist())
    assert (white, black) == ((0x14, 0x17, 0x1A), (0xE6, 0xE9, 0xEC))
    assert (red[0], max(red[1:])) == (0xE6, 0x1A)
    assert deep[0] == 0xE6
    assert deep[1] == pytest.approx(deep[2], abs=3)
    assert deep[1] > 150


def test_what_is_no_picture_has_no_dark_one(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG and no more")
    plotting.darken(tmp_path / "a.png", tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()


def test_page_shows_dark_pictures_on_dark_screens(tmp_path):
    for name, content in (("a.png", b"light"), ("a-dark.png", b"dark"), ("b.png", b"light")):
        (tmp_path / name).write_bytes(content)
    light, dark = (base64.b64encode(content).decode() for content in (b"light", b"dark"))
    assert page.picture_html("a.png", "words", tmp_path) == (
        f'<picture><source media="screen and (prefers-color-scheme: dark)" srcset="data:image/png;base64,{dark}">'
        f'<img src="data:image/png;base64,{light}" alt="words"></picture>'
    )
    assert "<picture>" not in page.picture_html("b.png", "words", tmp_path)
    sweep = page._from_markdown('![the "times" <b>](a.png)', tmp_path)
    assert re.search(
        r'<span class="figure"><picture><source [^>]*><img [^>]*alt="the &quot;times&quot; &lt;b&gt;"></picture></span>', sweep
    )
