"""Results of the cells: table.md, summary.json, the picture, and the tables for the terminal. Needs no host."""

import json
from pathlib import Path
from typing import Any

from benchmarks.peer_results import peers_plot, peers_results
from benchmarks.peer_results.peers_results import Results
from benchmarks.shared.benchmark import MEASUREMENTS, ROWS
from control.campaign.store import SUMMARY
from control.common import project, text
from control.common.task import Task
from trainer.common.errors import LockstepError
from trainer.common.files import read_json, write_json, write_text


def conclude_peers(task: Task) -> dict[str, Any]:
    """Rewrites the results from results.csv."""
    peers = task.arguments["peers"]
    table = Path(peers["folder"]) / "table.md"
    before = table.read_text(encoding="utf-8") if table.is_file() else ""
    results = conclude(peers)
    if results is None:
        raise LockstepError(f"no system gave a number: {project.relative(Path(peers['folder']) / 'results.csv')} says why")
    changed = table.read_text(encoding="utf-8") != before
    return {"if_interrupted": None, "changed": changed, "show_last": _shown(results, peers)}


def conclude(peers: dict[str, Any]) -> Results | None:
    """Write table.md, summary.json and peers.png; None if nothing is measured yet."""
    folder = Path(peers["folder"])
    rows, measurements = peers_results.STORE.read(folder / ROWS), _measured(folder)
    if not any(row.measured for row in rows):
        return None
    results, record = Results(rows), dict(read_json(folder / SUMMARY))
    record["versions"] = _versions(measurements)
    record["sentences"] = peers_results.sentences(results)
    record["points"] = peers_results.summary(results)
    record["failures"] = peers_results.failures(results)
    write_json(folder / SUMMARY, record)
    write_text(folder / "table.md", peers_results.markdown(results, record, peers_results.parts(measurements)))
    peers_plot.draw(results, folder / "peers.png")
    return results


def _measured(folder: Path) -> list[dict[str, Any]]:
    """Measurements of the workers of every cell."""
    path = folder / MEASUREMENTS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def _versions(measurements: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """By system, the versions that its first worker last reported."""
    firsts = [(one["cell"].split("-", 3)[3], one["workers"][0]["result"]) for one in measurements]
    return {system: result["versions"] for system, result in firsts if result}


def _shown(results: Results, peers: dict[str, Any]) -> str:
    """Tables for one worker and for the most workers, a step's parts, sentences, failures, and the results' folder."""
    blocks = [peers_results.terminal_table(results, *block) for block in results.blocks if block[1] in (1, results.most)]
    blocks += peers_results.parts(_measured(Path(peers["folder"])))
    sentences = peers_results.sentences(results) + [f"failed: {one}" for one in peers_results.failures(results)]
    folder = project.relative(Path(peers["folder"]))
    pairs = [("all tables", f"{folder}/table.md"), ("picture", f"{folder}/peers.png"), ("measure more", f"{peers['again']}")]
    return "\n\n".join([*blocks, "\n".join(sentences), f"Next\n{text.fields(pairs)}"])
