"""Apps in the form of Flower's quickstarts, with the two lines and nothing else of ours."""

import re
from pathlib import Path

import numpy as np
import pytest
from federation import Nodes, node_context
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from sqsgd.federation.flower import ClientApp, SqsgdStrategy

NODES, CLASSES, FEATURES = 10, 3, 20
CENTRES = 2 * np.random.default_rng(5).standard_normal((CLASSES, FEATURES))


def examples(seed: int, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    return CENTRES[labels] + rng.standard_normal((count, FEATURES)), labels


def accuracy(arrays: ArrayRecord) -> float:
    inputs, labels = examples(999, 500)
    coefficients, intercept = arrays.to_numpy_ndarrays()
    return float(np.mean((inputs @ coefficients + intercept).argmax(1) == labels))


@pytest.mark.parametrize("kind", [np.float64, np.float16])
def test_a_numpy_app_learns_and_keeps_its_own_type(tmp_path, kind):
    """As quickstart-numpy and quickstart-sklearn: a list of arrays, float64 unless something else is said."""
    app, seen = ClientApp(), []

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        coefficients, intercept = msg.content["arrays"].to_numpy_ndarrays()
        seen.append(coefficients.dtype)
        inputs, labels = examples(context.node_id)
        for _ in range(5):
            scores = (inputs @ coefficients + intercept).astype(np.float64)
            odds = np.exp(scores - scores.max(1, keepdims=True))
            error = odds / odds.sum(1, keepdims=True) - np.eye(CLASSES)[labels]
            coefficients = (coefficients - 0.1 * inputs.T @ error / len(labels)).astype(kind)
            intercept = (intercept - 0.1 * error.mean(0)).astype(kind)
        record = ArrayRecord([coefficients, intercept])
        metrics = MetricRecord({"num-examples": len(labels)})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=msg)

    nodes = Nodes(app, [node_context(node, tmp_path / str(node)) for node in range(1, NODES + 1)])
    start = ArrayRecord([np.zeros((FEATURES, CLASSES), kind), np.zeros(CLASSES, kind)])
    result = SqsgdStrategy(epsilon=400.0, fraction_train=1.0, fraction_evaluate=1.0).start(
        nodes, start, num_rounds=3
    )
    assert accuracy(start) < 0.5 < 0.8 < accuracy(result.arrays)
    assert set(seen) == {np.dtype(kind)}
    assert [array.dtype for array in result.arrays.to_numpy_ndarrays()] == [kind, kind]


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
