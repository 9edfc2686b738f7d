"""What each machine runs: the very scripts that `sqsgd deploy up` starts, readable and ready to copy."""

from __future__ import annotations

from sqsgd.deploy.federation import Federation

_HEAD = """\
#!/bin/sh
# {what}
set -eu
here=$(cd -- "$(dirname -- "$0")" && pwd)
"""
_QUIET = """\
# Nothing calls home, nothing is installed while a run is on.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}"
"""
_SERVER = """\
. "$here/environment.sh"
"""

ENVIRONMENT = (
    "# Read by the other scripts of this folder.\n"
    + _QUIET
    + """\
export FLWR_HOME="$here/flwr"
# Flower's own API stays on this machine: whoever reaches it can run code on every node.
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

SUPERLINK = (
    _HEAD.format(what="Flower's SuperLink, for this machine only; nodes come in through gate.sh.")
    + _SERVER
    + """\
[ -e "$here/link.db" ] || rm -rf "$here/registered"  # a new SuperLink knows no keys
exec flower-superlink --host 127.0.0.1 --port "${link##*:}" \\
    --ssl-ca-certfile "$here/ca.pem" --ssl-certfile "$here/server.pem" --ssl-keyfile "$here/server.key" \\
    --enable-supernode-auth --database "$here/link.db" \\
    --isolation process --superexec-auth-secret-file "$here/superexec.secret" \\
    --disable-runtime-dependency-installation
"""
)

SUPEREXEC = (
    _HEAD.format(
        what="Starts the server's part of each run; apart from the SuperLink, so that runs outlive it."
    )
    + _SERVER
    + """\
exec flower-superexec --runtime-api-address "$link" --root-certificates "$here/ca.pem" \\
    --superexec-auth-secret-file "$here/superexec.secret"
"""
)

REGISTER = (
    _HEAD.format(what="Tells the SuperLink the nodes' public keys; once, and again for new nodes.")
    + _SERVER
    + """\
mkdir -p "$here/registered"
for key in "$here"/nodes/*.pub; do
    name=$(basename "$key" .pub)
    if [ -e "$here/registered/$name" ] && cmp -s "$key" "$here/registered/$name"; then continue; fi
    flwr supernode register "$key" federation
    cp "$key" "$here/registered/$name"
done
"""
)

TRAIN = (
    _HEAD.format(what="Submits the training and waits for its end; ends with 0 only if it was completed.")
    + _SERVER
    + """\
exec sqsgd deploy train "$here" "$@"
"""
)

CLIENT_APP = """\
#!/bin/sh
# Flower starts apps by this name. Only those that ../allowed-apps names are run.
exec python3 -m sqsgd.flower.guard "$@"
"""
NO_APP = """\
#!/bin/sh
echo "$(basename "$0"): this node runs client apps alone" >&2
exit 1
"""
REFUSED_COMMANDS = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")
"""The other kinds of code that a SuperLink could have a node run."""

ALLOWED_APPS = """\
# The Flower apps that this node runs, one a line; everything else that a server sends is refused.
# installed: the app that came with this machine's sqsgd. Or the SHA-256 of an app's bundle (a FAB).
installed
"""


def gate(federation: Federation) -> str:
    """The script of the gate: the one door to the server that is open to others."""
    return (
        _HEAD.format(what="The door for nodes: passes on what nodes need, and nothing of the Control API.")
        + _SERVER
        + f'exec sqsgd deploy gate "$here" --listen "${{SQSGD_LISTEN:-0.0.0.0:{federation.port or 8000}}}" '
        + '--to "$link"\n'
    )


def node(federation: Federation) -> str:
    """The script of a node."""
    address = f"{_bracketed(federation.hosts[0])}:{federation.port}"
    where = (
        f'server=${{SQSGD_SERVER:-"{address}"}}\n'
        if federation.port
        else 'server=${SQSGD_SERVER:?"say where the server is, such as SQSGD_SERVER=192.0.2.7:8000"}\n'
    )
    return (
        _HEAD.format(what="This node. What it allows stands in node.conf and allowed-apps.")
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
exec flower-supernode --superlink "$server" --root-certificates "$here/ca.pem" \\
    --auth-supernode-private-key "$here/key" --host 127.0.0.1 --port "${SQSGD_NODE_PORT:-9094}" \\
    --node-config "$settings"
"""
    )


def node_settings(federation: Federation, index: int) -> str:
    """A node's own rules, for its owner to change."""
    code = "".join(
        f'# Python code that the server may have called here.\n{key}="{name}"\n'
        for key, name in (("dataset", federation.dataset), ("model", federation.model))
        if ":" in name
    )
    return f"""\
# What this node's owner decides: key=value, no spaces around the equals sign. Nothing that a server sends
# can change any of it. Read again when the node is started.

# The most that this node's reports may cost in all, for the whole life of its ledger. Once the ledger
# exists this can be lowered here, but never raised.
max-epsilon={float(federation.cap)!r}
# The most that one report may cost.
max-report-epsilon={float(federation.epsilon)!r}
# The schemes that this node answers with.
schemes="{federation.scheme}"
# Where the ledger and the node's memory are kept; an absolute path. Without it: state/ in this folder.
# state-dir="/srv/sqsgd/node-{index}"

# Which part of the data set this node stands for; your own app reads its own data.
partition-id={index}
num-partitions={federation.nodes}
{code}"""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
