"""Sections of a report that describe a run: the model, its hosts, its result, the parts of a step."""

from typing import Any

import yaml

from control.common import host_names
from control.common.text import count, listed
from control.report.blocks import File, Picture, Section, Table, Text, code, percent, plain, spent
from control.report.facts import Run
from control.report.own_files import OwnFiles
from control.report.settings import Settings
from control.runs.results import step_profile
from control.runs.results.run_folder import RunFolder
from control.runs.results.summary import Summary
from control.runs.show import result_text
from trainer.data.spec import Spec
from trainer.rundir.best_epoch import RESTORED
from trainer.rundir.launch_record import Host, training

SHOWN_CLASSES = 20
LONGEST_FILE = 50_000
"""Most characters of a file that a page shows; the zip also has longer files."""


def sections(run: Run) -> list[Section]:
    """Sections on the trained model and on its hosts."""
    return [
        Section("What was trained", [Text([_model(run), _data(run)]), Text([_settings(run)]), Text(_outcome(run))]),
        Section("Hosts", [Text([_together(run)]), _hosts(run)]),
    ]


def configuration(run: Run, own: OwnFiles) -> list[Section]:
    """The user's own files, and config.yml without them."""
    shown = {name: one.text for name, one in own.files.items() if len(one.text) <= LONGEST_FILE}
    config = yaml.safe_dump(_without_code(run.config), sort_keys=False, allow_unicode=True)
    files = Section("Code", [File(own.folder + name, text) for name, text in shown.items()])
    return [*([files] if shown else []), Section("Configuration", [File(f"runs/{run.name}/config.yml", config)])]


def _without_code(value: Any) -> Any:
    """A configuration, or a value in it, with a word in place of the texts of the user's files."""
    if not isinstance(value, dict):
        return value
    is_code = "source" in value and "function" in value
    return {key: "(a file)" if is_code and (key == "source" or key.endswith(".py")) else _without_code(one) for key, one in value.items()}


def _model(run: Run) -> str:
    parameters = run.record.parameters
    free = "all of them" if parameters["trainable"] == parameters["total"] else f"{parameters['trainable']:,} of them"
    size = "x".join(str(side) for side in run.config["data"]["image_size"])
    model = f"the model {code(run.model)} with {parameters['total']:,} parameters, {free} trainable"
    on = "columns" if "spec" in run.record.dataset else f"images of {size}"
    return f"{code(run.name)} trained {model}, on {on}."


def _data(run: Run) -> str:
    dataset, counts = run.record.dataset, run.record.counts
    classes = dataset["classes"]
    more = len(classes) - SHOWN_CLASSES
    named = listed([*map(plain, classes[:SHOWN_CLASSES]), *([f"{more} more"] if more > 0 else [])])
    columns, noun = "spec" in dataset, f"{run.noun}s"
    leaves = listed([code(str(leaf)) for leaf in Spec.from_json(dataset["spec"]).leaves[:SHOWN_CLASSES]]) if columns else ""
    shown = f"{len(classes)} classes ({named})" if classes else f"examples of {leaves}"
    verb = "was" if dataset.get("left_out") == 1 else "were"
    return (
        f"The dataset {code(dataset['name'])} has {shown}: "
        f"{counts['train_images']:,} {noun} were used for training, {counts['validation_images']:,} for validation, "
        f"and {dataset['test']:,} are held out for testing (digest {code(dataset['digest'][:16])})."
        + (f" {count(dataset['left_out'], 'image')} that can't be read {verb} left out." if dataset.get("left_out") else "")
    )


def _settings(run: Run) -> str:
    counts = run.record.counts
    settings = Settings(run)
    precision = settings.effective["train.precision"]
    return (
        f"A step took {count(min(counts['global_batch'], counts['train_images']), run.noun)} over {count(counts['workers'], 'worker')}, "
        f"an epoch {count(counts['steps_per_epoch'], 'step')}{settings.passes}; the optimizer was {settings.optimizer}; "
        f"{f'{settings.augmentation}; ' if run.noun == 'image' else ''}{settings.reduction}; "
        f"{'' if precision == 'float32' else f'the precision was {code(precision)}; '}the seed was {run.config['seed']}."
    )


def _outcome(run: Run) -> list[str]:
    summary = run.summary
    if not run.ended:
        look = code(f"ansible-playbook status.yml -e run={run.name}")
        return [f"No outcome is recorded yet, so all figures cover the epochs so far; {look} collects what the hosts have."]
    epochs = count(summary.epochs or run.record.counts["epochs"], "epoch")
    epochs = f"{run.last['epoch'] if summary.epochs_done is None else summary.epochs_done} of {epochs}"
    steps = "" if summary.steps is None else f", {count(summary.steps, 'step')}"
    early = [f"It ended early: {plain(why)}." for _, why in result_text.early(summary)]
    return [f"State: {summary.state}, {epochs}{steps}.", *early, *_failure(summary), *_time(summary, run.noun), *_weights(summary)]


def _failure(summary: Summary) -> list[str]:
    failure = summary.failure
    if not failure:
        return []
    message = f": {plain(failure.message)}" if failure.message else ""
    return [f"The first failure was on {code(failure.host)} (rank {failure.rank}){message}."]


def _time(summary: Summary, noun: str) -> list[str]:
    """Text on the training time of all launches, and the duration of the last by the clock of the machine where Enter was pressed."""
    if not summary.seconds_training:
        return []
    rate = f", at {summary.images_per_s:,.0f} {noun}s/s in training steps" if summary.images_per_s else ""
    again = f" in {summary.restarts + 1} launches" if summary.restarts else ""
    trained = f"It trained for {spent(summary.seconds_training)}{again}, with validation and saving{rate}."
    launch = summary.launch
    if not launch:
        return [trained]
    which = "the last launch" if summary.restarts else "the command"
    return [trained, f"From Enter to the {launch['until']}, {which} took {spent(launch['seconds_from_enter'])}."]


def _weights(summary: Summary) -> list[str]:
    ranks = summary.weights_sha256_by_rank
    if not ranks:
        return []
    if len(set(ranks)) > 1:
        return [f"The {count(len(ranks), 'worker')} ended with different weights, which must not happen."]
    same = f"The {len(ranks)} workers ended with equal weights" if len(ranks) > 1 else "The weights at the end"
    return [f"{same} (SHA-256 {code(ranks[0][:16])})."]


def _place(run: Run) -> str:
    """Text on the place of the training: `5 hosts`, or `2 workers of one machine`."""
    hosts = run.record.hosts
    return f"{len(training(run.record.hosts))} workers of one machine" if _here(run) else count(len(hosts), "host")


def _here(run: Run) -> bool:
    return host_names.on_one_machine([host.label for host in run.record.hosts])


def _together(run: Run) -> str:
    hosts = run.record.hosts
    kinds = {(host.cpu, host.machine, host.cores) for host in hosts}
    versions = {(host.python, tuple(sorted(host.packages.items()))) for host in hosts}
    same = "" if _here(run) else ", all of one kind" if len(kinds) == 1 else f", of {len(kinds)} kinds"
    alike = "the same versions" if len(versions) == 1 else "different versions"
    return f"It ran on {_place(run)}." if len(hosts) == 1 else f"It ran on {_place(run)}{same}, with {alike} of Python and its packages."


def _hosts(run: Run) -> Table:
    header = ["rank", "host", "address", "processor", "cores", "threads", "Python", "TensorFlow", "Keras"]
    return Table(f"The hosts of {code(run.name)}, in the order of rank", header, [_host(host) for host in run.record.hosts])


def _host(host: Host) -> list[str]:
    engine = next((version for name, version in host.packages.items() if name.startswith("tensorflow")), None)
    values = [host.rank, host.name, f"{host.address}:{host.port}", f"{host.cpu or '-'} ({host.machine or '-'})"]
    values += [host.cores, host.threads or None, host.python or None, engine, host.packages.get("keras")]
    return ["-" if value is None else str(value) for value in values]


def short(run: Run) -> str:
    """One sentence on the run."""
    seconds = run.summary.seconds_training
    took = f" in {spent(seconds)} of training" if seconds else ""
    state = run.summary.state or "no outcome recorded"
    trained = f"{code(run.model)} ({run.record.parameters['total']:,} parameters)"
    return (
        f"{code(run.name)} trained {trained} for {count(run.last['epoch'], 'epoch')} on {_place(run)}{took}: {state}, "
        f"{_best(run)} in epoch {run.best['epoch']}{_restored(run)}."
    )


def _restored(run: Run) -> str:
    """Text on the origin of the best epoch's weights, if a callback restored them."""
    if RESTORED not in run.best:
        return ""
    epoch, by = run.best[RESTORED], plain(run.summary.restored_by)
    return f", whose weights are those of epoch {epoch:.0f}, which {by} restored" if epoch else f", as {by} left it"


def _best(run: Run) -> str:
    if run.classifies:
        return f"best validation accuracy {percent(run.best['val_accuracy'])}"
    decides = run.monitor
    return f"best {decides.label} {run.best[decides.metric]:.4f}" if decides.metric in run.best else "the best"


def steps(run: Run) -> list[Section]:
    """One section on the phases of a step; none if no step was profiled."""
    hosts = run.step_medians
    if not hosts:
        return []
    number = sum(len(records) for records in step_profile.read_profiles(run.folder).values())
    how = f"{count(number, 'step')} of all hosts together were profiled and timed phase by phase; the figures are medians."
    slow = RunFolder(run.folder).straggler
    sentences = [sentence for sentence in (step_profile.sentence(hosts), slow and f"{plain(slow)}.", how) if sentence]
    rows = [[host, *(f"{value:,.1f}" for value in step_profile.columns(phases))] for host, phases in hosts.items()]
    table = Table(f"A step of {code(run.name)} in milliseconds", step_profile.HEADER, rows)
    alt = f"Bars of the milliseconds that each phase of a step takes on {count(len(hosts), 'host')} of {run.name}."
    return [Section("What a step was made of", [Text(sentences), table, Picture(run.picture("split"), alt)])]
