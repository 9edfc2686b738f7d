"""The server of a plain Flower app."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from sqsgd.flower import SqsgdStrategy as FedAvg

from digits_app.task import Net, load_test_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a model over all clients."""
    torch.manual_seed(0)
    strategy = FedAvg(epsilon=400.0, fraction_train=context.run_config["fraction-train"])
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Measure the model on images that no client has."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, load_test_data())
    return MetricRecord({"loss": loss, "accuracy": accuracy})
