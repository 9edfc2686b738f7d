"""Apps in the form of Flower's quickstarts, with the two lines and nothing else of ours."""

import re
from pathlib import Path

import numpy as np
import pytest
from federation import Nodes, node_context
from flwr.app import ArrayRecord

NODES, CLASSES, FEATURES = 10, 3, 20
CENTRES = 2 * np.random.default_rng(5).standard_normal((CLASSES, FEATURES))


def examples(seed: int, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    return CENTRES[labels] + rng.standard_normal((count, FEATURES)), labels


def test_the_documented_app_trains_per_record(tmp_path):
    """The Python of docs/flower.md, with a model and data."""
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'sqsgd[train]'")
    page = (Path(__file__).parents[2] / "docs/flower.md").read_text()
    scope = {
        "Net": lambda: torch.nn.Linear(FEATURES, CLASSES),
        "load_records": lambda context: of_floats(*examples(context.node_id)),
        "load_test_records": lambda context: of_floats(*examples(500 + context.node_id)),
    }
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, scope)  # noqa: S102 - a page of ours
    owner = {"max_epsilon": None, "max_epsilon_per_record": 2.0, "delta": 1e-5}
    owner["evaluation_epsilon_per_record"] = 0.5
    contexts = [node_context(node, tmp_path / str(node), **owner) for node in range(1, 4)]
    start = ArrayRecord(scope["Net"]().state_dict())
    result = scope["strategy"].start(Nodes(scope["app"], contexts), start, num_rounds=2)
    assert result.train_metrics_clientapp[2]["epsilon_total"] == 1.0
    assert result.evaluate_metrics_clientapp[2]["nodes"] == 3


def of_floats(inputs, labels):
    return inputs.astype(np.float32), labels
