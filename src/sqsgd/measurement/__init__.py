"""What schemes cost: estimation error, bytes and time, measured in one run."""
