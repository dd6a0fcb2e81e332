"""Campaigns: trials measured one after another, kept as rows of a CSV file."""
