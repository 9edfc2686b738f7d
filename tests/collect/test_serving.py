"""A worker: TLS, bounded times, and a log without addresses."""

import datetime
import ipaddress
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from devices import Device, invited, make, worker
from served import served

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


def test_tls(tmp_path):
    make(tmp_path / "study")
    chain, key = certificate(tmp_path)
    with served(tmp_path / "study", certificate=chain, key=key) as url:
        assert url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(chain))
        with urllib.request.urlopen(f"{url}/health", context=trusting) as answer:  # noqa: S310
            assert answer.read() == b'{"healthy":true}'


def test_a_certificate_without_its_key(tmp_path):
    make(tmp_path / "study")
    chain, _ = certificate(tmp_path)
    with pytest.raises(ValueError, match="both a certificate and its key"):
        prepare(tmp_path / "study", host="127.0.0.1", port=0, certificate=chain)
    (tmp_path / "nonsense.pem").write_text("nonsense")
    with pytest.raises(ssl.SSLError):
        prepare(
            tmp_path / "study", host="127.0.0.1", port=0, certificate=chain, key=tmp_path / "nonsense.pem"
        )


def test_a_port_that_is_taken(tmp_path):
    make(tmp_path / "study")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="cannot be listened on"):
            prepare(tmp_path / "study", host="127.0.0.1", port=other.getsockname()[1])


def test_slow_headers_end_the_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "header_seconds", 0.3)
    make(tmp_path / "study")
    with served(tmp_path / "study") as url:
        place = urlsplit(url)
        for beginning in (b"", b"GET /study HTTP/1.1\r\nho"):
            with socket.create_connection((place.hostname, place.port), timeout=30) as slow:
                slow.sendall(beginning)
                assert slow.recv(100) == b""


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    "parts",
    [
        (b"GET /study HTTP/1.1\r\nx: ", *[b"y" * 6000] * 3),  # one that does not end
        (b"GET /study HTTP/1.1\r\n" + b"x: y\r\n" * 6000 + b"\r\n",),  # all of them at once
        (b"GET /" + b"y" * 20000 + b" HTTP/1.1\r\n\r\n",),
    ],
)
def test_long_headers_end_the_connection(tmp_path, before, parts):
    make(tmp_path / "study")
    with served(tmp_path / "study") as url:
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port), timeout=8) as long:  # 10 s are too late
            if before:
                long.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert b'{"healthy":true}' in long.recv(65536)
            for part in parts:
                long.sendall(part)
            answer = b"".join(iter(lambda: long.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 400") == 1
    assert b"HTTP/1.1 200" not in answer


@pytest.mark.parametrize("path", ["GET /study", "GET /nothing", "POST /report", "PUT /join"])
def test_a_body_that_nobody_waits_for_ends_the_connection(tmp_path, path):
    make(tmp_path / "study")
    with served(tmp_path / "study") as url:
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port), timeout=8) as drip:
            drip.sendall(f"{path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n".encode())
            assert b"HTTP/1.1 " in b"".join(iter(lambda: drip.recv(65536), b""))


def test_empty_lines_do_not_keep_a_connection_open(tmp_path, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "header_seconds", 1.0)
    make(tmp_path / "study")
    with served(tmp_path / "study") as url:
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port), timeout=8) as drip:
            drip.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b'{"healthy":true}' in drip.recv(65536)
            drip.sendall(b"\r\n")
            assert drip.recv(65536) == b""


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
            running.ask("GET", "/nothing")
            during = running.log.read_text()
            running.process.terminate()
            running.process.wait(60)
            text = running.log.read_text()
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_ends_without_a_traceback(tmp_path, number):
    make(tmp_path / "study")
    with worker(tmp_path / "study") as running:
        assert running.ask("GET", "/health")[0] == 200
        running.process.send_signal(number)
        assert running.process.wait(60) in (0, 130, -number)
        assert "Traceback" not in running.log.read_text()


def test_a_worker_of_another_study_does_not_start(tmp_path):
    make(tmp_path / "one")
    make(tmp_path / "two", users=24)
    (tmp_path / "two/study.toml").write_bytes((tmp_path / "one/study.toml").read_bytes())
    command = [sys.executable, "-m", "sqsgd", "collect", "serve", str(tmp_path / "two"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "the database holds study" in done.stderr
