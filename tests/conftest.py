"""Lets tests import the reference twins, and the helpers of those that start a real federation."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / name) for name in (".", "schemes", "deploy")]
collect_ignore = ["faults/hostile_client_app.py"]  # an app for nodes: only there it is imported
