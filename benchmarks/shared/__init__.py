"""Code shared by several benchmarks: the command line of scripts, rounds that take turns, lab nodes, pictures to read."""
