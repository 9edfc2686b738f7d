"""The folder of a run: records, checkpoint, summary."""
