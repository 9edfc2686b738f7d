"""The federation's own authority: what it certifies holds in TLS as Python and Flower speak it."""

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from sqsgd.federation.deploy.certificates import (
    expiry,
    general_name,
    make_authority,
    make_node_pair,
    make_server_pair,
)


def written(folder, days=3, hosts=("127.0.0.1", "localhost")):
    authority = make_authority(days)
    pair = make_server_pair(authority.private, hosts, days)
    (folder / "ca.pem").write_bytes(authority.public)
    (folder / "server.pem").write_bytes(pair.public)
    (folder / "server.key").write_bytes(pair.private)
    return folder


def handshake(server_folder, trusted_folder, name):
    """What a client says that trusts one folder's authority and meets another's server."""
    front = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    front.load_cert_chain(server_folder / "server.pem", server_folder / "server.key")
    client = ssl.create_default_context(cafile=str(trusted_folder / "ca.pem"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve():
        try:
            front.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name) as connection:
            return connection.version()
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "server.example.org", "::1"])
def test_the_certificate_holds_for_each_host(tmp_path, name):
    folder = written(tmp_path, hosts=("server.example.org", "127.0.0.1", "localhost", "::1"))
    assert handshake(folder, folder, name) in ("TLSv1.2", "TLSv1.3")


def test_it_holds_for_no_other_host_and_under_no_other_authority(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        written(tmp_path / name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(tmp_path / "one", tmp_path / "one", "192.0.2.7")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "one", tmp_path / "other", "127.0.0.1")


def test_it_ends_when_asked_and_certifies_nothing_further(tmp_path):
    folder = written(tmp_path, days=30)
    assert abs(expiry(folder / "server.pem") - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=5)
    server, authority = (
        x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in ("server.pem", "ca.pem")
    )
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    server.verify_directly_issued_by(authority)


def test_a_nodes_key_is_what_flower_takes():
    one, other = make_node_pair("node-0"), make_node_pair("node-0")
    key = load_ssh_private_key(one.private, None)
    assert isinstance(key.curve, ec.SECP384R1)
    public = load_ssh_public_key(one.public)
    assert public.public_numbers() == key.public_key().public_numbers()
    assert one.public.startswith(b"ecdsa-sha2-nistp384 ")
    assert one.public.endswith(b" node-0\n")
    assert one.private != other.private


@pytest.mark.parametrize(
    "host", ["", "a b", "-a", "a-", "a..b", "exa_mple", "1.2.3.4.5", "300.1.1.1", "é.org", "a" * 64, "*"]
)
def test_what_is_no_host_is_refused(host):
    with pytest.raises(ValueError, match="must be a name such as"):
        general_name(host)
