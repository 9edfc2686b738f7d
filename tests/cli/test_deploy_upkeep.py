"""`sqsgd deploy add-node`, `revoke`, `renew` and `services`, as they are typed."""

import json

from small_federation import small_federation
from typed import typed


def test_what_an_operator_types(tmp_path):
    folder = small_federation(tmp_path)
    done = typed(["sqsgd", "deploy", "add-node", folder])
    assert (done.code, "node-2: move it to the node's machine" in done.out) == (0, True)
    assert "run ./register.sh" in done.out
    done = typed(["sqsgd", "deploy", "revoke", folder, "node-1", "--json"])
    assert json.loads(done.out) == {"revoked": str(folder / "server/revoked/node-1.pub")}
    done = typed(["sqsgd", "deploy", "revoke", folder, "node-1"])
    assert (done.code, "it has: node-0, node-2" in done.error) == (2, True)
    done = typed(["sqsgd", "deploy", "revoke", folder, "node-2"])
    assert "there, run `sqsgd deploy revoke . node-2` too" in done.out
    done = typed(["sqsgd", "deploy", "revoke", folder / "server", "node-0"])
    assert (done.code, "there, run" in done.out) == (0, False)
    assert typed(["sqsgd", "deploy", "renew", folder, "--authority", "--days", "400"]).code == 0
    done = typed(["sqsgd", "deploy", "renew", folder, "--days", "0"])
    assert (done.code, "days = 0" in done.error) == (2, True)
    assert "sqsgd-node-2.service" in typed(["sqsgd", "deploy", "services", folder / "nodes/node-2"]).out
