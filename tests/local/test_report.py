"""The report of a real run, and its page in Chromium: nothing asked for, nothing complained of, readable by day, by night, on a phone."""

import csv
import zipfile

import pytest

from control import plots
from control.report import facts, report
from tests import pages
from tests.project import ROOT
from tests.unit.report_samples import make_run, make_sweep, write_split

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
    plots.history(facts.read(runs[0]).history, sweep / "time_median.png")
    into = root / "made"
    into.mkdir()
    report.make(report.Request([facts.read(run) for run in runs], sweep, ROOT, []), into)
    return into / "index.html"


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts on", "scripts off"])
def test_the_page_asks_for_nothing_and_nothing_complains(browser, page, scripts):
    with pages.opened(browser, page.as_uri(), scripts=scripts) as shown:
        assert shown.page.title() == "Report: first and second"
        pictures = shown.page.evaluate("[...document.images].map(image => image.complete && image.naturalWidth)")
        assert len(pictures) == 5
        assert min(pictures) > 100
        assert (shown.errors, shown.asked, shown.failed) == ([], [], [])


def test_without_scripts_the_same_is_read(browser, page):
    texts = []
    for scripts in (True, False):
        with pages.opened(browser, page.as_uri(), scripts=scripts) as shown:
            texts.append(shown.text())
    assert texts[0] == texts[1]
    assert NASTY in texts[0]
    assert (
        "second (deep_cnn) reaches 62.00% test accuracy in its best epoch, first (task_cnn) 50.00%; these are images of different"
        in texts[0]
    )


def test_the_policy_stops_a_script_and_a_picture_of_elsewhere(browser, page, tmp_path):
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


def test_on_paper_the_dark_page_is_light(browser, page):
    with pages.opened(browser, page.as_uri(), dark=True, paper=True, width=720) as shown:
        assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert shown.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_does_not_scroll_sideways_its_tables_do(browser, page, width):
    with pages.opened(browser, page.as_uri(), width=width) as shown:
        assert shown.overflow() <= 0
        widest = shown.page.evaluate("Math.max(...[...document.querySelectorAll('.box')].map(box => box.scrollWidth - box.clientWidth))")
        assert widest > 0, "the wide table is to be reached inside its box"


@pytest.fixture(scope="module")
def reported(project, pictures):
    """A run of two epochs, and its report: what the tables lack is evaluated first."""
    small = "set=train.global_batch=20,train.steps_per_call=2,optimizer.learning_rate=0.005"
    project.play("train", "run=to-report", "config=task_cnn", f"dataset={pictures}", small, "epochs=2")
    return project.play("report", "run=to-report")


def evaluated(project):
    with (project.run("to-report") / "evaluations.csv").open() as stream:
        return [int(row["epoch"]) for row in csv.DictReader(stream)]


def test_a_report_evaluates_what_is_missing(project, reported):
    first, last = 1, 2
    assert evaluated(project) == [first, last]
    readme = (project.run("to-report") / "report/README.md").read_text()
    assert "which training never saw, accuracy is " in readme
    assert "Not evaluated" not in readme
    assert "2 workers of one machine" in readme
    assert "changed=1" in reported.stdout
    assert reported.stdout.partition("PLAY RECAP")[0].rstrip().endswith("ansible-playbook tensorboard.yml")


def test_the_zip_of_a_real_run_holds_the_trainer_that_ran(project, reported):
    with zipfile.ZipFile(project.run("to-report") / "report/to-report.zip") as stream:
        assert stream.testzip() is None
        names = set(stream.namelist())
    assert names >= {"README.md", "index.html", "code/trainer/loop.py", "code/train.yml", "runs/to-report/history.csv"}
    assert "code/control/runs/plan.py" in names, "the playbooks do nothing without it"
    assert sum(name.endswith(".keras") for name in names) == 1


def test_again_changes_nothing_and_a_check_writes_nothing(project, reported):
    folder = project.run("to-report") / "report"
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    assert "changed=0" in project.play("report").stdout
    (folder / "README.md").unlink()
    checked = project.play("report", "--check").stdout
    assert "changed=1" in checked
    assert "would write README.md" in checked
    assert not (folder / "README.md").exists()
    assert "written README.md\n" in project.play("report").stdout
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    assert {name: content for name, (content, _) in after.items()} == {name: content for name, (content, _) in before.items()}
    assert {name for name in after if after[name] != before[name]} == {"README.md"}


def test_without_evaluating_the_command_is_named(project, reported):
    table = project.run("to-report") / "evaluations.csv"
    kept = table.read_text()
    table.write_text("".join(kept.splitlines(keepends=True)[:2]))
    shown = project.play("report", "evaluate=false").stdout
    command = "ansible-playbook evaluate.yml -e run=to-report -e epoch=2"
    assert f"test images of to-report  {command}" in shown
    assert command in (project.run("to-report") / "report/README.md").read_text()
    assert evaluated(project) == [1]
    table.write_text(kept)


def test_what_can_not_be_evaluated_does_not_keep_the_report_from_being_written(project, reported):
    table, packs = project.run("to-report") / "evaluations.csv", project.root / ".lockstep/dfs/datasets"
    kept = table.read_text()
    table.unlink()
    packs.rename(packs.with_name("elsewhere"))
    try:
        done = project.play("report")
    finally:
        packs.with_name("elsewhere").rename(packs)
        table.write_text(kept)
    assert (
        "to-report: its test images could not be evaluated, so the report lists what is missing; -e evaluate=false skips this."
        in done.stdout
    )
    assert "Not evaluated on the test images yet: epoch 1 (first" in (project.run("to-report") / "report/README.md").read_text()


def test_a_run_that_does_not_exist(project, reported):
    done = project.play("report", "run=to-repot", check=False)
    assert done.returncode != 0
    assert "run=to-repot: no such run (did you mean to-report?); there are: " in done.stdout
