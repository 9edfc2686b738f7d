"""Whole simulated runs: from a configuration to a summary, sweeps over many, and models of tables."""
