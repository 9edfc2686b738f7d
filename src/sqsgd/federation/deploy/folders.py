"""Writes a federation's folder, one subfolder per machine; adds and revokes nodes, renews certificates."""

import base64
import contextlib
import os
import re
import secrets
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm

from sqsgd._internal.files import write_atomically
from sqsgd.core.task import Task
from sqsgd.federation.deploy import certificates, templates
from sqsgd.federation.deploy.certificates import Pair, make_node_pair
from sqsgd.federation.deploy.federation import NAME, Federation, load_federation
from sqsgd.federation.deploy.node import create_ledger, free_port
from sqsgd.federation.node.policy import Policy, Refused
from sqsgd.federation.node.server import FederationSettings, make_request
from sqsgd.training.settings import USUAL_BYTES

_EXAMPLES = ("train_inputs", "train_labels", "test_inputs", "test_labels")
_ASKED = ("epsilon", "bytes", "scheme", "lr", "seed", "rounds", "unit", "delta", "records")


def node_folders(folder: Path) -> list[Path]:
    found = [path.parent for path in (folder / "nodes").glob("node-*/node.conf")]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def check_settings(federation: Federation) -> Federation:
    """Return the settings with the bytes that were left to choose. Raises ValueError if every node would
    refuse them.

    The model and the data of a user's own factory are not made, and data may be on other machines only.
    """
    from sqsgd.learning.datasets import load_dataset
    from sqsgd.learning.factories import is_factory_name
    from sqsgd.learning.features import extracted, extractor_and_model
    from sqsgd.learning.models import make_model

    dim = 1 << 20
    settings = tomllib.loads(templates.node_settings(replace(federation, bytes=2**31 - 1), 0))
    policy = Policy.of({**settings, "state-dir": "/"}, simulation=False)
    own = is_factory_name(federation.dataset) or is_factory_name(federation.model)
    try:
        if not own:
            data = load_dataset(federation.dataset)
            if (examples := len(data.train_inputs) // federation.nodes) < policy.min_batch:
                part = f"each has {examples} examples of {federation.dataset}"
                raise ValueError(f"nodes = {federation.nodes}: {part}, and min-batch is {policy.min_batch}")
            features, name = extractor_and_model("", federation.model)
            few = replace(data, **{key: getattr(data, key)[:2] for key in _EXAMPLES}, owners=None)
            shape = (extracted(few, features) if features else few).in_shape
            model = make_model(name, data.classes, shape, intercept=not features)
            dim = sum(weights.numel() for weights in model.parameters())
    except FileNotFoundError as error:
        if federation.local:
            raise ValueError(str(error)) from None
        own = True
    same: dict[str, Any] = {key: getattr(federation, key) for key in _ASKED}
    asked = FederationSettings(**same, sends="gradient")
    try:
        scheme = asked.make_scheme(dim, visits=federation.rounds)
        task = Task(round=0, client=0, seed=asked.seed, dim=dim, bound=1.0)
        fitted = asked.for_rounds(scheme, clients=federation.nodes, rounds=federation.rounds)
        policy.scheme(make_request(scheme, fitted, task, "init", ""))
        return federation if own else replace(federation, bytes=fitted.bytes)
    except Refused as error:
        raise ValueError(f"every node would refuse: {error}") from None
    except ValueError:
        if not own:  # the size of another model is not known here
            raise
        return federation


def write_federation(folder: Path, federation: Federation, days: int) -> Path:
    """Write certificates, keys, settings and scripts into a new or empty folder.

    Guarantees
    ----------
    * A failure leaves no partial federation: tests/deploy/test_folders.py::test_nothing_is_overwritten.
    * Every private key is readable by its owner alone, and in that owner's folder only:
      tests/deploy/test_folders.py::test_every_secret_is_its_owners_alone.
    * Every node has its ledger, and settings that refuse to run without it:
      tests/deploy/test_folders.py::test_every_node_has_the_ledger_that_it_requires.
    """
    folder = folder.absolute()
    if set(str(folder)) & set("\"'\\$`\n"):
        raise ValueError(f"{folder}: choose a path without quotes, dollar signs or backslashes")
    if folder.is_file():
        raise ValueError(f"{folder} is a file; name a new folder")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} exists and is not empty: choose another folder; nothing was written")
    if not federation.bytes:
        if federation.per_record:
            raise ValueError("bytes = 0: the size of this model is not known here; give --bytes")
        federation = replace(federation, bytes=USUAL_BYTES)
    port, link = (free_port(), free_port()) if federation.local else (8000, 8001)
    federation = replace(federation, port=federation.port or port, link_port=federation.link_port or link)
    with _new_folder(folder) as building:
        _fill(building, federation, days)
    return folder


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which is then moved into its place; a failure leaves nothing behind."""
    building = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        building.mkdir(mode=0o700, parents=True)
        yield building
        building = building.rename(folder)
        for node in node_folders(folder) or [folder]:  # here and not before: a ledger records its path
            create_ledger(node)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _fill(folder: Path, federation: Federation, days: int) -> None:
    authority, server = certificates.make_authority(max(days, certificates.AUTHORITY_DAYS)), folder / "server"
    for path in (folder / "authority", *(server / name for name in ("", "flwr", "nodes", "runs", "tmp"))):
        path.mkdir(mode=0o700)
    _write(folder / "authority", {"ca.key": authority.private, "ca.pem": authority.public})
    pair = certificates.make_server_pair(authority.private, federation.certified, days)
    keys = {"server.key": pair.private, "server.pem": pair.public, "ca.pem": authority.public}
    _write(server, {**keys, "superexec.secret": secrets.token_bytes(32)})
    _write(server, {NAME: federation.to_toml(), "nginx.conf": templates.nginx(federation)})
    _write(server, templates.server_scripts(federation))
    _write(server, templates.services("server", templates.SERVER_PARTS, federation.port))
    (folder / NAME).symlink_to(f"server/{NAME}")
    for index in range(federation.nodes):
        name = f"node-{index}"
        node = make_node_pair(name)
        _fill_node(folder / "nodes" / name, federation, index, authority.public, node)
        (server / f"nodes/{name}.pub").write_bytes(node.public)
    _list_nodes(folder)


def _list_nodes(folder: Path) -> None:
    write_known_keys(folder / "server")
    (folder / "Procfile").write_text(templates.procfile([path.name for path in node_folders(folder)]))


def _fill_node(folder: Path, federation: Federation, index: int, authority: bytes, pair: Pair) -> None:
    for name in ("", "state", "flwr", "bin"):
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(folder, {"key": pair.private, "key.pub": pair.public, "ca.pem": authority})
    settings, script = templates.node_settings(federation, index), templates.node_script(federation)
    _write(folder, {"node.conf": settings, "allowed-apps": templates.ALLOWED_APPS, "run.sh": script})
    refused = dict.fromkeys(templates.REFUSED_COMMANDS, templates.NO_APP)
    _write(folder / "bin", {"flwr-clientapp": templates.CLIENT_APP, **refused})
    _write(folder, templates.services(f"node-{index}", ["run"], 0))


def _write(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """Write new files that only their owner can read, from their creation on; scripts can be run."""
    for name, content in contents.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).touch(0o700 if data.startswith(b"#!") else 0o600, exist_ok=False)
        (folder / name).write_bytes(data)


def write_known_keys(server: Path) -> bool:
    """Write the keys in ``nodes/`` for nginx, and let a running nginx read them; whether it did."""
    text = ""
    for key in sorted((server / "nodes").glob("*.pub")):
        # A file that is no key keeps no other from revocation.
        with contextlib.suppress(ValueError, UnsupportedAlgorithm):
            pem = certificates.pem_of_openssh(key.read_bytes())
            text += f'"{base64.b64encode(pem).decode()}" 1;  # {key.stem}\n'
    write_atomically(server / "nodes.map", text.encode())
    return reload_nginx(server)


def find_nginx() -> str | None:
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def reload_nginx(server: Path) -> bool:
    """Let nginx read its files again; False if it does not run on this machine."""
    if not (server / "nginx.pid").exists():
        return False
    program = find_nginx()
    command = [program or "nginx", "-e", "stderr", "-p", f"{server}/", "-c", "nginx.conf", "-s", "reload"]
    return program is not None and not subprocess.run(command, capture_output=True, check=False).returncode  # noqa: S603


def add_node(folder: Path) -> Path:
    """Write the folder of one more node. It takes part when ``train`` has registered its key."""
    folder = folder.absolute()
    federation, authority = load_federation(folder), folder / "authority/ca.pem"
    if not authority.is_file():
        raise ValueError(f"{folder} has no authority/ca.pem: name the folder that `sqsgd deploy init` wrote")
    server = folder / "server"
    names = {path.stem for place in ("nodes", "revoked") for path in (server / place).glob("*.pub")}
    names |= {path.name for path in node_folders(folder)}
    numbers = [int(name[5:]) for name in names if re.fullmatch(r"node-[0-9]+", name)]
    index = max([federation.nodes - 1, *numbers]) + 1
    name, pair = f"node-{index}", make_node_pair(f"node-{index}")
    with _new_folder(folder / "nodes" / name) as building:
        _fill_node(building, replace(federation, nodes=index + 1), index, authority.read_bytes(), pair)
    write_atomically(server / f"nodes/{name}.pub", pair.public)
    _list_nodes(folder)
    _count_nodes(server, federation.nodes + 1)
    return folder / "nodes" / name


def revoke(folder: Path, name: str) -> tuple[Path, bool]:
    """Revoke a node's key. Returns its new place, and whether a running nginx refuses it already.

    Other keys stay valid: tests/deploy/test_nginx.py::test_a_revoked_key_is_refused.
    """
    server = server_folder(folder)
    key, revoked = server / f"nodes/{name}.pub", server / f"revoked/{name}.pub"
    if "/" in name or not key.is_file():
        known = ", ".join(sorted(path.stem for path in (server / "nodes").glob("*.pub"))) or "none"
        raise ValueError(f"{server} has no node {name!r}; it has: {known}")
    revoked.parent.mkdir(mode=0o700, exist_ok=True)
    key.rename(revoked)
    (server / f"registered/{name}").unlink(missing_ok=True)
    done = write_known_keys(server)
    _count_nodes(server, max(1, len(list((server / "nodes").glob("*.pub")))))
    return revoked, done


def server_folder(folder: Path) -> Path:
    """The server's folder in a federation's folder, or the folder itself. Raises ValueError without one."""
    for server in (folder.absolute(), folder.absolute() / "server"):
        if (server / "superlink.sh").is_file():
            return server
    raise ValueError(f"{folder} has no federation.toml: create it with `sqsgd deploy init {folder}`")


def renew(folder: Path, days: int) -> Path:
    """Renew the server's certificate for the same key, and return its path; nodes trust the authority."""
    folder = folder.absolute()
    key, certificate = folder / "authority/ca.key", folder / "server/server.pem"
    if not key.is_file():
        raise ValueError(f"{key} is missing: name the folder that `sqsgd deploy init` wrote")
    ends = certificates.expiry(folder / "authority/ca.pem")
    if ends < datetime.now(UTC) + timedelta(days=days, minutes=-1):
        raise ValueError(f"the authority ends on {ends:%Y-%m-%d}, before the server's: give fewer --days")
    write_atomically(certificate, certificates.renewed(key.read_bytes(), certificate.read_bytes(), days))
    reload_nginx(folder / "server")
    return certificate


def _count_nodes(server: Path, nodes: int) -> None:
    text = re.sub(r"(?m)^nodes = [0-9]+$", f"nodes = {nodes}", (server / NAME).read_text())
    write_atomically(server / NAME, text.encode())
