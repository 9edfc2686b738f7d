"""Writes a federation's folder, one subfolder per machine; adds and revokes nodes, renews certificates."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import secrets
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm

from sqsgd._internal.files import write_atomically
from sqsgd.federation.deploy import templates
from sqsgd.federation.deploy.certificates import (
    AUTHORITY_DAYS,
    Pair,
    expiry,
    make_authority,
    make_node_pair,
    make_server_pair,
    pem_of_openssh,
    renewed,
    write_secret,
)
from sqsgd.federation.deploy.federation import NAME, Federation, load_federation
from sqsgd.federation.deploy.node import create_ledger, free_port


def node_folders(folder: Path) -> list[Path]:
    """The folders of the nodes on this machine, in the order of their numbers."""
    found = [path.parent for path in (folder / "nodes").glob("node-*/node.conf")]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def write_federation(folder: Path, federation: Federation, days: int) -> Path:
    """Write certificates, keys, settings and scripts into a new or empty folder.

    Guarantees
    ----------
    * Nothing is overwritten, and a failure leaves no partial federation behind.
      tests/deploy/test_folders.py::test_nothing_is_overwritten
    * Every private key is readable by its owner alone, from its creation on; a node's folder holds its own
      key only, and the server's none of a node or of the authority.
      tests/deploy/test_folders.py::test_every_secret_is_its_owners_alone
    * Every node has its ledger, and settings that refuse to run without it.
      tests/deploy/test_folders.py::test_every_node_has_the_ledger_that_it_requires
    """
    folder = folder.absolute()
    if set(str(folder)) & set("\"'\\$`\n"):
        raise ValueError(f"{folder}: choose a path without quotes, dollar signs or backslashes")
    if folder.is_file():
        raise ValueError(f"{folder} is a file; name a new folder")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} exists and is not empty: choose another folder; nothing was written")
    port, link = (free_port(), free_port()) if federation.local else (8000, 8001)
    federation = replace(federation, port=federation.port or port, link_port=federation.link_port or link)
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        building.mkdir(mode=0o700)
        _fill(building, federation, days)
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()
        building = building.rename(folder)
        for node in node_folders(folder):  # here and not before: a ledger records its path
            create_ledger(node)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return folder


def _fill(folder: Path, federation: Federation, days: int) -> None:
    authority, server = make_authority(max(days, AUTHORITY_DAYS)), folder / "server"
    for path in (folder / "authority", *(server / name for name in ("", "flwr", "nodes", "runs", "tmp"))):
        path.mkdir(mode=0o700)
    write_secret(folder / "authority/ca.key", authority.private)
    (folder / "authority/ca.pem").write_bytes(authority.public)
    pair = make_server_pair(authority.private, federation.certified, days)
    write_secret(server / "server.key", pair.private)
    write_secret(server / "superexec.secret", secrets.token_bytes(32))
    (server / "server.pem").write_bytes(pair.public)
    (server / "ca.pem").write_bytes(authority.public)
    (server / NAME).write_text(federation.to_toml())
    (folder / NAME).symlink_to(f"server/{NAME}")
    (server / "nginx.conf").write_text(templates.nginx(federation))
    for name, text in templates.server_scripts(federation).items():
        write_secret(server / name, text.encode(), 0o700)
    _services(server, list(templates.SERVER_PARTS), federation.port)
    for index in range(federation.nodes):
        name = f"node-{index}"
        node = make_node_pair(name)
        _fill_node(folder / "nodes" / name, federation, index, authority.public, node)
        (server / f"nodes/{name}.pub").write_bytes(node.public)
    _list_nodes(folder)


def _list_nodes(folder: Path) -> None:
    """Tell nginx and honcho of the nodes."""
    write_known_keys(folder / "server")
    (folder / "Procfile").write_text(templates.procfile([path.name for path in node_folders(folder)]))


def _fill_node(folder: Path, federation: Federation, index: int, authority: bytes, pair: Pair) -> None:
    for name in ("", "state", "flwr", "bin"):
        (folder / name).mkdir(mode=0o700, parents=True)
    write_secret(folder / "key", pair.private)
    (folder / "key.pub").write_bytes(pair.public)
    (folder / "ca.pem").write_bytes(authority)
    (folder / "node.conf").write_text(templates.node_settings(federation, index))
    (folder / "allowed-apps").write_text(templates.ALLOWED_APPS)
    write_secret(folder / "run.sh", templates.node_script(federation).encode(), 0o700)
    write_secret(folder / "bin/flwr-clientapp", templates.CLIENT_APP.encode(), 0o700)
    for name in templates.REFUSED_COMMANDS:
        write_secret(folder / "bin" / name, templates.NO_APP.encode(), 0o700)
    _services(folder, ["run"], 0, f"node-{index}")


def _services(folder: Path, scripts: list[str], port: int, name: str = "server") -> None:
    (folder / "compose.yaml").write_text(templates.compose(scripts, port))
    for script in scripts:
        unit = f"sqsgd-{name if script == 'run' else script}.service"
        (folder / unit).write_text(templates.unit(name, script))


def write_known_keys(server: Path) -> bool:
    """Write the keys in ``nodes/`` for nginx, and let a running nginx read them; whether it did.

    A file that is not a public key is left out, so that it keeps no other key from being revoked.
    """
    text = ""
    for key in sorted((server / "nodes").glob("*.pub")):
        with contextlib.suppress(ValueError, UnsupportedAlgorithm):
            text += f'"{base64.b64encode(pem_of_openssh(key.read_bytes())).decode()}" 1;  # {key.stem}\n'
    write_atomically(server / "nodes.map", text.encode())
    return reload_nginx(server)


def find_nginx() -> str | None:
    """Where nginx is installed; Debian keeps it outside ordinary users' PATH."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def reload_nginx(server: Path) -> bool:
    """Let nginx of this folder read its files again; False if it does not run on this machine."""
    if not (server / "nginx.pid").exists():
        return False
    program = find_nginx()
    command = [program or "nginx", "-e", "stderr", "-p", f"{server}/", "-c", "nginx.conf", "-s", "reload"]
    return program is not None and not subprocess.run(command, capture_output=True, check=False).returncode  # noqa: S603


def add_node(folder: Path) -> Path:
    """Write the folder of one more node, with its key and its ledger; nothing that exists is overwritten.

    It takes part when the server has registered ``server/nodes/NAME.pub``, which ``train`` does.
    """
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
    building = folder / f"nodes/.{name}.{secrets.token_hex(4)}.part"
    try:
        _fill_node(building, replace(federation, nodes=index + 1), index, authority.read_bytes(), pair)
        create_ledger(building)
        building.rename(folder / "nodes" / name)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    write_atomically(server / f"nodes/{name}.pub", pair.public)
    _list_nodes(folder)
    _count_nodes(server, federation.nodes + 1)
    return folder / "nodes" / name


def revoke(folder: Path, name: str) -> tuple[Path, bool]:
    """Revoke a node's key in the folder of a federation or a server.

    Returns where the key now is, and whether a running nginx refuses it already.

    Guarantees
    ----------
    * nginx refuses the key, and no other: tests/deploy/test_nginx.py::test_a_revoked_key_is_refused.
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
    """The server's folder in that of a federation, or itself; ValueError if there is none."""
    for server in (folder.absolute(), folder.absolute() / "server"):
        if (server / "superlink.sh").is_file():
            return server
    create = f"create it with `sqsgd deploy init {folder}`"
    raise ValueError(f"{folder} has no federation.toml: {create}, or name that of a federation or a server")


def renew(folder: Path, days: int, *, authority: bool) -> list[Path]:
    """Renew the server's certificate and, if asked, the authority's; every key stays as it is.

    So nodes that are up, and trust the authority's older certificate, accept the new ones too. Returns the
    certificates that were written; none of them is secret.
    """
    folder = folder.absolute()
    own, key = folder / "authority/ca.pem", folder / "authority/ca.key"
    certificate = folder / "server/server.pem"
    for path in (key, certificate):
        if not path.is_file():
            raise ValueError(f"{path} is missing: name the folder that `sqsgd deploy init` wrote")
    written, signer = list[Path](), key.read_bytes()
    if not authority and (ends := expiry(own)) < datetime.now(UTC) + timedelta(days=days, minutes=-1):
        raise ValueError(
            f"the authority's certificate expires on {ends:%Y-%m-%d}, before the server's would: "
            "renew it too, with --authority, or give fewer --days"
        )
    if authority:
        content = renewed(signer, own.read_bytes(), max(days, AUTHORITY_DAYS))
        written = [own, folder / "server/ca.pem", *(node / "ca.pem" for node in node_folders(folder))]
        for path in written:
            write_atomically(path, content)
    write_atomically(certificate, renewed(signer, certificate.read_bytes(), days))
    reload_nginx(folder / "server")
    return [*written, certificate]


def _count_nodes(server: Path, nodes: int) -> None:
    text = re.sub(r"(?m)^nodes = [0-9]+$", f"nodes = {nodes}", (server / NAME).read_text())
    write_atomically(server / NAME, text.encode())
