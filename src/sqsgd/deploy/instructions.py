"""The README files in a federation's folders, for the operator of each machine."""

from __future__ import annotations

from sqsgd.deploy.federation import Federation

FEDERATION_HEAD = """\
# The settings of a federation, written by `sqsgd deploy init`. `sqsgd deploy up` and server/train.sh read
# this file; what a node allows is in that node's node.conf.
"""


def overview(federation: Federation) -> str:
    """For the person who created the federation."""
    return f"""\
# A federation of {federation.nodes} nodes

| folder | for | holds |
|---|---|---|
| `authority/` | you alone; keep it off every machine that takes part | the key that certifies servers |
| `server/` | the server's machine | its certificate and key, the nodes' public keys, what is trained |
| `nodes/node-N/` | node N's machine | its key, its rules (`node.conf`), its ledger (`state/`) |

To try everything on this machine: `sqsgd deploy up` with this folder, then `status` and `down`.
On several machines: copy each folder to its machine over a channel that you trust (it holds a private key),
delete it here, and follow the README.md in it. `sqsgd deploy up` reads `federation.toml` and copies it to
`server/federation.toml`, which is what `server/train.sh` reads.
"""


def server(federation: Federation) -> str:
    """For the operator of the server."""
    port = federation.port or 8000
    return f"""\
# The server

Needs `pip install 'sqsgd[train,flower]'`, and that environment's `bin` on the PATH. Start three
programs that keep running, each in its own terminal or service, then run two commands:

    ./superlink.sh     # Flower's server, for this machine only
    ./superexec.sh     # starts the server's part of each run
    ./gate.sh          # the proxy for nodes, port {port}: the only port to open in a firewall

    ./register.sh      # once: the nodes' public keys
    ./train.sh         # when the nodes run; ends with 0 only if training was completed
    ./train.sh --resume   # continues from the last checkpoint

    sqsgd deploy status . --watch     # the training
    sqsgd deploy services .           # writes systemd units and a compose file
    sqsgd deploy revoke . node-1      # refuses a node from then on

`federation.toml` says what is trained; `runs/` holds the results. `server.key` and `superexec.secret` are
secrets. Anyone who can reach the SuperLink's own port (8001, on 127.0.0.1) can submit code: give no one else
access to this machine.
"""


def node(federation: Federation, index: int) -> str:
    """For a node's owner."""
    return f"""\
# Node {index}

Needs `pip install 'sqsgd[train,flower]'`, and that environment's `bin` on the PATH. Then:

    ./run.sh{"" if federation.port else "   # with SQSGD_SERVER=host:port"}

It keeps running and reconnects after the server was away. If it was killed, starting it again within a
minute may fail with Flower's error 305: wait and start it again, or let a service manager restart it.

    sqsgd deploy status . --watch     # what was spent, answered and refused
    sqsgd deploy services .           # writes a systemd unit and a compose file

Only you decide:

* `node.conf`: how much epsilon may be spent in total and by one report, with which schemes, how large a
  report may be, how small a batch the server may ask for, and whether it may ask how well the model does on
  this node's data.
* `allowed-apps`: which code may run here. `installed` is the app of your own sqsgd installation.
  With `wrap-apps=true` in `node.conf`, any of them sends private reports only.
* `state/`: the ledger of what was spent. `sqsgd ledger show state/ledger` reads it. Never restore an older
  copy of this folder, and never run two nodes with the same key: both would spend the same budget twice.
  Without its ledger the node answers nothing. A `witness` in `node.conf` detects an older copy.

`key` is this node's secret and never leaves this machine.
"""
