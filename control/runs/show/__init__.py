"""What commands show of a run: plan, progress, result, status."""
