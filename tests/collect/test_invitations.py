"""Invitations cannot be forged, and say nothing about who holds them."""

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sqsgd.federation.collect.study import (
    KEY,
    LENGTH,
    Inspector,
    InvalidInvitation,
    invitations,
    new_key,
    read_key,
)

STUDY = "0123456789abcdef"


@pytest.fixture
def made(tmp_path):
    public = new_key(tmp_path)
    (invitation,) = invitations(read_key(tmp_path / KEY, public), STUDY, 1)
    return Inspector(STUDY, public), invitation


def test_an_invitation_is_recognised_and_has_one_number(made):
    inspector, invitation = made
    assert len(invitation) <= LENGTH
    assert inspector.number(invitation) == inspector.number(invitation)
    assert len(inspector.number(invitation)) == 32


def test_every_changed_bit_is_refused(made):
    inspector, invitation = made
    token = bytearray(base64.urlsafe_b64decode(invitation + "=" * (-len(invitation) % 4)))
    for bit in range(8 * len(token)):
        token[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidInvitation):
            inspector.number(base64.urlsafe_b64encode(token).decode().rstrip("="))
        token[bit // 8] ^= 1 << bit % 8


def test_an_invitation_has_one_spelling(made):
    """Two texts of one invitation would admit two devices."""
    inspector, invitation = made
    last = invitation[-1]
    other = next(c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c != last)
    for text in (invitation + "=", invitation + "\n", " " + invitation, invitation[:-1] + other):
        with pytest.raises(InvalidInvitation):
            inspector.number(text)


@pytest.mark.parametrize("text", [None, 5, "", "ä", "A" * 5000, "!!!!", {"a": 1}])
def test_other_texts_are_refused(made, text):
    with pytest.raises(InvalidInvitation):
        made[0].number(text)


def test_another_study_and_another_operator_are_refused(made, tmp_path):
    inspector, invitation = made
    private = Ed25519PrivateKey.generate()
    (forged,) = invitations(private, STUDY, 1)
    with pytest.raises(InvalidInvitation, match="did not sign"):
        inspector.number(forged)
    public = private.public_key().public_bytes_raw().hex()
    with pytest.raises(InvalidInvitation, match="another study"):
        Inspector("f" * 16, public).number(invitation)
    with pytest.raises(ValueError, match="another study"):
        read_key(tmp_path / KEY, public)


def test_the_key_is_for_its_owner_alone(tmp_path):
    public = new_key(tmp_path)
    assert (tmp_path / KEY).stat().st_mode & 0o777 == 0o600
    (tmp_path / KEY).write_text("nonsense")
    with pytest.raises(ValueError, match="holds no signing key"):
        read_key(tmp_path / KEY, public)
    (tmp_path / KEY).unlink()
    with pytest.raises(ValueError, match="only whoever holds"):
        read_key(tmp_path / KEY, public)
