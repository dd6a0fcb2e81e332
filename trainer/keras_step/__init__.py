"""A Keras model's step on several workers: gradients, updates and metrics as of the whole batch."""
