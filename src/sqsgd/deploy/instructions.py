"""The pages that lie in a federation's folders, for the people at each machine."""

from __future__ import annotations

from sqsgd.deploy.federation import Federation

FEDERATION_HEAD = """\
# A federation, as `sqsgd deploy init` decided it. `sqsgd deploy up` and server/train.sh read this file;
# what a node allows stands in that node's own node.conf.
"""


def overview(federation: Federation) -> str:
    """For whoever made the federation."""
    return f"""\
# A federation of {federation.nodes} nodes

| folder | for | holds |
|---|---|---|
| `authority/` | you alone; keep it off every machine that takes part | the key that certifies servers |
| `server/` | the server's machine | its certificate and key, the nodes' public keys, what is trained |
| `nodes/node-N/` | node N's machine | its key, its rules (`node.conf`), its ledger (`state/`) |

All on this machine, for a try: `sqsgd deploy up` with this folder, then `status` and `down`.
On several machines: copy each folder to its machine over a channel that you trust (it holds a private key),
delete it here, and follow the README.md in it. `sqsgd deploy up` reads `federation.toml` and copies it to
`server/federation.toml`, which is what `server/train.sh` reads.
"""


def server(federation: Federation) -> str:
    """For whoever runs the server."""
    port = federation.port or 8000
    return f"""\
# The server

Needs `pip install 'sqsgd[train,flower]'`, and that environment's `bin` on the PATH. Three programs that keep
running, each in a terminal or a service of its own, then two commands:

    ./superlink.sh     # Flower's server, for this machine only
    ./superexec.sh     # starts the server's part of each run
    ./gate.sh          # the door for nodes, port {port}: the only one to open in a firewall

    ./register.sh      # once: the nodes' public keys
    ./train.sh         # when the nodes run; ends with 0 only if training was completed
    ./train.sh --resume   # goes on from the last checkpoint

`federation.toml` says what is trained; `runs/` holds what came of it. `server.key` and `superexec.secret` are
secrets. Whoever can reach the SuperLink's own port (8001, on 127.0.0.1) can submit code: keep others off this
machine.
"""


def node(federation: Federation, index: int) -> str:
    """For a node's owner."""
    return f"""\
# Node {index}

Needs `pip install 'sqsgd[train,flower]'`, and that environment's `bin` on the PATH. Then:

    ./run.sh{"" if federation.port else "   # with SQSGD_SERVER=host:port"}

It keeps running and connects again when the server was away. If it was killed, starting it again within a
minute may end with Flower's error 305: wait and start it again (a service manager that restarts it will do).

You decide, nobody else:

* `node.conf`: how much privacy may be spent in all and by one report, and on which schemes.
* `allowed-apps`: which code may run here. `installed` is the app of your own sqsgd installation.
* `state/`: the ledger of what was spent. `sqsgd ledger show state/ledger` reads it. Never put back an older
  copy of this folder, and never run two nodes with the same key: both would spend the same budget twice.

`key` is this node's secret and never leaves this machine.
"""
