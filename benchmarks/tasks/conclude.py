"""Results of a benchmark's passes: a table, a sentence, a picture, files on the control node."""

from typing import Any

from benchmarks.node_results import inference_results, loader_results, passes
from benchmarks.shared import benchmark
from control.common import project, text
from control.common.task import Task


def conclude(task: Task) -> dict[str, Any]:
    """Writes `benchmarks/results/<name>/`."""
    bench, timed = task.arguments["bench"], task.arguments["timed"]
    host = passes.machine(task.arguments["host"], task.arguments["facts"])
    concluded = (
        loader_results.conclude(bench, timed) if bench["kind"] == "loader" else inference_results.conclude(bench, timed, host["cpus"])
    )
    warning, folder = passes.disturbed(host, timed["rows"]), benchmark.RESULTS / bench["name"]
    record = {
        "benchmark": bench["kind"],
        "date": bench["date"],
        "command": bench["command"],
        "host": host,
        "trainer": bench["code_name"],
        "passes": bench["settings"]["passes"],
        "results": [group.record() for group in concluded.groups],
        **concluded.record,
        "answer": " ".join(concluded.sentences),
        "warning": warning or None,
    }
    passes.write(folder, timed["rows"], record)
    passes.draw(concluded.groups, concluded.picture, passes.about(host), folder / f"{bench['kind']}.png")
    where = project.relative(folder)
    files = [("results", f"{where}/results.csv, {where}/summary.json"), ("picture", f"{where}/{bench['kind']}.png")]
    sentences = "\n".join([*concluded.sentences, warning]).rstrip()
    following = text.next_commands([concluded.following, ("once more", bench["command"])])
    parts = [passes.about(host), passes.shown(concluded.groups, concluded.unit), sentences, text.fields(files), following]
    return {"changed": True, "show_last": "\n\n".join(parts)}
