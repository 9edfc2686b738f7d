"""The pages in a federation's folders name what is there."""

import re

import pytest

from sqsgd.deploy import instructions as pages
from sqsgd.deploy.federation import Federation


@pytest.mark.parametrize("place", ["", "server", "nodes/node-0"])
def test_every_script_and_file_that_a_page_names_is_there(made, place):
    text = (made / place / "README.md").read_text().replace("node-N", "node-1")
    named = {*re.findall(r"\./(\w+\.sh)", text), *re.findall(r"`([\w./-]*[./-][\w./-]*)`", text)}
    assert len(named) >= 3
    for name in named:
        # The page for whoever made the federation tells what is in the nodes' folders too.
        assert (made / place / name).exists() or (made / "nodes/node-1" / name).exists(), name


def test_the_port_to_open_and_the_address_to_give():
    asked = "SQSGD_SERVER=host:port"
    for port, shown in ((0, 8000), (9443, 9443)):
        federation = Federation(port=port)
        assert f"port {shown}: the only port to open" in pages.server(federation)
        assert (asked in pages.node(federation, 0)) == (port == 0)
