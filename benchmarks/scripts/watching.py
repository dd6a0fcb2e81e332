"""Cost of watching a training: images/s with `train.yml` until its end, and with `detach=true`, in alternating rounds.

    .venv/bin/python benchmarks/scripts/watching.py [--rounds 5] [ansible-playbook arguments, with -e epochs=N]

A detached training is left alone until it must have ended, by the time that the watched one of its round took; then the same command
collects it. Compared are the epochs from the second on, in which nobody watched a detached training.
"""

import statistics
import time

from benchmarks.scripts.launch_time import delete, play
from benchmarks.shared import epochs, script
from benchmarks.shared.script import ROOT

SPARE = 1.15
"""A detached training is given this many times the seconds of the watched one."""


def main() -> None:
    """Measure and print."""
    arguments, more = script.parser(__doc__, rounds=5).parse_known_args()
    rounds = []
    for number in range(arguments.rounds + 1):
        rounds.append(measured(f"watching-{number}", more))
        print(
            f"{'warm-up' if number == 0 else f'round {number}'}: {'  '.join(f'{name} {rate:,.0f}' for name, rate in rounds[-1].items())}",
            flush=True,
        )
    for name in ("watched", "detached"):
        rates = [each[name] for each in rounds[1:]]
        print(f"{statistics.median(rates):8,.0f} images/s ({min(rates):,.0f} to {max(rates):,.0f})  {name}")
    ratios = [each["watched"] / each["detached"] for each in rounds[1:]]
    print(f"{statistics.median(ratios):8.1%} ({min(ratios):.1%} to {max(ratios):.1%})  of detached, median of the rounds' ratios")


def measured(run: str, more: list[str]) -> dict[str, float]:
    """images/s of a watched training, and of the same one detached."""
    watched, detached = f"{run}-watched", f"{run}-detached"
    for each in (watched, detached):
        delete(ROOT, each, more)
    begun = time.monotonic()
    play(ROOT, "train.yml", watched, more)
    seconds = time.monotonic() - begun
    play(ROOT, "train.yml", detached, [*more, "-e", "detach=true"])
    time.sleep(seconds * SPARE)
    play(ROOT, "train.yml", detached, more)
    runs = {"watched": watched, "detached": detached}
    rates = {name: epochs.images_per_s(epochs.timed(ROOT / "runs" / run)) for name, run in runs.items()}
    for each in (watched, detached):
        delete(ROOT, each, more)
    return rates


if __name__ == "__main__":
    main()
