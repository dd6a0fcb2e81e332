"""Programs that benchmarks run on a node besides the trainer."""
