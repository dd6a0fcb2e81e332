"""Training states: saved in the background, agreed on, restored; and the weights a training starts from."""
