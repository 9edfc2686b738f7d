"""The status of a federation, a server or a node as metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from sqsgd.deploy.live_state import SERVER_PARTS
from sqsgd.deploy.training import read_status
from sqsgd.files.prometheus_text import CONTENT_TYPE, Metric, exposition


def metrics_text(folder: Path) -> str:
    """The metrics of a folder; a node's are for its owner, and a server never sees them."""
    return exposition(_metrics(read_status(folder)))


def make_server(folder: Path, address: tuple[str, int]) -> ThreadingHTTPServer:
    """An HTTP server whose /metrics is read from the folder's files at each request."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            try:
                content = metrics_text(folder).encode()
            except (OSError, ValueError) as error:
                self.send_error(500, explain=str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """A line for every scrape would fill the log."""

    try:
        return ThreadingHTTPServer(address, Handler)
    except OSError as error:
        raise OSError(f"cannot listen at {address[0]}:{address[1]}: {error}") from None


def _metrics(found: Mapping[str, Any]) -> Iterator[Metric]:
    ends = datetime.fromisoformat(found["certificate_ends"])
    left = (ends - datetime.now(UTC)).total_seconds()
    yield _one("certificate_seconds_left", "gauge", "Until the certificate expires.", left)
    if found["kind"] != "server":
        yield from _of_nodes([found] if found["kind"] == "node" else found["nodes"])
    if found["kind"] == "federation":
        running = [
            ({"part": part["name"]}, int(part["running"]))
            for part in ({"name": name, **found[name]} for name in SERVER_PARTS)
        ]
        running += [({"part": node["name"]}, int(node["running"])) for node in found["nodes"]]
        yield Metric(name="sqsgd_up", kind="gauge", about="1 if the process runs.", values=running)
    if found["kind"] != "node":
        yield from _of_gate(found["wire"])
        yield from _of_run(found["run"])


def _of_nodes(nodes: list[Mapping[str, Any]]) -> Iterator[Metric]:
    about: dict[str, tuple[Literal["counter", "gauge"], str]] = {
        "epsilon_spent": ("gauge", "Epsilon spent, according to the ledger."),
        "epsilon_left": ("gauge", "Epsilon that may still be spent."),
        "epsilon_cap": ("gauge", "The cap of the ledger."),
        "answers": ("counter", "Reports sent, repeats included."),
        "zeros": ("counter", "Reports that are zero because the app failed; the server cannot tell."),
        "bytes_up": ("counter", "Bytes of the reports' payloads."),
    }
    for name, (kind, text) in about.items():
        values = [({"node": node["name"]}, node[name]) for node in nodes if node[name] is not None]
        total = "_total" if kind == "counter" else ""
        yield Metric(name=f"sqsgd_node_{name}{total}", kind=kind, about=text, values=values)
    good = [({"node": node["name"]}, int(not node["ledger"].startswith("NOT GOOD"))) for node in nodes]
    yield Metric(name="sqsgd_node_ledger_good", kind="gauge", about="1 if the ledger is good.", values=good)
    yield Metric(
        name="sqsgd_node_refusals_total",
        kind="counter",
        about="Refused requests, by reason.",
        values=[
            ({"node": node["name"], "reason": reason}, count)
            for node in nodes
            for reason, count in node["refusals_by_reason"].items()
        ],
    )


def _of_gate(wire: Mapping[str, Any] | None) -> Iterator[Metric]:
    if wire is not None:
        yield _one("gate_refused_total", "counter", "Requests that the gate refused.", wire["refused"])
        values = [({"direction": name}, wire[f"bytes_{name}"]) for name in ("up", "down")]
        about = "Bytes of HTTP through the gate."
        yield Metric(name="sqsgd_gate_bytes_total", kind="counter", about=about, values=values)
        by_node = {
            "bytes_up": ("sqsgd_gate_node_bytes_total", "Bytes of request bodies that were forwarded."),
            "over_quota": ("sqsgd_gate_over_quota_total", "Requests that exceeded a node's quota of bytes."),
        }
        for key, (name, about) in by_node.items():
            values = [({"node": node}, counts[key]) for node, counts in wire.get("nodes", {}).items()]
            yield Metric(name=name, kind="counter", about=about, values=values)


def _of_run(run: Mapping[str, Any] | None) -> Iterator[Metric]:
    if run is None:
        return
    yield _one("training_round", "gauge", "Rounds done of the last training.", run["round"])
    yield _one("training_rounds", "gauge", "Rounds of the last training.", run["rounds"])
    if run["accuracy"] is not None:
        yield _one("training_accuracy", "gauge", "The last measured accuracy.", run["accuracy"])
    if "mean" in (found := run["evaluation"] or {}):
        about = (
            f"The last {found['metric']} on nodes' data: its private mean, and the ends of a 95 % interval."
        )
        values = [
            ({"metric": found["metric"], "value": name}, found[name]) for name in ("mean", "low", "high")
        ]
        yield Metric(name="sqsgd_training_at_nodes", kind="gauge", about=about, values=values)
    done = int(run["status"].startswith("finished"))
    yield _one("training_finished", "gauge", "1 if the last training is over.", done)
    yield _one("training_answers", "gauge", "Reports accepted in the last training.", run["answers"])
    values = [({"reason": reason}, count) for reason, count in run["rejected_by_reason"].items()]
    about = "Replies rejected in the last training, by reason."
    yield Metric(name="sqsgd_training_rejected", kind="gauge", about=about, values=values)


def _one(name: str, kind: Literal["counter", "gauge"], about: str, value: float) -> Metric:
    return Metric(name=f"sqsgd_{name}", kind=kind, about=about, values=[({}, value)])
