"""The table of a run's configuration."""

from control.runs.results.hyperparameters import hyperparameters


def test_hyperparameters_carry_the_names_of_config_yml():
    config = {
        "seed": 1,
        "model": {"name": "own", "width": 8},
        "data": {"path": None, "image_size": [32, 32, 3], "allow_bad_images": False},
        "optimizer": {"learning_rate": 0.01},
    }
    assert hyperparameters(config, 3) == {
        "seed": 1,
        "model.name": "own",
        "model.width": 8,
        "data.image_size": "[32, 32, 3]",
        "data.allow_bad_images": False,
        "optimizer.learning_rate": 0.01,
        "workers": 3,
    }


def test_compiled_model_has_its_own_optimizer():
    config = {
        "model": {"name": "own", "file": "mine.py", "function": "build"},
        "optimizer": {"name": "adam", "learning_rate": 0.001},
        "schedule": {"warmup_epochs": 3},
    }
    compiled = {"optimizer": "Lion", "learning_rate": 0.0003, "loss": "mse"}
    assert hyperparameters(config, 2, compiled) == {
        "model.name": "mine.py:build",
        "model.file": "mine.py",
        "model.function": "build",
        "optimizer.name": "Lion",
        "optimizer.learning_rate": 0.0003,
        "loss": "mse",
        "workers": 2,
    }
    assert "optimizer.learning_rate" not in hyperparameters(config, 2, {**compiled, "learning_rate": None})
