"""benchmarks/peers.yml with the programs of this project's own environment: ended half-way, continued, concluded."""

import csv
import json
import signal
import subprocess

import pytest

from tests.project import EXHAUSTIVE, SLOWEST, await_during, await_until

ASKED = ("peers=few", "workers=1,2", "rounds=1", "steps=8", "systems=lockstep,ideal,stock-loop,keras-fit-loop")


def sessions() -> str:
    done = subprocess.run(["tmux", "-L", "lockstep", "list-sessions", "-F", "#S"], capture_output=True, text=True, check=False)
    return done.stdout


@EXHAUSTIVE  # its cells: tests/unit/benchmarks/test_peers_lockstep.py; its plans: test_planned.py there
@pytest.mark.alone
def test_it_measures_ends_cleanly_and_goes_on(project):
    folder = project.root / "benchmarks" / "results" / "few"
    process = project.start("benchmarks/peers", *ASKED)
    measured = folder / "results.csv"
    await_during(process, measured.is_file, 180, "the first cell")
    await_during(process, lambda: "peers=-w0" in sessions(), 60, "the next cell is under way")
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=120 * SLOWEST)[0]
    assert process.returncode != 0, output
    await_until(lambda: "peers=-w" not in sessions(), 60, "its sessions are ended")

    done = project.play("benchmarks/peers", *ASKED, timeout=600)
    rows = list(csv.DictReader(measured.open()))
    assert {(row["workers"], row["system"]) for row in rows} == {
        *(("1", name) for name in ("lockstep", "stock-loop", "keras-fit-loop")),
        *(("2", name) for name in ("lockstep", "ideal", "stock-loop")),
    }
    assert [row["reason"] for row in rows if row["state"] != "measured"] == []
    assert all(row["weights_equal"] == "True" for row in rows if row["system"] != "ideal")
    summary = json.loads((folder / "summary.json").read_text())
    assert len(summary["sentences"]) == 2
    assert "2 workers, links unlimited: lockstep" in done.stdout
    assert (folder / "peers.png").read_bytes().startswith(b"\x89PNG")
    assert "peers=-w" not in sessions()
