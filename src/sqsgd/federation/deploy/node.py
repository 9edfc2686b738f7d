"""A node's own side: its settings in node.conf, its ledger, and starting it.

``run.sh`` in a node's folder runs this module. It reads ``node.conf`` strictly (Flower skips what it cannot
read, and a limit with spaces around its equals sign would not be one), says what would keep the node from
working, and then runs Flower's SuperNode with the guard.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import socket
import ssl
import sys
import time
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NoReturn

from cryptography.exceptions import UnsupportedAlgorithm

from sqsgd._internal import checks, files
from sqsgd.federation.deploy.certificates import expiry, pem_of_openssh
from sqsgd.federation.node.policy import Policy, Refused
from sqsgd.privacy.ledger import Ledger, tip_path

NAME = "node.conf"
KEY_HEADER = "flwr-public-key"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""No telemetry, no update checks, no installation during a run."""
AHEAD, BEHIND = 5.0, 305.0
"""Seconds by which a node's clock may be ahead of and behind the SuperLink's: what Flower allows."""
_PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")  # Flower's own pattern
_LINE = re.compile(r"""\s*([^\s=#'"]+=('[^']*'|"[^"]*"|[^\s=#'"]+)\s+)*(#[^=]*)?""")


def read_node_config(node: Path) -> dict[str, Any]:
    """A node's settings; ValueError names the line that cannot be read."""
    path, settings = node / NAME, dict[str, Any]()
    if not path.is_file():
        raise ValueError(f"{node} has no {NAME}; name a node's folder, such as federation/nodes/node-0")
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        where = f"{path}: line {number}"
        if not _LINE.fullmatch(f"{line} "):
            raise ValueError(
                f"{where}, {line.strip()!r}, must be key=value, without spaces around the equals sign"
            )
        for key, value in _PAIR.findall(line):
            try:
                found = tomllib.loads(f"{key} = {value}")
            except tomllib.TOMLDecodeError:
                raise ValueError(
                    f"{where}: the value of {key}, {value}, must be a number, true, false or a text in quotes"
                ) from None
            if found.keys() & settings.keys():
                raise ValueError(f"{where}: {key} is set twice")
            settings |= found
    return {"state-dir": str(node.absolute() / "state"), **settings}


def check_settings(node: Path) -> None:
    """Raise ValueError if a node with these settings would refuse every request."""
    settings = read_node_config(node)
    if not isinstance(settings.get("wrap-apps", True), bool):
        raise ValueError(f"{node / NAME}: wrap-apps = {settings['wrap-apps']!r} must be true or false")
    try:
        Policy.of(settings, simulation=False)
    except Refused as error:
        raise ValueError(f"{node / NAME}: {error}") from None


def create_ledger(node: Path) -> Ledger:
    """Create a node's ledger where its settings say or, if it exists, the witness that it lacks.

    Raises ValueError if there is nothing to create, and where a tip shows that the ledger was lost.
    """
    settings = read_node_config(node)
    path, witness = Path(settings["state-dir"]) / "ledger", settings.get("witness")
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        cap = checks.positive("max-epsilon", settings.get("max-epsilon"))
        return Ledger.create(path, max_epsilon=cap, witness=witness)
    if witness is None or Path(witness).exists():
        raise ValueError(f"{path} exists{' and has its witness' if witness else ''}: nothing was created")
    Ledger(path)  # refuses if it is damaged: its own tip is what a new witness records
    files.put(files.prepared(Path(witness), tip_path(path).read_bytes()), Path(witness))
    return Ledger(path, witness=witness)


def problems(node: Path, address: str) -> Iterator[str]:
    """Why a node could not work with this server; OSError if the server does not answer."""
    host, _, port = address.rpartition(":")
    try:
        check_settings(node)
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"the server's address, {address!r}, must look like server.example.org:8000")
    except ValueError as error:
        yield str(error)
        return
    try:
        ends, _ = expiry(node / "ca.pem"), (node / "key").read_bytes()
        key = base64.b64encode(pem_of_openssh((node / "key.pub").read_bytes())).decode()
    except (ValueError, OSError, UnsupportedAlgorithm) as error:
        yield f"{node}: ca.pem, key or key.pub is missing or damaged: {error}"
        return
    if ends < datetime.now(UTC):
        yield f"{node / 'ca.pem'} expired on {ends:%Y-%m-%d}: get the renewed one from the server's operator"
        return
    trust = ssl.create_default_context(cafile=str(node / "ca.pem"))
    connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=10.0, context=trust)
    try:
        connection.request("GET", "/", headers={KEY_HEADER: key})
        answer = connection.getresponse()
    except ssl.SSLCertVerificationError as error:
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC on this machine's clock"
        yield f"the certificate of the server at {address} is not accepted: {error.verify_message} ({now})"
        return
    finally:
        connection.close()
    if answer.status == http.HTTPStatus.UNAUTHORIZED:
        yield f"the server does not know this node's key, or its operator has revoked it ({node / 'key.pub'})"
    date, seen = answer.getheader("Date"), time.time()
    ahead = seen - parsedate_to_datetime(date).timestamp() - 0.5 if date else 0.0  # it has whole seconds
    if ahead > AHEAD + 0.5 or ahead < -BEHIND - 0.5:
        way, limit = ("ahead of", AHEAD) if ahead > 0 else ("behind", BEHIND)
        yield (
            f"this machine's clock is {abs(ahead):.0f} s {way} the server's; "
            f"at most {limit:.0f} s are allowed: synchronise it (NTP)"
        )


def free_port() -> int:
    """An unused port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def flower_arguments(node: Path, address: str) -> list[str]:
    """The arguments of ``flower-supernode`` for a node."""
    lines = [line for line in (node / NAME).read_text().splitlines() if not line.lstrip().startswith("#")]
    settings = [f"{key}={value}" for line in lines for key, value in _PAIR.findall(line)]
    if not any(setting.startswith("state-dir=") for setting in settings):
        settings.append(f'state-dir="{node.absolute() / "state"}"')
    return [
        "--superlink", address, "--root-certificates", str(node / "ca.pem"),
        "--auth-supernode-private-key", str(node / "key"),
        "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", " ".join(settings),
    ]  # fmt: skip


def main(arguments: list[str]) -> NoReturn:
    """Run the node in a folder; exits with 1 and a line for its owner if it could not work."""
    node, address = Path(arguments[0]).absolute(), arguments[1]
    try:
        found = list(problems(node, address))
    except (OSError, http.client.HTTPException) as error:  # the node waits for the server
        found = []
        print(f"the server at {address} does not answer yet: {error}", file=sys.stderr)  # noqa: T201
    for line in found:
        print(f"this node cannot work: {line}", file=sys.stderr, flush=True)  # noqa: T201
    if found:
        sys.exit(1)
    from sqsgd.federation.flower import guard

    path = os.pathsep.join([str(node / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ.update(QUIET, PATH=path, FLWR_HOME=str(node / "flwr"))
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2")
    os.environ[guard.LIST] = str(node / "allowed-apps")
    os.umask(0o077)
    guard.run_supernode(flower_arguments(node, address))


if __name__ == "__main__":
    main(sys.argv[1:])
