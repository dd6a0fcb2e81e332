"""The plan of a run, as it travels from the command to every task, and through Ansible's facts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.rundir.launch_record import Host


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run: where it is kept, its hosts, its configuration, its sizes. A run that was found has only what its record says."""

    run: str
    folder: Path
    """Run directory on the control node."""
    run_kind: str = "runs"
    """Where a command keeps its runs, as in `project.runs_folder`."""
    command: str = ""
    """The playbook, as `train` or `playbooks/slurm`."""
    typed: str = ""
    """The command's variables as a user would type them."""
    nonce: str = ""
    """Identifier of this launch, 32 hex digits."""
    ticket: str = ""
    """Place in the queue of a run that waits for its turn."""
    resume: bool = False
    complete: bool = False
    """Nothing is left to do."""
    elsewhere: str = ""
    """The command, for a run without a record on this machine; `done` if nothing is left to do."""

    config_name: str = ""
    differing: Sequence[str] = ()
    """Settings that differ from those of the named configuration, as `train.epochs=3`."""
    choice: dict[str, Any] | None = None
    """The configuration that the dataset has chosen (`preset.Choice`)."""
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved configuration; empty for a script."""
    config_yaml: str = ""
    asked_yaml: str = ""
    """The configuration before hosts and dataset fill in its sizes."""

    hosts: Sequence[Host] = ()
    """The hosts that train, by rank."""
    spares: Sequence[Host] = ()
    apart: Sequence[Host] = ()
    """Hosts among `hosts` that neither hand out steps nor compute any, in an asynchronous run, as the inventory names them."""
    counts: dict[str, Any] = field(default_factory=dict)
    """Sizes (`schedule.Counts`); empty for a script."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Parameters of the model: `total` and `trainable`."""
    compiled: dict[str, Any] | None = None
    """Optimizer, loss and metrics with which the model's own function compiled it."""
    weights: dict[str, Any] | None = None
    """The file of the first weights, and the layers without any from there."""
    class_weights: str = ""
    needs: dict[str, Any] = field(default_factory=dict)
    """Memory and disk on a host, MB (`host_needs.needs`)."""
    dataset: dict[str, Any] = field(default_factory=dict)
    code: str = ""
    """Digest of the trainer's package, 16 digits of `code_sha256`; the name of the file once published."""
    code_sha256: str = ""
    expected_digest: str | None = None
    """Digest of the dataset that the run began with."""
    kept: dict[str, Any] = field(default_factory=dict)
    """Earlier measurements that the run is given (`kept_choices`)."""

    roles: str = ""
    """Roles of the hosts of an asynchronous run, in words."""
    gradients: str = ""
    """How gradients are sent, in words."""
    divided: str = ""
    """How a batch is divided, in words."""
    changes: Sequence[str] = ()
    """Options that differ from what the run has begun with."""
    warnings: Sequence[str] = ()

    script: dict[str, Any] = field(default_factory=dict)
    """The user's own script, which runs in the place of the trainer."""
    slurm: dict[str, Any] = field(default_factory=dict)
    """The folder of the run's Slurm jobs, and the last one's number."""
    logs: dict[str, Any] = field(default_factory=dict)
    """Files and hosts for logs.yml."""

    def with_posts(self, posts: Sequence[Host]) -> "Plan":
        """The plan with other `posts`, as many."""
        return replace(self, hosts=posts[: len(self.hosts)], spares=posts[len(self.hosts) :])

    @property
    def posts(self) -> list[Host]:
        """The hosts that train, by rank, then the spares."""
        return [*self.hosts, *self.spares]
