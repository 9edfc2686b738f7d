"""Conformance vectors for encoders in other languages, and the check of their answers."""
