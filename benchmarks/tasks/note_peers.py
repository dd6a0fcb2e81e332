"""Note which environment could not be set up on a host; the benchmark continues without it and reports why."""

from typing import Any

from control.task import Task


class NotePeers(Task):
    """Adds to the fact `peers_missing`."""

    def act(self) -> dict[str, Any]:
        """Take the first host's reason."""
        environment, results, missing = self.arguments["environment"], self.arguments["made"], self.arguments["missing"]
        failed = [str(result.get("msg", "no answer")) for result in results.values() if result.get("failed")]
        if not failed:
            return {}
        shown = f"{environment} can't be measured: {failed[0]}"
        return {"show": shown, "ansible_facts": {"peers_missing": {**missing, environment: failed[0]}}}
