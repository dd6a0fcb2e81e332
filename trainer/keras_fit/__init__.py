"""Implementation of `lockstep.distribute`: Keras' own `fit`, `evaluate` and `predict` on several workers, in a user's script."""
