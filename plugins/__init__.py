"""Ansible plugins of Lockstep. The folder is a package so that action plugins can share code."""
