"""Runs from configuration files: what is asked for, doing it, keeping it."""
