"""What several benchmarks use: the command line of scripts, rounds that take turns, lab nodes, pictures to read."""
