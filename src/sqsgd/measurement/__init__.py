"""Measured costs of schemes: estimation error, bytes and time."""
