"""A benchmark on one host, before and after its passes: the refusal of a busy host; a table, a sentence, a picture, files."""

from typing import Any

from benchmarks.node_results import inference_results, loader_results
from benchmarks.node_results.passes import Machine
from benchmarks.shared import benchmark
from control.campaign.store import SUMMARY
from control.common import project, text
from control.common.task import Task
from trainer.common.errors import LockstepError
from trainer.common.files import write_json, write_rows


def check_host(task: Task) -> dict[str, Any]:
    """Refuse a host that can't be measured now, by what the probe found."""
    host, looked = task.arguments["host"], task.arguments["looked"]
    if "facts" not in looked:
        raise LockstepError(f"{host}: {looked.get('msg', 'no answer')}")
    facts = looked["facts"]
    if "error" in facts["python"]:
        raise LockstepError(f"{host}: {facts['python']['path']} {facts['python']['error']}; make it: ansible-playbook provision.yml")
    if facts["port"]["state"] == "held":
        run = facts["port"]["run"]
        raise LockstepError(
            f"{host}: run={run} trains there, and times taken beside it would be wrong; wait for its end, or stop it: "
            f"ansible-playbook stop.yml -e run={run}"
        )
    return {}


def conclude(task: Task) -> dict[str, Any]:
    """Write `benchmarks/results/<name>/`, and show the conclusion."""
    bench, timed = task.arguments["bench"], task.arguments["timed"]
    host, folder = Machine(task.arguments["host"], task.arguments["facts"]), benchmark.RESULTS / bench["name"]
    results = loader_results if bench["kind"] == "loader" else inference_results
    concluded, warning = results.conclude(bench, timed, host.record["cpus"]), host.disturbed(timed["rows"])
    rows = [{key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()} for row in timed["rows"]]
    record = {
        "benchmark": bench["kind"],
        "date": bench["date"],
        "command": bench["command"],
        "host": host.record,
        "trainer": bench["code_name"],
        "passes": bench["settings"]["passes"],
        "results": [group.record() for group in concluded.groups],
        **concluded.record,
        "answer": " ".join(concluded.sentences),
        "warning": warning or None,
    }
    write_rows(folder / benchmark.ROWS, list(rows[0]), rows)
    write_json(folder / SUMMARY, record)
    concluded.draw(str(host), folder / f"{bench['kind']}.png")
    where = project.relative(folder)
    files = [("results", f"{where}/results.csv, {where}/summary.json"), ("picture", f"{where}/{bench['kind']}.png")]
    sentences = "\n".join([*concluded.sentences, warning]).rstrip()
    following = text.next_commands([concluded.following, ("once more", bench["command"])])
    return {"changed": True, "show_last": "\n\n".join([str(host), concluded.table(), sentences, text.fields(files), following])}
