"""Supervisor, the process beside each worker that starts it, watches it, and with its peers starts all workers again after a fault.

Standard library only: it must not compete with the worker for memory, and must survive a failure of TensorFlow.
"""
