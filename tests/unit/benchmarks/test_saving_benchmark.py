"""What a save costs, as the benchmark computes it; its steps and saves are real, but small."""

from benchmarks.scripts import saving
from benchmarks.scripts.saving import AWAITED, MEANWHILE, WITHOUT


def test_a_saves_cost_is_what_the_steps_of_the_same_round_take_longer():
    seconds = {WITHOUT: [1.0, 2.0, 1.0], AWAITED: [1.5, 2.4, 1.6], MEANWHILE: [1.05, 2.05, 1.1]}
    lines = saving.table(seconds).splitlines()
    assert [line.split()[-3:] for line in lines[-3:]] == [
        ["1.000", "0.000", "0.00"],
        ["1.600", "0.500", "1.00"],
        ["1.100", "0.050", "0.10"],
    ]


def test_every_way_leaves_a_whole_state(tmp_path):
    training = saving.Training(tmp_path, 1000, 2)
    for step, way in enumerate((AWAITED, MEANWHILE), 1):
        training.ways()[way]()
        assert len(list((tmp_path / "state").glob("step-*.npz"))) == step
    training.ways()[WITHOUT]()
    assert len(list((tmp_path / "state").glob("*"))) == 2
