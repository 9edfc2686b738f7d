"""Rows of a sweep's table, as table.json holds them."""

ROW = {
    "panel": "epsilon 8", "arm": "sqsgd", "accuracy": 0.91234, "half_width": 0.0123, "runs": 3, "lr": 0.1234,
    "lr_by_rule": False, "decay": "linear",
    "epsilon": 8.0, "notion": "local", "bytes_up": 273, "seconds": 12.4, "failed": [],
}  # fmt: skip
FAILED = {
    **ROW, "arm": "vqsgd", "accuracy": None, "half_width": None, "runs": 0, "lr": None,
    "failed": ["levels = 1000 must be", "the same"],
}  # fmt: skip
