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
    folder = Path(task.arguments["peers"]["folder"])
    before = _table(folder)
    shown = conclude(task.arguments["peers"])
    if shown is None:
        raise LockstepError(f"no system gave a number: {project.relative(folder / ROWS)} says why")
    return {"if_interrupted": None, "changed": _table(folder) != before, "show_last": shown}


def conclude(peers: dict[str, Any]) -> str | None:
    """Write table.md, summary.json and peers.png; the tables and sentences for the terminal, None if nothing is measured yet."""
    folder = Path(peers["folder"])
    rows, measurements = peers_results.STORE.read(folder / ROWS), _measured(folder)
    if not any(row.measured for row in rows):
        return None
    results, parts = Results(rows), peers_results.parts(measurements)
    record = {**read_json(folder / SUMMARY), "versions": _versions(measurements), "sentences": results.sentences()}
    record |= {"points": results.summary(), "failures": results.failures()}
    write_json(folder / SUMMARY, record)
    write_text(folder / "table.md", results.markdown(record, parts))
    peers_plot.draw(results, folder / "peers.png")
    blocks = [results.table(*block) for block in results.blocks if block[1] in (1, results.most)]
    sentences = "\n".join([*record["sentences"], *(f"failed: {one}" for one in record["failures"])])
    where = project.relative(folder)
    pairs = [("all tables", f"{where}/table.md"), ("picture", f"{where}/peers.png"), ("measure more", f"{peers['again']}")]
    return "\n\n".join([*blocks, *parts, sentences, f"Next\n{text.fields(pairs)}"])


def _measured(folder: Path) -> list[dict[str, Any]]:
    """Measurements of the workers of every cell."""
    path = folder / MEASUREMENTS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def _versions(measurements: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """By system, the versions that its first worker last reported."""
    firsts = [(one["cell"].split("-", 3)[3], one["workers"][0]["result"]) for one in measurements]
    return {system: result["versions"] for system, result in firsts if result}


def _table(folder: Path) -> str:
    """Text of table.md; empty if there is none."""
    path = folder / "table.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
