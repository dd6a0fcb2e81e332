"""Which lines of worker.log logs.yml shows."""

import pytest

from control.remote import log_lines

NOISE = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795419520.807481   25090 port.cc:153] oneDNN custom operations are on. You may see slightly different numerical results.",
    "2026-11-23 07:30:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is optimized.",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate compiler flags.",
    "E0000 00:00:1795419520.807481   25090 cuda_fft.cc:467] Unable to register cuFFT factory: one is registered",
    "W0000 00:00:1795419520.807481   25090 gpu_device.cc:2344] Could not find cuda drivers on your machine, GPU will not be used.",
]


@pytest.mark.parametrize("line", NOISE)
def test_start_up_noise_is_left_out(line):
    assert log_lines.readable_lines(["one", line, f"{line}\r", "two", ""]) == ["one", "two"]


@pytest.mark.parametrize(
    "line",
    [
        "E0000 00:00:1795419520.807481   25090 coordination_service.cc:1] another worker was lost",
        "W0000 00:00:1795419520.807481   25090 cpu_allocator.cc:84] Allocation of 10 exceeds 10% of free system memory.",
        "error: the loss became nan",
        "Traceback (most recent call last):",
        "I0000 is how my own line begins",
    ],
)
def test_everything_else_stays(line):
    assert log_lines.readable_lines([line]) == [line]


def test_lines_are_fit_for_a_terminal():
    assert log_lines.readable_lines(["a\x1b[2J", "x\r50%\r100%", "\u202e", "y" * 5000, ""]) == [
        "a\\x1b[2J",
        "100%",
        "\\u202e",
        f"{'y' * 2000}...",
    ]
    assert log_lines.readable_lines(["\x1b[1m1/5\x1b[0m \x1b[32m━━\x1b[0m\r\x1b[1m5/5\x1b[0m \x1b[32m━━━━\x1b[37m\x1b[0m loss: 0.9"]) == [
        "5/5 ━━━━ loss: 0.9"
    ]


def test_only_the_last_launch_is_quoted():
    assert log_lines.of_last_launch(["=== launch 1", "old", "=== launch 2", "new"]) == ["=== launch 2", "new"]
    assert log_lines.of_last_launch(["of a version", "without headers"]) == ["of a version", "without headers"]
    assert log_lines.of_last_launch([]) == []
