"""What `--check` and `show_config` show: the plan, and nothing is written."""

from tests.contract.samples import COMPILED, UNEVEN


def files(root):
    return sorted(path for path in root.rglob("*") if "__pycache__" not in path.parts)


def test_the_plan_is_shown_and_nothing_written(commands, pictures):
    given = ("run=planned", "config=deep_cnn", f"dataset={pictures}", "workers=3", "epochs=7")
    commands.run_here("train", *given)  # the model is examined
    before = files(commands.root)
    shown = commands.check("train", *given)
    expected = ("deep_cnn", "worker3", "x 7 epochs", "144 training, 36 validation, 60 test images")
    assert [words for words in expected if words not in shown] == []
    assert files(commands.root) == before


def test_a_compiled_models_plan_names_its_inputs(commands):
    shown = commands.check("train", f"model={COMPILED}:build", f"dataset={COMPILED}:data", UNEVEN, "epochs=2")
    for expected in (
        "inputs        x.a float32 [4], x.b float32 [1]",
        "outputs       y float32",
        "compiled      optimizer Adam, loss mse, metrics mae",
        "400 training, 100 validation, 100 test examples",
    ):
        assert expected in shown


def test_the_whole_configuration_is_shown(commands, pictures):
    shown = commands.ended(
        "train", "run=shown", f"dataset={pictures}", "config=resnet_small", "set=schedule.scaling=sqrt", "show_config=true"
    )
    assert "scaling: sqrt" in shown.stdout
    assert "profile_every: 50" in shown.stdout
    assert "--- Launch" not in shown.stdout
    assert not commands.run("shown").exists()
