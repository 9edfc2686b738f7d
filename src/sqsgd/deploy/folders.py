"""Writes a federation's folder: one subfolder per machine, with everything it needs."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from pathlib import Path

from sqsgd.deploy import instructions as pages
from sqsgd.deploy import scripts
from sqsgd.deploy.certificates import (
    AUTHORITY_DAYS,
    Pair,
    make_authority,
    make_node_pair,
    make_server_pair,
    write_secret,
)
from sqsgd.deploy.federation import NAME, Federation
from sqsgd.deploy.folders import node_folders
from sqsgd.deploy.node import create_ledger


def write_federation(folder: Path, federation: Federation, days: int) -> Path:
    """Write certificates, keys, settings and scripts into a new or empty folder.

    Guarantees
    ----------
    * Nothing is overwritten, and a failure leaves no partial federation behind.
      tests/deploy/test_folders.py::test_nothing_is_written_over
    * Every private key is readable by its owner alone, from its creation on.
      tests/deploy/test_folders.py::test_secrets_are_their_owners_alone
    * A node's folder holds its own key only, and the server's holds none of a node or of the authority.
      tests/deploy/test_folders.py::test_no_folder_holds_anothers_secret
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
    authority = make_authority(max(days, AUTHORITY_DAYS))
    certificate = authority.files.public
    _private_folder(folder / "authority")
    write_secret(folder / "authority/ca.key", authority.files.private)
    (folder / "authority/ca.pem").write_bytes(certificate)
    (folder / NAME).write_text(pages.FEDERATION_HEAD + federation.to_toml())
    (folder / "README.md").write_text(pages.overview(federation))
    _fill_server(
        folder / "server", federation, certificate, make_server_pair(authority, federation.certified, days)
    )
    for index in range(federation.nodes):
        pair = make_node_pair(f"node-{index}")
        fill_node(folder / f"nodes/node-{index}", federation, index, certificate, pair)
        (folder / f"server/nodes/node-{index}.pub").write_bytes(pair.public)


def _fill_server(folder: Path, federation: Federation, authority: bytes, pair: Pair) -> None:
    for name in ("", "flwr", "nodes", "runs"):
        _private_folder(folder / name)
    write_secret(folder / "server.key", pair.private)
    write_secret(folder / "superexec.secret", secrets.token_bytes(32))
    (folder / "server.pem").write_bytes(pair.public)
    (folder / "ca.pem").write_bytes(authority)
    (folder / NAME).write_text(pages.FEDERATION_HEAD + federation.to_toml())
    (folder / "environment.sh").write_text(scripts.ENVIRONMENT)
    for name in ("superlink", "superexec", "register", "train"):
        _script(folder / f"{name}.sh", getattr(scripts, name.upper()))
    _script(folder / "gate.sh", scripts.gate(federation))
    (folder / "README.md").write_text(pages.server(federation))


def fill_node(folder: Path, federation: Federation, index: int, authority: bytes, pair: Pair) -> None:
    """Write the folder of one node, without its ledger."""
    for name in ("", "state", "flwr", "bin"):
        _private_folder(folder / name)
    write_secret(folder / "key", pair.private)
    (folder / "key.pub").write_bytes(pair.public)
    (folder / "ca.pem").write_bytes(authority)
    (folder / "node.conf").write_text(scripts.node_settings(federation, index))
    (folder / "allowed-apps").write_text(scripts.ALLOWED_APPS)
    _script(folder / "run.sh", scripts.node(federation))
    _script(folder / "bin/flwr-clientapp", scripts.CLIENT_APP)
    for name in scripts.REFUSED_COMMANDS:
        _script(folder / "bin" / name, scripts.NO_APP)
    (folder / "README.md").write_text(pages.node(federation, index))


def _private_folder(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True)


def _script(path: Path, text: str) -> None:
    write_secret(path, text.encode(), 0o700)
