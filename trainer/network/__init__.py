"""Workers among themselves: who takes part, handshakes, sums over all of them."""
