"""The root cause of a failed run, and what to try."""

from collections.abc import Sequence

from control.runs.results import outcome
from control.runs.results.outcome import Verdict
from trainer.common.errors import signal_of

ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
NATIVE = ("SIGSEGV", "SIGILL")


def failure(verdicts: Sequence[Verdict]) -> str:
    """The root cause: first failing host, rank, exit code, its last lines; then what happened to the others. Empty if none failed."""
    cause = outcome.root_cause(verdicts)
    if cause is None:
        return ""
    lines = [f"First failure: {cause.host} (rank {cause.rank}){_ended(cause, ', ')}", *_crash_hint(cause)]
    if cause.message:
        lines.append(f"  {cause.message}")
    if cause.last_lines:
        lines += [f"  last lines of {cause.host}/worker.log:", *(f"    {line}" for line in cause.last_lines)]
    lines += [f"  {other.host} (rank {other.rank}){_ended(other, ': ')}" for other in verdicts if other is not cause]
    return "\n".join(lines)


def _ended(verdict: Verdict, otherwise: str) -> str:
    """How a worker ended, or the state in which it was left, after `otherwise`."""
    words = verdict.failure.words
    return f" {words}" if words else f"{otherwise}{verdict.state}"


def _crash_hint(cause: Verdict) -> list[str]:
    """Advice after a crash of native code."""
    lines = ["  The previous launch ended the same way; continued as it is, the run will end like that again."] if cause.again else []
    if signal_of(cause.exit_code) not in NATIVE:
        return lines
    if option := without_onednn(cause.exit_code, cause.environment):
        return [
            *lines,
            "  Native code crashed. oneDNN, TensorFlow's library for CPUs, crashes with some layers (strided 1x1 convolutions).",
            f"  Fix: train without it: -e {option}, or worker_environment: {{{ONEDNN}: 0}} in the inventory",
        ]
    return [*lines, f"  Native code crashed, but not in oneDNN ({ONEDNN}=0 is set). Fix: check what the model's own code calls"]


def without_onednn(exit_code: int | None, environment: dict[str, str] | None) -> str:
    """The option that continues a run without oneDNN after native code crashed; empty if that does not help."""
    tried = (environment or {}).get(ONEDNN) == "0"
    return f"set=train.environment.{ONEDNN}=0" if signal_of(exit_code) in NATIVE and not tried else ""


def signal_name(code: int) -> str:
    """` (killed by SIGKILL)` for a shell's exit code 137, otherwise empty."""
    name = signal_of(code)
    return f" (killed by {name})" if name else ""
