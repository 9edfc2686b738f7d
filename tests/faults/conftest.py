"""Lets these tests use the helpers of the other tests of real federations."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
