"""Lockstep beside other software: trials, tables, pictures."""
