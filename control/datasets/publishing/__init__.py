"""Datasets made ready for the hosts: checked, packed, converted, tried."""
