"""Asynchronous training: TensorFlow's ParameterServerStrategy, with the chief as coordinator.

The chief runs the same outer loop as a synchronous run of one worker. Its steps are computed by other processes: it hands each call to
a worker that is free, which reads the weights from the parameter servers, and updates them there, while other workers do the same.
"""
