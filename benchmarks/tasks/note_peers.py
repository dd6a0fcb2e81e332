"""Note which environment could not be set up on a host; the benchmark continues without it and reports why."""

from typing import Any

from control.task import Task


def note_peers(task: Task) -> dict[str, Any]:
    """Take the first host's reason. Adds to the fact `peers_missing`."""
    environment, results, missing = task.arguments["environment"], task.arguments["made"], task.arguments["missing"]
    failed = [str(result.get("msg", "no answer")) for result in results.values() if result.get("failed")]
    if not failed:
        return {}
    shown = f"{environment} can't be measured: {failed[0]}"
    return {"show": shown, "ansible_facts": {"peers_missing": {**missing, environment: failed[0]}}}
