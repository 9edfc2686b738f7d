"""A node's settings in node.conf and its ledger; as a module, what ``run.sh`` in its folder runs."""

import base64
import http.client
import os
import re
import socket
import ssl
import sys
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NoReturn

import tomli_w
from cryptography.exceptions import UnsupportedAlgorithm

from sqsgd._internal import files
from sqsgd._internal.files import read_toml
from sqsgd.federation.deploy.certificates import expiry, pem_of_openssh
from sqsgd.federation.node.policy import KEYS, PER_RECORD, Policy, Refused
from sqsgd.privacy.ledger import Ledger, tip_path

NAME = "node.conf"
KEY_HEADER = "flwr-public-key"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
DATA_KEYS = ("partition-id", "num-partitions", "dataset", "model")  # of the ready app
AHEAD, BEHIND = 5.0, 305.0  # seconds by which Flower allows a node's clock to be ahead or behind


def read_node_config(node: Path) -> dict[str, Any]:
    path = node / NAME
    if not path.is_file():
        raise ValueError(f"{node} has no {NAME}; name a node's folder, such as federation/nodes/node-0")
    settings = read_toml(path)
    for key, value in settings.items():
        if not isinstance(value, str | int | float):
            raise ValueError(f"{path}: {key} must be a number, true, false or a text in quotes")
    return {"state-dir": str(node.absolute() / "state"), **settings}


def _checked_settings(node: Path) -> dict[str, Any]:
    """Return a node's settings. Raises ValueError if a node with these would refuse every request."""
    settings = read_node_config(node)
    try:
        Policy.of(settings, simulation=False)
    except Refused as error:
        raise ValueError(f"{node / NAME}: {error}") from None
    return settings


def create_ledger(node: Path) -> Ledger:
    """Create a node's ledger or, if it exists, the witness that it lacks; ValueError if it was lost."""
    settings = read_node_config(node)
    path, witness = Path(settings["state-dir"]) / "ledger", settings.get("witness")
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        policy = Policy.of(_checked_settings(node), simulation=False)
        return Ledger.create(path, max_epsilon=policy.max_epsilon, delta=policy.delta, witness=witness)
    if witness is None or Path(witness).exists():
        raise ValueError(f"{path} exists{' and has its witness' if witness else ''}: nothing was created")
    Ledger(path)  # refuses if it is damaged: its own tip is what a new witness records
    files.put(files.prepared(Path(witness), tip_path(path).read_bytes()), Path(witness))
    return Ledger(path, witness=witness)


def top_up(node: Path, epsilon: float) -> Ledger:
    """Add to a node's cap, in its ledger and in node.conf, which a node reads when it starts."""
    settings, path = _checked_settings(node), node / NAME
    ledger = Ledger(Path(settings["state-dir"]) / "ledger", witness=settings.get("witness"))
    key = PER_RECORD if PER_RECORD in settings else "max-epsilon"
    if settings[key] < ledger.max_epsilon:
        lowered = f"{path}: {key} = {settings[key]:g} was lowered below the ledger's cap"
        raise ValueError(f"{lowered}, {ledger.max_epsilon:g}: raise it there")
    text, line = path.read_text(), re.compile(rf"(?m)^{key} *=.*$")
    if len(line.findall(text)) != 1:
        raise ValueError(f"{path} must have one line that begins with {key}=")
    ledger.top_up(epsilon)
    files.put(files.prepared(path, line.sub(f"{key}={ledger.max_epsilon!r}", text).encode()), path)
    return ledger


def check_ready(node: Path, address: str) -> None:
    """Raise ValueError if a node could not work with this server, OSError if the server does not answer."""
    _checked_settings(node)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"the server's address, {address!r}, must look like server.example.org:8000")
    try:
        ends, _ = expiry(node / "ca.pem"), (node / "key").read_bytes()
        key = base64.b64encode(pem_of_openssh((node / "key.pub").read_bytes())).decode()
    except (ValueError, OSError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{node}: ca.pem, key or key.pub is missing or damaged: {error}") from None
    if ends < datetime.now(UTC):
        raise ValueError(f"{node}/ca.pem expired on {ends:%Y-%m-%d}: the federation must be written again")
    trust = ssl.create_default_context(cafile=str(node / "ca.pem"))
    connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=10.0, context=trust)
    try:
        connection.request("GET", "/", headers={KEY_HEADER: key})
        answer = connection.getresponse()
    except ssl.SSLCertVerificationError as error:
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC on this machine's clock"
        told = f"the certificate of the server at {address} is not accepted: {error.verify_message} ({now})"
        raise ValueError(told) from None
    finally:
        connection.close()
    if answer.status == http.HTTPStatus.UNAUTHORIZED:
        raise ValueError(f"the server does not know {node}/key.pub, or its operator has revoked it")
    date, seen = answer.getheader("Date"), time.time()
    ahead = seen - parsedate_to_datetime(date).timestamp() - 0.5 if date else 0.0  # it has whole seconds
    if not -BEHIND - 0.5 <= ahead <= AHEAD + 0.5:
        way, most = ("ahead of", AHEAD) if ahead > 0 else ("behind", BEHIND)
        clock = f"this machine's clock is {abs(ahead):.0f} s {way} the server's"
        raise ValueError(f"{clock}; at most {most:.0f} s are allowed: synchronise it (NTP)")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def flower_arguments(node: Path, address: str) -> list[str]:
    """Write a node's settings as Flower reads them; the arguments of ``flower-supernode``."""
    settings = node / "flwr/node.toml"
    settings.write_text(tomli_w.dumps(_checked_settings(node)))
    return [
        "--superlink", address, "--root-certificates", str(node / "ca.pem"),
        "--auth-supernode-private-key", str(node / "key"),
        "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", str(settings),
    ]  # fmt: skip


def main(arguments: list[str]) -> NoReturn:
    """Run the node in a folder; exits with 1 and a line for its owner if it could not work."""
    node, address = Path(arguments[0]).absolute(), arguments[1]
    try:
        check_ready(node, address)
    except (OSError, http.client.HTTPException) as error:  # the node waits for the server
        print(f"the server at {address} does not answer yet: {error}", file=sys.stderr)  # noqa: T201
    except ValueError as error:
        sys.exit(f"this node cannot work: {error}")
    if unknown := [key for key in read_node_config(node) if key not in (*KEYS, *DATA_KEYS)]:
        print(f"{node / NAME}: for your own app alone: {', '.join(unknown)}", file=sys.stderr)  # noqa: T201
    from sqsgd.federation.flower import guard

    path = os.pathsep.join([str(node / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ.update(QUIET, PATH=path, FLWR_HOME=str(node / "flwr"))
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2")
    os.environ[guard.LIST] = str(node / "allowed-apps")
    os.umask(0o077)
    guard.run_supernode(flower_arguments(node, address))


if __name__ == "__main__":
    main(sys.argv[1:])
