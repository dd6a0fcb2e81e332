"""Faults put into trainings on the lab, and what became of them."""
