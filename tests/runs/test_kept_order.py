"""The order of a run's users, from its beginning to its end."""

import pytest

from sqsgd.federated.order import secret_order
from sqsgd.files.secret_files import replace_secret, secret_folder
from sqsgd.runs.kept_order import SEEDED, forget_order, keep_order, kept_order


def test_the_same_order_comes_back(tmp_path):
    order = secret_order(100, 10)
    name = keep_order(order, tmp_path)
    assert kept_order(name) == order
    assert kept_order(name).cohort(3).tolist() == order.cohort(3).tolist()
    forget_order(name)
    assert not (secret_folder() / name).exists()
    forget_order(SEEDED)  # there is no file


def test_without_it_nothing_continues(tmp_path):
    name = keep_order(secret_order(100, 10), tmp_path)
    forget_order(name)
    with pytest.raises(ValueError, match="users could be asked twice"):
        kept_order(name)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"users": 1, "per_round": 1, "key": "zz"}', b"[1]"])
def test_a_damaged_file_is_named(tmp_path, content):
    name = keep_order(secret_order(100, 10), tmp_path)
    replace_secret(name, content)
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        kept_order(name)
