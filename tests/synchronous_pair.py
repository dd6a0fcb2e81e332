"""One of two workers that train the same program, for `tests/local/test_synchronous.py`: rank, socket, names of programs, output."""

import socket
import sys

import numpy as np

from tests import keras_programs


def main() -> None:
    rank, number, programs, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4]
    from trainer.direct import Direct

    connection = socket.socket(fileno=number)
    connection.setblocking(False)
    direct = Direct(rank, {1 - rank: connection}, timeout=60.0)
    arrays = {}
    for name in programs:
        weights, states = keras_programs.on_a_worker(name, rank, direct)
        arrays |= {f"{name}/weights": weights, **{f"{name}/{number}": state for number, state in enumerate(states)}}
    np.savez(out, **arrays)


if __name__ == "__main__":
    main()
