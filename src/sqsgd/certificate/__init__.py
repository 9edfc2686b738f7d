"""Central guarantees of runs in which every user reports once, in a secret order."""
