"""The shell scripts of each machine, which `sqsgd deploy up` starts too."""

from __future__ import annotations

from sqsgd.deploy.federation import Federation

_HEAD = """\
#!/bin/sh
# {what}
set -eu
here=$(cd -- "$(dirname -- "$0")" && pwd)
"""
_QUIET = """\
# No telemetry, no update checks, no installation during a run.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}"
"""

ENVIRONMENT = (
    "# Read by the other scripts of this folder.\n"
    + _QUIET
    + """\
export FLWR_HOME="$here/flwr"
# Flower's API stays on this machine: anyone who reaches it can run code on every node.
link=127.0.0.1:${SQSGD_LINK_PORT:-8001}
cat > "$FLWR_HOME/config.toml.$$" <<END
[superlink]
default = "federation"

[superlink.federation]
address = "$link"
root-certificates = "$here/ca.pem"
END
mv -f "$FLWR_HOME/config.toml.$$" "$FLWR_HOME/config.toml"
"""
)


def _server(what: str, commands: str) -> str:
    """A script of the server's machine."""
    return _HEAD.format(what=what) + '. "$here/environment.sh"\n' + commands


SUPERLINK = _server(
    "Flower's SuperLink, for this machine only; nodes connect through gate.sh.",
    """\
[ -e "$here/link.db" ] || rm -rf "$here/registered"  # a new SuperLink has no keys
exec flower-superlink --host 127.0.0.1 --port "${link##*:}" \\
    --ssl-ca-certfile "$here/ca.pem" --ssl-certfile "$here/server.pem" --ssl-keyfile "$here/server.key" \\
    --enable-supernode-auth --database "$here/link.db" \\
    --isolation process --superexec-auth-secret-file "$here/superexec.secret" \\
    --disable-runtime-dependency-installation
""",
)

SUPEREXEC = _server(
    "Starts the server's part of each run, outside the SuperLink, so that runs survive its exit.",
    """\
exec flower-superexec --runtime-api-address "$link" --root-certificates "$here/ca.pem" \\
    --superexec-auth-secret-file "$here/superexec.secret"
""",
)

REGISTER = _server(
    "Registers the nodes' public keys with the SuperLink: once, and again for new nodes.",
    """\
mkdir -p "$here/registered"
for key in "$here"/nodes/*.pub; do
    [ -e "$key" ] || continue
    name=$(basename "$key" .pub)
    if [ -e "$here/registered/$name" ] && cmp -s "$key" "$here/registered/$name"; then continue; fi
    flwr supernode register "$key" federation
    cp "$key" "$here/registered/$name"
done
""",
)

TRAIN = _server(
    "Submits the training and waits until it ends; exits with 0 only if it was completed.",
    """\
exec sqsgd deploy train "$here" "$@"
""",
)

CLIENT_APP = """\
#!/bin/sh
# Flower starts apps by this name. Only those listed in ../allowed-apps are run: by the node's warm process,
# or here if there is none.
if [ -n "${SQSGD_WARM_SOCKET:-}" ] && python3 -IS "$SQSGD_HAND_OVER" "$SQSGD_WARM_SOCKET" "$@"; then
    exit 0
fi
exec python3 -m sqsgd.flower.guard "$@"
"""
NO_APP = """\
#!/bin/sh
echo "$(basename "$0"): this node runs client apps only" >&2
exit 1
"""
REFUSED_COMMANDS = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")
"""The other kinds of code that a SuperLink could make a node run."""

MIN_BATCH = 32
"""The ready app's own batch."""

ALLOWED_APPS = """\
# The Flower apps that this node runs, one per line; any other that a server sends is refused.
# `installed` is the app that came with this machine's sqsgd; others are listed by their bundle's SHA-256.
installed
"""


def gate(federation: Federation) -> str:
    """The script of the gate, the only program of the server that other machines reach."""
    listen = f"${{SQSGD_LISTEN:-0.0.0.0:{federation.port or 8000}}}"
    return _server(
        "The proxy for nodes: forwards what nodes need, and nothing of the Control API.",
        f'exec sqsgd deploy gate "$here" --listen "{listen}" --to "$link"\n',
    )


def node(federation: Federation) -> str:
    """The script of a node."""
    address = f"{_bracketed(federation.hosts[0])}:{federation.port}"
    where = (
        f'server=${{SQSGD_SERVER:-"{address}"}}\n'
        if federation.port
        else 'server=${SQSGD_SERVER:?"set the address of the server, such as SQSGD_SERVER=192.0.2.7:8000"}\n'
    )
    return (
        _HEAD.format(what="This node. What it allows is in node.conf and allowed-apps.")
        + _QUIET
        + """\
export FLWR_HOME="$here/flwr" SQSGD_ALLOWED_APPS="$here/allowed-apps"
export PATH="$here/bin:$PATH"
umask 077
"""
        + where
        + """\
settings=$(grep -v -e '^[[:space:]]*#' -e '^[[:space:]]*$' "$here/node.conf" | tr '\\n' ' ')
case " $settings" in
    *" state-dir="*) ;;
    *) settings="state-dir=\\"$here/state\\" $settings" ;;
esac
python3 -m sqsgd.deploy.preflight "$here" "$server"
exec python3 -m sqsgd.flower.supernode --superlink "$server" --root-certificates "$here/ca.pem" \\
    --auth-supernode-private-key "$here/key" --host 127.0.0.1 --port "${SQSGD_NODE_PORT:-9094}" \\
    --node-config "$settings"
"""
    )


def node_settings(federation: Federation, index: int) -> str:
    """A node's settings, for its owner to change."""
    code = "".join(
        f'# Python code that the server may call on this node.\n{key}="{name}"\n'
        for key, name in (("dataset", federation.dataset), ("model", federation.model))
        if ":" in name
    )
    return f"""\
# The owner's settings: key=value, without spaces around the equals sign. Nothing that a server sends can
# change them. They are read when the node starts.

# The total epsilon that this node may spend, over the lifetime of its ledger. Once the ledger exists, this
# can be lowered here, but not raised.
max-epsilon={float(federation.cap)!r}
# The most epsilon that one report may spend, and the most bytes of codes in it. At 20,000 and 25,000 a server
# that asks for a small batch can see the examples in it.
max-epsilon-per-report={float(federation.epsilon)!r}
max-bytes={federation.bytes}
# The smallest batch that the server may ask an app for, where its configuration names one.
min-batch={MIN_BATCH}
# The most epsilon that one evaluation may spend. With it, a server may ask after a round how well the model
# does on this node's data, and gets one private number; without it, it gets none.
{"" if federation.evaluate_epsilon else "# "}evaluate-epsilon={federation.evaluate_epsilon or 1.0!r}
# The schemes that this node answers with.
schemes="{federation.scheme}"
# Absolute path of the folder for the ledger and the node's state. Default: state/ in this folder.
# state-dir="/srv/sqsgd/node-{index}"
# Answer nothing if the ledger is missing: without this, a folder that was lost, or whose disk is not mounted,
# would become a new ledger with the full budget. `sqsgd deploy init` created the ledger in state/. After a
# change of state-dir, move that folder there; before the node's first start, `sqsgd deploy ledger` followed
# by the path of this folder creates a new one instead.
require-ledger=true
# A second record of the ledger's length, on another disk: detects that all of state-dir was replaced by an
# older copy. After adding it here, create the file with `sqsgd deploy ledger`.
# witness="/mnt/other-disk/node-{index}.tip"
# Whether SqsgdMod is put around every app that allowed-apps lists, so that only private reports leave,
# whatever its author did.
wrap-apps=true
# Whether a process that has imported everything is kept, so that a message takes a fraction of the time.
# It needs some hundred MB of memory.
warm-process=true

# Which part of the data set this node holds; your own app reads its own data.
partition-id={index}
num-partitions={federation.nodes}
{code}"""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
