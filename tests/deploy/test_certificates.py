"""The federation's own authority: what it certifies holds in TLS as Python and Flower speak it."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from sqsgd.federation.deploy.certificates import (
    expiry,
    general_name,
    make_authority,
    make_node_pair,
    make_server_pair,
)


def test_it_holds_for_its_hosts_until_it_ends_and_certifies_nothing_further(tmp_path):
    """TLS with it: tests/deploy/test_nginx.py, and test_node.py for certificates that are not accepted."""
    pair = make_authority(30)
    (tmp_path / "server.pem").write_bytes(make_server_pair(pair.private, ("a.example", "::1"), 30).public)
    ends = datetime.now(UTC) + timedelta(days=30)
    assert abs(expiry(tmp_path / "server.pem") - ends) < timedelta(minutes=5)
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    authority = x509.load_pem_x509_certificate(pair.public)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["a.example", "::1"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    server.verify_directly_issued_by(authority)
    with pytest.raises(ValueError):  # noqa: PT011 - cryptography's message
        make_server_pair(make_node_pair("node-0").public, ("127.0.0.1",), 1)


@pytest.mark.parametrize(
    "host", ["", "a b", "-a", "a-", "a..b", "exa_mple", "1.2.3.4.5", "300.1.1.1", "é.org", "a" * 64, "*"]
)
def test_what_is_no_host_is_refused(host):
    with pytest.raises(ValueError, match="must be a name such as"):
        general_name(host)
