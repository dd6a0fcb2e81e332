"""Environment variables for workers: which may be given, and that the start script passes them on as they are."""

import os
import subprocess

import jinja2
import pytest

from control.common import configurations, worker_environment
from control.runs.hosts.inventory_hosts import cluster_hosts
from control.runs.planning.host_choice import with_environment
from plugins.filter.lockstep import FilterModule
from tests.unit.conftest import ROOT
from trainer.common.errors import ConfigError
from trainer.common.plain_values import to_plain
from trainer.rundir.launch_record import Host

NASTY = "a b'c\"d$(touch hacked)`touch hacked`\\n;&|\n#é{{ 1 }}"


def built(given):
    return configurations.build({"train": {"environment": given}}).train.environment


def refusal(given, of_host=False):
    with pytest.raises(ConfigError) as caught:
        _ = worker_environment.of_host(given, "pi1") if of_host else built(given)
    return str(caught.value)


def test_values_become_texts():
    assert built({"TF_ENABLE_ONEDNN_OPTS": 0, "A": "x", "_b": 1.5}) == {"TF_ENABLE_ONEDNN_OPTS": "0", "A": "x", "_b": "1.5"}
    assert built({}) == {}
    assert configurations.build(
        configurations.override({}, configurations.parse_set("train.environment.A=0,train.environment.B=x"))
    ).train.environment == {
        "A": "0",
        "B": "x",
    }


def test_one_more_variable_leaves_others_and_file_alone():
    raw = {"train": {"environment": {"A": "1"}}}
    assert configurations.override(raw, {"train.environment.B": 2}) == {"train": {"environment": {"A": "1", "B": 2}}}
    assert raw == {"train": {"environment": {"A": "1"}}}


@pytest.mark.parametrize("given", [{"A": True}, {"A": None}, {"A": [1]}, {1: "x"}, ["A"], "A=1"])
def test_what_maps_no_names_to_texts_is_refused(given):
    assert refusal(given) == f"train.environment: {given!r} is not a mapping of names to texts or numbers"
    assert refusal(given, of_host=True).startswith(
        f"worker_environment of pi1: {given!r} is not a mapping of names to texts or numbers, as in"
    )


@pytest.mark.parametrize("name", ["", "1A", "A B", "A-B", "A=B", "A;touch hacked", "$(x)", "A\n", "Ä", "A.B"])
@pytest.mark.parametrize("of_host", [True, False])
def test_bad_names_are_refused(name, of_host):
    assert "is no name of an environment variable; it must be letters, digits and _, no digit first" in refusal({name: "1"}, of_host)


@pytest.mark.parametrize("name", [*worker_environment.OURS, "IFS", "BASH_ENV", "SHELLOPTS", "UID", "PPID"])
@pytest.mark.parametrize("of_host", [True, False])
def test_what_the_start_script_needs_is_refused(name, of_host):
    assert refusal({name: "1"}, of_host).endswith(f"{name} is set by Lockstep's own start script; leave it out")


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONSTARTUP", "PYTHONHOME", "PATH"])
def test_what_decides_which_code_runs_is_for_inventory(name):
    assert refusal({name: "x"}).startswith(f"train.environment: {name} decides which programs a host runs; set it in the inventory")
    assert worker_environment.of_host({name: "x"}, "pi1") == {name: "x"}


def test_a_nul_character_is_refused():
    assert "NUL character" in refusal({"A": "x\0"})


def test_the_runs_own_win_over_the_hosts():
    host = cluster_hosts({"a": {"worker_environment": {"A": 1, "B": 2}}}, ["a"])[0]
    assert host.environment == {"A": "1", "B": "2"}
    config = configurations.build({"train": {"environment": {"B": 3}}})
    assert with_environment(host, config.train.environment).environment == {"A": "1", "B": "3"}
    assert "environment" not in to_plain(with_environment(Host(name="a"), {}))


def rendered(name, **variables):
    templates = jinja2.Environment(undefined=jinja2.ChainableUndefined, trim_blocks=True, keep_trailing_newline=True)
    templates.filters |= FilterModule().filters() | {"quote": str, "checked_code": lambda _, arguments: " ".join(["python", *arguments])}
    return templates.from_string((ROOT / "templates" / name).read_text()).render(**variables, slurm_arguments=["-m", "trainer"])


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("run_worker.sh.j2", {"worker_threads": 1, "worker_program": {"python": "p", "caches": "c", "sha256": "s"}}),
        ("train.sbatch.j2", {"slurm_devices": 0, "slurm_threads": 1}),
    ],
)
def test_scripts_pass_them_on_as_they_are(name, variables, tmp_path):
    """Only the lines of the script that export; in a shell of their own."""
    given = {"A": NASTY, "B": ""}
    more = {
        "worker_exports": worker_environment.exports(given, "/caches"),
        "plan": {"hosts": [{"environment": given}]},
        "job_arguments": ["-m", "trainer"],
    }
    script = rendered(name, **more, **variables)
    start = script.index("export A=")
    lines = script[start : script.index("\nexport B=") + len("\nexport B=''")]
    done = subprocess.run(
        ["bash", "-uc", lines + '\nprintf "%s|%s|" "$A" "$B"; env | grep -c "^A="'],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout == f"{NASTY}||1\n"
    assert list(tmp_path.iterdir()) == []
    assert script.index("export A=") < script.index("-m trainer")


@pytest.mark.parametrize(("codes", "code"), [("0", 0), ("1", 1), ("75 0", 0), ("137 75 1", 1), ("75 75 75", 75)])
def test_a_slurm_job_ends_with_its_runs_code(codes, code, tmp_path):
    """A lost or killed worker is tried again, as often as allowed; any other end is the job's."""
    (tmp_path / "codes").write_text(codes.replace(" ", "\n") + "\n")
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\ncode=$(head -n 1 codes); sed -i 1d codes; exit "$code"\n')
    srun.chmod(0o755)
    script = rendered("train.sbatch.j2", slurm_attempts=3, slurm_start_deadline=60, slurm_threads=1, plan={"hosts": [{}]})
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (done.returncode, (tmp_path / "codes").read_text()) == (code, "")


def test_scripts_always_set_what_workers_need():
    """What the inventory or the configuration sets instead is set once."""
    assert worker_environment.exports({"TF_CPP_MIN_LOG_LEVEL": "0"}, "/my caches").splitlines() == [
        "export KERAS_HOME='/my caches/keras'",
        "export NUMBA_CACHE_DIR='/my caches/kernels'",
        "export TF_CPP_MIN_LOG_LEVEL=0",
        "export PYTHONUNBUFFERED=1",
        "export OPENBLAS_NUM_THREADS=1",
    ]
