"""What the control node computes and shows from a run's files. Never imports TensorFlow."""
