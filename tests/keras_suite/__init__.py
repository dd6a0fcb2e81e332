"""Keras' own tests, whose models are trained, evaluated and used for predictions by two workers of Lockstep."""
