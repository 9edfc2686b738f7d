"""The folder of a run: configuration, metrics, checkpoint, summary."""
