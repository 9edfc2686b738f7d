"""Experiments: single runs and sweeps, from configuration files."""
