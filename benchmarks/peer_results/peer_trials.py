"""Plan of `benchmarks/peers.yml`: the systems, and the cells, measured one after another. Pure functions.

A cell is one system on a number of workers at one link rate in one round. Rounds are randomised blocks, as in a
sweep (`control.sweep.scaling.design`): all systems see the same machine, in an order drawn from the seed.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from control.common.operator_variables import integer
from control.lab import lab_inventory
from control.sweep.scaling import design
from trainer.common.errors import ConfigError
from trainer.common.suggest import nearest

COMMAND = "benchmarks/peers"

OWN, TORCH, HOROVOD = "own", "torch", "horovod"
"""Environments: this project's, and one per peer framework."""
OURS, IDEAL, BOUND, PEER = "ours", "ideal", "bound", "peer"
REDUCED = (OURS, PEER)
"""Kinds whose workers end with equal weights; the other kinds show the limits of these."""
ANY, ONE, SEVERAL = "any", "one", "several"
NO_LIMIT = "none"
LAB_LINKS = f"{NO_LIMIT},1gbit,100mbit"
HALF = '{"reduction": {"name": "half"}}'
BALANCED = '{"train": {"batch_sizes": "auto"}}'
PROCESS = {TORCH: {"MALLOC_TRIM_THRESHOLD_": 2**32, "MALLOC_MMAP_THRESHOLD_": 2**31}}
"""Environment of a system's processes: PyTorch is faster if freed memory is not returned at every step, TensorFlow is not."""
CHUNK = 8
"""Steps that a program runs before it reads the clock (`common.CHUNK`)."""
TRAIN = "train.yml"
"""Program of a system that is this project's own command; its variant is what `-e set=` is given besides."""
UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


@dataclass(frozen=True)
class System:
    """One of the compared systems."""

    name: str
    kind: str
    environment: str
    program: str
    """Its file in benchmarks/peers."""
    variant: str
    """The variant that the program runs."""
    title: str
    workers: str = ANY
    """Numbers of workers with which it is measured."""
    default: bool = True


def _powersgd(rank: int) -> System:
    variant = f'{{"reduction": {{"name": "powersgd", "rank": {rank}}}}}'
    return System(f"lockstep-powersgd-{rank}", OURS, OWN, "lockstep", variant, f"this project, PowerSGD rank {rank}", default=rank == 2)


SYSTEMS = {
    system.name: system
    for system in (
        System("lockstep", OURS, OWN, "lockstep", "{}", "this project, its reduction chosen by itself (`auto`)"),
        System("lockstep-packed", OURS, OWN, "lockstep", '{"reduction": {"name": "packed"}}', "this project, float32"),
        System("lockstep-half", OURS, OWN, "lockstep", HALF, "this project, 16 bits on the wire", default=False),
        System("lockstep-balanced", OURS, OWN, "lockstep", BALANCED, "this project, a batch for each host by its speed", default=False),
        *map(_powersgd, (1, 2, 4, 8)),
        System("train", OURS, OWN, TRAIN, "", "`train.yml` itself, watched to its end; its second epoch, from a published data set"),
        System("train-unprofiled", OURS, OWN, TRAIN, "telemetry.profile_every=0", "the same without profiled steps", default=False),
        System("ideal", IDEAL, OWN, "lockstep", "ideal", "the same hosts at once, nothing reduced", SEVERAL),
        System("in-step", BOUND, OWN, "lockstep", "in-step", "the same hosts in step, 16 bytes summed twice", SEVERAL, False),
        System("lockstep-parts", BOUND, OWN, "lockstep", "parts", "this project, with what its parts take", SEVERAL, False),
        System("lockstep-profiled", BOUND, OWN, "lockstep", "profiled", "float32, every 8th step profiled", SEVERAL, False),
        System("stock", PEER, OWN, "stock", "", "TensorFlow MultiWorkerMirroredStrategy, Keras SGD"),
        System("stock-loop", PEER, OWN, "stock", "loop", "the same, 8 steps per traced call"),
        System("keras-fit", PEER, OWN, "keras_fit", "", "Keras fit", ONE),
        System("keras-fit-loop", PEER, OWN, "keras_fit", "loop", "Keras fit, 8 steps per execution", ONE),
        System("ddp", PEER, TORCH, "torch_ddp", "", "PyTorch DDP on Gloo (one worker: plain PyTorch)"),
        System("ddp-fp16", PEER, TORCH, "torch_ddp", "fp16", "PyTorch DDP, fp16_compress_hook", SEVERAL),
        System("ddp-powersgd", PEER, TORCH, "torch_ddp", "powersgd", "PyTorch DDP, PowerSGD hook rank 2", SEVERAL),
        System("horovod", PEER, HOROVOD, "horovod_tf", "", "Horovod on Gloo, TensorFlow 2.13"),
        System("horovod-fp16", PEER, HOROVOD, "horovod_tf", "fp16", "Horovod, Compression.fp16", SEVERAL),
        System("horovod-loop", PEER, HOROVOD, "horovod_tf", "loop", "Horovod, 8 steps per traced call", SEVERAL),
        System("horovod-loop-fp16", PEER, HOROVOD, "horovod_tf", "loop-fp16", "the same, Compression.fp16", SEVERAL),
    )
}


@dataclass(frozen=True)
class Settings:
    """Settings of all cells; results with other settings can't be compared."""

    steps: int = 40
    warm_up: int = 16
    seconds: int = 20
    batch: int = 64
    threads: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The settings among a command's variables; ConfigError if steps are not in whole groups."""
        chosen = cls(**{name: integer(name, options[name]) for name in cls.__dataclass_fields__ if name in options})
        for name, least in (("steps", CHUNK), ("warm_up", 2 * CHUNK)):
            number = getattr(chosen, name)
            if number % CHUNK or number < least:
                raise ConfigError(f"{name}={number}: every system takes {CHUNK} steps at a time; give a multiple of {CHUNK}, from {least}")
        return chosen


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    round: int
    link: str
    workers: int
    system: str

    @property
    def key(self) -> str:
        """Name of the cell's files."""
        return f"r{self.round}-{self.link}-{self.workers}-{self.system}"

    def arguments(self, rank: int, addresses: Sequence[str], common: Settings, threads: int) -> list[str]:
        """The command line of a peer program, without the interpreter and the result file."""
        numbers = {"rank": rank, "steps": common.steps, "warm-up": common.warm_up, "seconds": common.seconds, "batch": common.batch}
        named = [part for name, value in {**numbers, "threads": threads}.items() for part in (f"--{name}", str(value))]
        return [*named, "--addresses", ",".join(addresses), "--variant", SYSTEMS[self.system].variant]


@dataclass(frozen=True)
class Wanted:
    """The user's request."""

    workers: tuple[int, ...]
    links: tuple[str, ...]
    """Link rates as `tc` writes them, or `none`; each once, in the order given."""
    systems: tuple[str, ...]
    """In the table's order."""
    rounds: int
    seed: int

    @classmethod
    def of(cls, options: Mapping[str, Any], hosts: int, is_lab: bool) -> Self:
        """The request in a command's variables; ConfigError if it needs more than `hosts`, the number of hosts."""
        workers = design.numbers("workers", options.get("workers", f"1-{hosts}"))
        if max(workers) > hosts:
            raise ConfigError(f"workers={options.get('workers')}: the inventory has {hosts} hosts; add hosts or ask for fewer")
        asked = str(options.get("links", LAB_LINKS if is_lab else NO_LIMIT))
        links = tuple(dict.fromkeys(lab_inventory.link_rate(part.strip()) for part in asked.split(",")))
        if not is_lab and links != (NO_LIMIT,):
            raise ConfigError(
                f"links={options['links']}: only the lab's links can be limited (ansible-playbook lab.yml makes one); "
                "on other hosts measure them as they are: omit links, or -e links=none"
            )
        rounds, seed = integer("rounds", options.get("rounds", 3)), integer("seed", options.get("seed", 1))
        return cls(workers, links, _systems(options.get("systems")), rounds, seed)

    def cells(self) -> list[Cell]:
        """All cells in order of round, link and number of workers; only the order of the systems is random."""
        blocks = itertools.product(range(1, self.rounds + 1), self.links, self.workers)
        if every := [cell for block in blocks for cell in self._block(*block)]:
            return every
        several = self.workers == (1,)
        raise ConfigError(
            f"systems={','.join(self.systems)}: measured with {'several workers' if several else 'one worker'} only, and workers is "
            f"{','.join(map(str, self.workers))}; add {'-e workers=2 or more' if several else '-e workers=1'}, or other systems"
        )

    def _block(self, number: int, link: str, workers: int) -> list[Cell]:
        """One block of a round: all systems under the same conditions, in random order.

        A single worker sends nothing, so it is measured only at the first link, and one variant of this project stands for all.
        """
        if workers == 1 and link != self.links[0]:
            return []
        names = [name for name in self.systems if SYSTEMS[name].workers in (ANY, ONE if workers == 1 else SEVERAL)]
        if workers == 1:
            ours = [name for name in names if SYSTEMS[name].kind == OURS]
            names = [name for name in names if name not in ours[1:]]
        random.Random(f"{self.seed}/{number}/{link}/{workers}").shuffle(names)
        return [Cell(number, link, workers, name) for name in names]


def _systems(given: Any) -> tuple[str, ...]:
    """Names of the systems to measure."""
    if given is None:
        return tuple(name for name, system in SYSTEMS.items() if system.default)
    names = [part.strip() for part in str(given).split(",")]
    for name in names:
        if name not in SYSTEMS:
            raise ConfigError(f"systems={given}: {name} is unknown{nearest(name, SYSTEMS)}; there are: {', '.join(SYSTEMS)}")
    return tuple(name for name in SYSTEMS if name in names)


def bits_per_s(link: str) -> float | None:
    """A link's rate; None if it has no limit."""
    if link == NO_LIMIT:
        return None
    number = link.removesuffix("bit").rstrip("kmg")
    return float(number) * UNITS[link.removesuffix("bit").removeprefix(number)]
