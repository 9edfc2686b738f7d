"""Examples in docstrings are run; those of the room with Flower only where it is installed."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("flwr") else ["sqsgd/flower"]
