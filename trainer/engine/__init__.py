"""Engines: what trains a job's model call by call, and the measurements that set it up."""
