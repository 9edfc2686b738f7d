"""Changes of a federation that exists: a new node, a revoked key, renewed certificates."""

from __future__ import annotations

import re
import secrets
import shutil
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from cryptography import x509

from sqsgd.deploy.certificates import AUTHORITY_DAYS, Authority, load_authority, make_node_pair, renewed
from sqsgd.deploy.federation import NAME, load_federation
from sqsgd.deploy.folders import fill_node, node_folders
from sqsgd.deploy.node import create_ledger
from sqsgd.files.durable import write_atomically


def add_node(folder: Path) -> Path:
    """Write the folder of one more node, with its key and its ledger; nothing that exists is overwritten.

    It takes part when the server has registered ``server/nodes/NAME.pub``.
    """
    folder = folder.absolute()
    federation = load_federation(folder)
    authority = folder / "authority/ca.pem"
    if not authority.is_file():
        raise ValueError(f"{folder} has no authority/ca.pem: name the folder that `sqsgd deploy init` wrote")
    keys = folder / "server/nodes"
    names = {path.stem for place in (keys, folder / "server/revoked") for path in place.glob("*.pub")}
    names |= {path.name for path in node_folders(folder)}
    numbers = [int(name[5:]) for name in names if re.fullmatch(r"node-[0-9]+", name)]
    index = max([federation.nodes - 1, *numbers]) + 1
    larger = replace(federation, nodes=federation.nodes + 1)
    name, pair = f"node-{index}", make_node_pair(f"node-{index}")
    building = folder / f"nodes/.{name}.{secrets.token_hex(4)}.part"
    try:
        fill_node(building, replace(larger, nodes=index + 1), index, authority.read_bytes(), pair)
        create_ledger(building)
        building.rename(folder / "nodes" / name)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(keys / f"{name}.pub", pair.public)
    _count_nodes(folder, larger.nodes)
    return folder / "nodes" / name


@dataclass(frozen=True, kw_only=True)
class Revocation:
    """A key that is refused from now on."""

    key: Path
    note: str
    """What to correct before the next training; empty if nothing is."""


def revoke(folder: Path, name: str) -> Revocation:
    """Revoke a node's key at the server: its gate refuses the key from the next second on.

    ``folder``: the federation's or the server's.

    Guarantees
    ----------
    * A gate that runs refuses the key, and no other:
      tests/deploy/test_membership.py::test_a_revoked_key_is_refused_by_a_gate_that_runs.
    * No setting of a training keeps a key from being revoked:
      tests/deploy/test_membership.py::test_a_key_is_revoked_even_if_too_few_are_left.
    """
    folder = folder.absolute()
    server = folder if (folder / "superlink.sh").is_file() else folder / "server"
    key = server / f"nodes/{name}.pub"
    if "/" in name or not key.is_file():
        known = ", ".join(sorted(path.stem for path in (server / "nodes").glob("*.pub"))) or "none"
        raise ValueError(f"{server} has no node {name!r}; it has: {known}")
    (server / "revoked").mkdir(mode=0o700, exist_ok=True)
    key.rename(server / f"revoked/{name}.pub")
    (server / f"registered/{name}").unlink(missing_ok=True)
    note = ""
    try:
        federation = load_federation(folder)
        _count_nodes(folder, replace(federation, nodes=federation.nodes - 1).nodes)
    except ValueError as error:
        note = f"{folder / NAME} is as it was: correct it before the next training ({error})"
    return Revocation(key=server / f"revoked/{name}.pub", note=note)


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """The certificates that were written; none of them is secret."""

    server: Path
    authority: list[Path]
    """The authority's own certificate, in every folder that is here."""


def renew(folder: Path, days: int, *, authority: bool) -> Renewal:
    """Renew the server's certificate and, if asked, the authority's; every key stays as it is.

    So nodes that are up, and trust the authority's older certificate, accept the new ones too.
    """
    folder = folder.absolute()
    own, key = folder / "authority/ca.pem", folder / "authority/ca.key"
    certificate = folder / "server/server.pem"
    needed = (
        (key, "name the folder that `sqsgd deploy init` wrote, where the authority's key is"),
        (certificate, "copy the server's server.pem there"),
    )
    for path, what in needed:
        if not path.is_file():
            raise ValueError(f"{path} is missing: {what}")
    signer, written = load_authority(key, own), list[Path]()
    if authority:
        content = renewed(signer, own.read_bytes(), max(days, AUTHORITY_DAYS))
        for path in (own, folder / "server/ca.pem", *(node / "ca.pem" for node in node_folders(folder))):
            write_atomically(path, content)
            written.append(path)
        signer = load_authority(key, own)
    write_atomically(certificate, _signed(signer, certificate, days))
    return Renewal(server=certificate, authority=written)


def _signed(signer: Authority, certificate: Path, days: int) -> bytes:
    ends = signer.certificate.not_valid_after_utc
    content = renewed(signer, certificate.read_bytes(), days)
    if ends < x509.load_pem_x509_certificate(content).not_valid_after_utc - timedelta(minutes=1):
        raise ValueError(
            f"the authority's certificate expires on {ends:%Y-%m-%d}, before the server's would: "
            "renew it too, with --authority, or give fewer --days"
        )
    return content


def _count_nodes(folder: Path, nodes: int) -> None:
    """Write the number of nodes into federation.toml, here and in the server's folder, comments included."""
    for path in (folder / NAME, folder / "server" / NAME):
        if path.is_file():
            text = re.sub(r"(?m)^nodes = [0-9]+$", f"nodes = {nodes}", path.read_text())
            write_atomically(path, text.encode())
