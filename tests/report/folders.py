"""Synthetic run folders, as the runner writes them, without training."""

import json
import math

from sqsgd.training.settings import make_config


def write_run(
    folder, *, done=None, error=None, notion="local", best=0.9, dim=1000, central=None, metric=None, **more
):
    """A run of ``done`` rounds (all: finished) that rises to an accuracy near ``best``.

    ``central``: what the summary says of a central guarantee. ``metric``: the name of an error that falls
    from 1 to ``best``, instead of the accuracy.
    """
    config = make_config({"scheme": "sqsgd", "bytes": 256, "rounds": 40, "evaluate_every": 10, **more})
    done = config.rounds if done is None else done
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config.to_toml())
    promised = "infinity" if notion == "none" else config.epsilon
    sent = 4 * dim + 16 if notion == "none" else config.bytes + 17
    lines = [_line(number, config, promised, sent, best) for number in range(done)]
    lines = [_with_error(line, metric, best) for line in lines] if metric else lines
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if error is not None:
        (folder / "error.txt").write_text(error + "\n")
    elif done == config.rounds:
        summary = {"notion": notion, "held_out": "1,000 made-up images", "bytes_up_ratio": 4 * dim / sent}
        summary |= {"epsilon": promised, "epsilon_all_rounds": promised, "lr": 0.1, **(central or {})}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def _line(number, config, epsilon, sent, best):
    wave = math.sin(3 * number + config.seed)
    progress = 1 - math.exp(-4 * (number + 1) / config.rounds)
    private = epsilon != "infinity"
    line = {
        "round": number, "loss": 2.3 - 2 * progress + 0.05 * wave, "epsilon": epsilon,
        "epsilon_total": epsilon * (number + 1) if private else epsilon, "bytes_up": sent, "bytes_down": 4044,
        "clients": config.clients, "clip_rate": 0.05 + 0.05 * wave if private else None,
        "bound": 1 + progress + 0.1 * wave if private else 1.0,
        "seconds": 0.1, "seconds_gradient": 0.06, "seconds_encode": 0.02, "seconds_aggregate": 0.005,
    }  # fmt: skip
    if (number + 1) % config.evaluate_every == 0 or number + 1 == config.rounds:
        line |= {"accuracy": min(1.0, best * progress + 0.01 * wave), "test_loss": 1 - progress / 2}
    return line


def _with_error(line, name, best):
    if "accuracy" not in line:
        return line
    value = 1 - (1 - best) * line.pop("accuracy") / max(best, 1e-9)
    return {**line, "metric": name, "better": "lower", "metrics": {name: value, "R2": 0.5}}
