"""Datasets, features, models, partitions and flat gradients, with torch."""
