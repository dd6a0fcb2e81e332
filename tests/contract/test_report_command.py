"""`report.yml`, and its page in Chromium: nothing asked for, nothing complained of, readable by day, by night, on a phone."""

import json
import zipfile

import pytest

from control.report.facts import Run
from control.report.report import Request
from control.runs.results import run_plots
from tests import pages
from tests.contract import samples
from tests.project import ROOT
from tests.unit.report_samples import make_archive, make_run, make_sweep, write_split, write_tests

NASTY = "<script>document.title = 'mine'</script><img src=x onerror=alert(1)>"
LOWEST = """() => {
  const number = text => text.match(/[\\d.]+/g).map(Number);
  const light = part => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const luminance = ([red, green, blue]) => 0.2126 * light(red) + 0.7152 * light(green) + 0.0722 * light(blue);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const color = number(getComputedStyle(element).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const written = [...document.body.querySelectorAll('*')].filter(
    element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
  return written.map(element => {
    const [low, high] = [number(getComputedStyle(element).color), behind(element)].map(luminance).sort((a, b) => a - b);
    return [(high + 0.05) / (low + 0.05), element.tagName];
  }).sort((a, b) => a[0] - b[0])[0];
}"""
"""WCAG 2's contrast ratio of the text that stands out the least, and its tag."""


@pytest.fixture(scope="module")
def browser():
    """Chromium for this file."""
    with pages.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of two runs and a sweep, with names that would run if they were not text."""
    root = tmp_path_factory.mktemp("a report")
    nasty = {"name": NASTY, "classes": [NASTY, "dog"], "train": 5000, "test": 2000, "digest": "0" * 64}
    runs = [
        make_run(root / "runs", "first", names=[f"node{number}" for number in range(1, 6)], tests={1: 0.34, 3: 0.50}),
        make_run(root / "runs", "second", tests={3: 0.62}, model="deep_cnn", cluster={"dataset": nasty}),
    ]
    for number in range(1, 6):
        write_split(runs[0], f"node{number}", (1.0, 50.0 + 10 * number, 3.0, 60.0 - 10 * number, 6.0))
    table = "| workers | " + " | ".join(f"a long heading {n}" for n in range(12)) + " |\n" + "| ---: " * 13 + "|\n" + "| 1 " * 13 + "|\n"
    sweep = make_sweep(root / "sweeps", "pi", analysis=f"# Sweep\n\nUse 3 workers. {NASTY}\n\n## Times\n\n{table}")
    run_plots.history(Run.read(runs[0]).history, sweep / "time_median.png")
    into = root / "made"
    into.mkdir()
    Request([Run.read(run) for run in runs], sweep, ROOT, []).make(into)
    return into / "index.html"


def test_the_page_asks_for_nothing(browser, page):
    """With scripts and without it reads the same, names that would run included."""
    texts = []
    for scripts in (True, False):
        with pages.opened(browser, page.as_uri(), scripts=scripts) as shown:
            texts.append(shown.text())
            assert shown.page.title() == "Report: first and second"
            pictures = shown.page.evaluate("[...document.images].map(image => image.complete && image.naturalWidth)")
            assert (len(pictures), min(pictures) > 100) == (5, True)
            assert (shown.errors, shown.asked, shown.failed) == ([], [], [])
    assert texts[0] == texts[1]
    assert NASTY in texts[0]
    compared = "second (deep_cnn) reaches 62.00% test accuracy in its best epoch, first (task_cnn) 50.00%; these are images of different"
    assert compared in texts[0]


def test_the_policy_stops_what_is_foreign(browser, page, tmp_path):
    foreign = "<script>document.title = 'mine'</script><img src='http://127.0.0.1:9/x.png'><p style='color: red'>styled</p></body>"
    broken = tmp_path / "page.html"
    broken.write_text(page.read_text().replace("</body>", foreign))
    with pages.opened(browser, broken.as_uri()) as shown:
        assert shown.page.title() == "Report: first and second"
        assert shown.page.evaluate("getComputedStyle(document.querySelector('p:last-of-type')).color") != "rgb(255, 0, 0)"
        assert sum("Content Security Policy" in error for error in shown.errors) == 3
        assert shown.failed == ["http://127.0.0.1:9/x.png: csp"]


def test_light_and_dark_differ_and_both_stand_out(browser, page, tmp_path):
    seen = []
    for dark in (False, True):
        with pages.opened(browser, page.as_uri(), dark=dark) as shown:
            seen.append(shown.screenshot(tmp_path / "page.png", whole=False))
            ratio, tag = shown.page.evaluate(LOWEST)
            assert ratio >= 4.5, f"{tag} when {'dark' if dark else 'light'}"
    assert seen[0] != seen[1]


@pytest.mark.parametrize(("dark", "paper"), [(False, False), (True, False), (True, True)])
def test_pictures_are_dark_on_dark_screens(browser, page, dark, paper):
    """On paper the dark page is light."""
    with pages.opened(browser, page.as_uri(), dark=dark, paper=paper, width=720) as shown:
        is_light = shown.page.evaluate("[...document.images].map(image => image.currentSrc === image.src)")
        assert is_light == [not dark or paper] * 5
        if paper:
            assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
            assert shown.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


def test_a_phone_shows_pictures_and_what_files_are(browser, page):
    """Each picture is moved inside its own box."""
    with pages.opened(browser, page.as_uri(), width=390) as shown:
        widths = shown.page.evaluate("[...document.images].map(image => image.width)")
        boxes = shown.page.evaluate("[...document.querySelectorAll('figure, .figure')].map(box => box.scrollWidth - box.clientWidth)")
        files = "[...document.querySelectorAll('.box')].find(box => box.ariaLabel.startsWith('All of it'))"
        assert shown.page.evaluate(f"{files}.scrollWidth - {files}.clientWidth") == 0
    assert (min(widths), len(widths)) == (480, 5)
    assert (min(boxes) > 0, len(boxes)) == (True, 5)


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_only_tables_scroll_sideways(browser, page, width):
    with pages.opened(browser, page.as_uri(), width=width) as shown:
        assert shown.overflow() <= 0
        widest = shown.page.evaluate("Math.max(...[...document.querySelectorAll('.box')].map(box => box.scrollWidth - box.clientWidth))")
        assert widest > 0, "the wide table is to be reached inside its box"


# --- the command


@pytest.fixture(scope="module")
def run(commands, pictures):
    """A run of two epochs, both evaluated, and the archive of the trainer that ran."""
    folder = samples.train(commands, "to-report", "config=task_cnn", f"dataset={pictures}", "epochs=2")
    write_tests(folder, {1: 0.34, 2: 0.50}, images=60)
    make_archive(commands.root / ".lockstep/dfs/code", json.loads((folder / "cluster.json").read_text())["code"])
    return folder


@pytest.fixture(scope="module")
def reported(commands, run):
    """What `report.yml` prints for it."""
    return commands.ended("report", "run=to-report")


@pytest.fixture
def unevaluated(run):
    """The run without its evaluations, which are put back."""
    table = run / "evaluations.csv"
    kept = table.read_text()
    table.unlink()
    yield table
    table.write_text(kept)


def contents(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_a_report_says_where_it_is(run, reported):
    readme = (run / "report/README.md").read_text()
    assert "which training never saw, accuracy is " in readme
    assert "Not evaluated" not in readme
    assert "2 workers of one machine" in readme
    assert reported.changed
    assert reported.stdout.rstrip().endswith("ansible-playbook tensorboard.yml")


def test_the_zip_is_one_small_folder(run, reported):
    with zipfile.ZipFile(run / "report/to-report.zip") as stream:
        assert stream.testzip() is None
        names = set(stream.namelist())
    assert {name.partition("/")[0] for name in names} == {"to-report"}
    assert names >= {
        f"to-report/{name}" for name in ("README.md", "index.html", "pictures/history-to-report.png", "runs/to-report/history.csv")
    }
    assert len(names) < 50, "Lockstep itself is not in it"
    assert sum(name.endswith(".keras") for name in names) == 1


def test_title_and_author_are_given_to_the_command(commands, run, reported):
    text = (run / "report/index.html").read_text()
    usual = ("report_author=Ada", "set=report.title=Exercise")
    commands.ended("report", *usual)
    shown = (run / "report/index.html").read_text()
    commands.ended("report")
    assert '<h1>Exercise</h1>\n<p class="author">By Ada</p>' in shown
    assert (run / "report/index.html").read_text() == text


def test_again_changes_nothing_and_a_check_writes_nothing(commands, run, reported):
    folder = run / "report"
    before = contents(folder)
    assert not commands.ended("report").changed
    (folder / "README.md").unlink()
    checked = commands.ended("report", "--check")
    assert checked.changed
    assert "would write README.md" in checked.stdout
    assert not (folder / "README.md").exists()
    assert "written README.md\n" in commands.ended("report").stdout
    after = contents(folder)
    assert {name: content for name, (content, _) in after.items()} == {name: content for name, (content, _) in before.items()}
    assert {name for name in after if after[name] != before[name]} == {"README.md"}


def test_without_evaluating_the_command_is_named(commands, run, reported, unevaluated):
    write_tests(run, {1: 0.34}, images=60)
    shown = commands.ended("report", "evaluate=false").stdout
    command = "ansible-playbook evaluate.yml -e run=to-report -e epoch=2"
    assert f"test images of to-report  {command}" in shown
    assert command in (run / "report/README.md").read_text()


EVALUATES = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.command:
        argv: [python3, -c, {code}, "{{{{ run }}}}", "{{{{ epoch }}}}"]
"""
WRITES = """import sys
rows = [f"{epoch},test,1.0,0.5,60,1.0,2026-11-21" for epoch in sys.argv[2].split(",")]
open(f"runs/{sys.argv[1]}/evaluations.csv", "w").write("\\n".join(["epoch,split,loss,accuracy,images,seconds,evaluated_at", *rows, ""]))
"""


@pytest.mark.parametrize(("code", "epochs"), [(WRITES, [1, 2]), ("import sys; sys.exit(1)", [])])
def test_what_is_missing_is_evaluated_first(commands, run, reported, unevaluated, code, epochs):
    """By `evaluate.yml`, of which only the name and the variables count here; the report is also written if it fails."""
    playbook = commands.root / "evaluate.yml"
    kept = playbook.read_text()
    playbook.write_text(EVALUATES.format(code=json.dumps(code)))
    try:
        done = commands.ended("report")
    finally:
        playbook.write_text(kept)
    page = (run / "report/README.md").read_text()
    evaluated = [int(line.split(",")[0]) for line in unevaluated.read_text().splitlines()[1:]] if unevaluated.is_file() else []
    assert evaluated == epochs
    why = "to-report: its test images could not be evaluated, so the report lists what is missing; -e evaluate=false skips this."
    assert (why in done.stdout) == ("Not evaluated on the test images yet: epoch 1 (first" in page) == (not epochs)
    assert ("non-zero return code" in done.stdout) == (not epochs)


def test_the_report_of_a_model_that_classifies_nothing(commands):
    """Its validation loss counts."""
    given = (f"model={samples.COMPILED}:build", f"dataset={samples.COMPILED}:data", samples.UNEVEN, "epochs=2")
    run = samples.succeed(samples.launch(commands, "table", *given), best={"epoch": 2, "val_loss": 1.6})
    header = "epoch,loss,mae,val_loss,val_mae,learning_rate,seconds,images_per_s\n"
    (run / "history.csv").write_text(f"{header}1,2.0,1.1,1.9,1.2,0.01,2.0,200\n2,1.5,0.9,1.6,1.0,0.01,2.0,200\n")
    commands.ended("report", "run=table", "evaluate=false")
    page = (run / "report" / "README.md").read_text()
    assert "best validation loss" in page
    assert "is the most promising, with a validation loss of" in page
    assert "accuracy" not in page.replace("accuracy.yml", "")
