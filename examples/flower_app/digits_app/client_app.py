"""The clients of a plain Flower app."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from sqsgd.flower import ClientApp

from digits_app.task import Net, load_data
from digits_app.task import test as test_fn
from digits_app.task import train as train_fn

app = ClientApp()


def _parts(context: Context):
    return load_data(
        context.node_config["partition-id"],
        context.node_config["num-partitions"],
        context.run_config["batch-size"],
    )


@app.train()
def train(msg: Message, context: Context):
    """Train the model on this client's images."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader, _ = _parts(context)
    loss = train_fn(net, loader, context.run_config["local-epochs"], msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Measure the model on this client's held-out images."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, loader = _parts(context)
    loss, accuracy = test_fn(net, loader)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
