"""A worker: TLS, bounded times, and a log without addresses."""

import datetime
import ipaddress
import signal
import socket
import ssl
import urllib.request
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from devices import Device, ask, invited, make, served, worker

from sqsgd.federation.collect.rounds import full_status, opened, tick
from sqsgd.federation.collect.serving import BoundedProtocol, prepare


def certificate(folder):
    """A self-signed certificate for the loopback."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "chain.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder / "chain.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study whose settings no test of this file changes."""
    make(folder := tmp_path_factory.mktemp("serving") / "study")
    return folder


def connected(url, timeout=8):
    place = urlsplit(url)
    return socket.create_connection((place.hostname, place.port), timeout=timeout)


def received(connection):
    """All bytes until the service ends the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_tls(folder, tmp_path):
    chain, key = certificate(tmp_path)
    with served(folder, certificate=chain, key=key) as url:
        assert url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(chain))
        with urllib.request.urlopen(f"{url}/health", context=trusting) as answer:  # noqa: S310
            assert answer.read() == b'{"healthy":true}'
    (tmp_path / "nonsense.pem").write_text("nonsense")
    with pytest.raises(ssl.SSLError):
        prepare(folder, host="127.0.0.1", port=0, certificate=chain, key=tmp_path / "nonsense.pem")


def test_a_port_that_is_taken(folder):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="cannot be listened on"):
            prepare(folder, host="127.0.0.1", port=other.getsockname()[1])


def test_slow_headers_and_empty_lines_end_the_connection(folder, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "header_seconds", 0.5)
    with served(folder) as url:
        for beginning in (b"", b"GET /study HTTP/1.1\r\nho"):
            with connected(url) as slow:
                slow.sendall(beginning)
                assert slow.recv(100) == b""
        with connected(url) as drip:
            drip.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b'{"healthy":true}' in drip.recv(65536)
            drip.sendall(b"\r\n")
            assert drip.recv(65536) == b""


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    "parts",
    [
        (b"GET /study HTTP/1.1\r\nx: ", *[b"y" * 6000] * 3),  # one that does not end
        (b"GET /study HTTP/1.1\r\n" + b"x: y\r\n" * 6000 + b"\r\n",),  # all of them at once
        (b"GET /" + b"y" * 20000 + b" HTTP/1.1\r\n\r\n",),
    ],
)
def test_long_headers_end_the_connection(folder, before, parts):
    with served(folder) as url, connected(url) as long:  # 10 s are too late
        if before:
            long.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b'{"healthy":true}' in long.recv(65536)
        for part in parts:
            long.sendall(part)
        answer = received(long)
    assert answer.count(b"HTTP/1.1 400") == 1
    assert b"HTTP/1.1 200" not in answer


def test_a_body_that_nobody_waits_for_ends_the_connection(folder):
    with served(folder) as url:
        for path in ("GET /study", "GET /nothing", "POST /report", "PUT /join"):
            with connected(url) as drip:
                drip.sendall(f"{path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n".encode())
                assert b"HTTP/1.1 " in received(drip)


def test_neither_an_address_nor_the_time_of_a_report_is_logged(tmp_path):
    """Reports leave no line at all: the log is the same however many there were, and whenever."""
    folder = tmp_path / "study"
    study = make(folder, users=400)
    for options, expected in (((), False), (("--log-addresses",), True)):
        with worker(folder, *options) as running:
            before = running.log.read_text()
            for invitation in invited(folder, study, 2):
                assert Device(study, invitation).whole(running.url)[0] == 200
                assert Device(study, invitation).join(running.url)[0] == 409
            ask(running.url, "GET", "/nothing")
            during = running.log.read_text()
            running.process.terminate()
            running.process.wait(60)
            text = running.log.read_text()
        assert "Traceback" not in text
        assert ("127.0.0.1" in text) == expected, text
        assert (during != before) == expected, text
        assert ("/report" in text) == expected, text


def test_the_operator_confirms_that_the_clock_is_right(tmp_path):
    """After a pause that is longer than a round, which a worker cannot tell from a wrong clock."""
    make(tmp_path / "study")
    with opened(tmp_path / "study") as (study, database):
        database.write("UPDATE study SET seen = 0")
        assert not tick(database, study)
        assert "--clock-is-right" in full_status(database, study)["clock"]
        prepare(tmp_path / "study", host="127.0.0.1", port=0, clock_is_right=True)[1].close()
        assert full_status(database, study)["clock"] == ""


def test_a_worker_ends_without_a_traceback(folder):
    """SIGTERM ends the workers of the test of the log."""
    with worker(folder) as running:
        assert ask(running.url, "GET", "/health")[0] == 200
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) in (0, 130, -signal.SIGINT)
        assert "Traceback" not in running.log.read_text()


def test_a_worker_of_another_study_does_not_start(folder, tmp_path):
    make(tmp_path / "two", users=24)
    (tmp_path / "two/study.toml").write_bytes((folder / "study.toml").read_bytes())
    with pytest.raises(ValueError, match="the database holds study"):
        prepare(tmp_path / "two", host="127.0.0.1", port=0)
