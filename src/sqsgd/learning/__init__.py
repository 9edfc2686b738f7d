"""Data, models, partitions and flat gradients: the only room with torch."""
