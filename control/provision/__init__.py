"""Provisioning: packages, wheels, file system, firewall."""
