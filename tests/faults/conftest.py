"""Lets these tests use the helpers of the other tests of real federations."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))

collect_ignore = ["hostile_client_app.py"]  # an app for nodes: only there it is imported
