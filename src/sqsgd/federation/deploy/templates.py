"""What standard parts run: scripts, nginx's configuration, systemd units, a compose file, a Procfile."""

from collections.abc import Sequence

from sqsgd.federation.deploy.federation import Federation
from sqsgd.federation.node.policy import DEFAULT_SCHEMES, PER_RECORD
from sqsgd.training.settings import RECORD

MIN_BATCH = 32  # the ready app's own batch
SERVER_PARTS = ("superlink", "superexec", "nginx")
# The other kinds of code that a SuperLink could make a node run:
REFUSED_COMMANDS = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")
CLIENT_APP = """\
#!/bin/sh
# Flower starts apps by this name. Only those listed in ../allowed-apps are run.
exec python3 -m sqsgd.federation.flower.guard "$@"
"""
NO_APP = """\
#!/bin/sh
echo "$(basename "$0"): this node runs client apps only" >&2
exit 1
"""
ALLOWED_APPS = """\
# The Flower apps that this node runs, one per line; the node refuses all others.
# `installed` is the app that came with this machine's sqsgd; `sqsgd deploy allow` adds others.
installed
"""
_FLOWER = """\
export FLWR_HOME="$here/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}"
"""


def _head(what: str) -> str:
    return f'#!/bin/sh\n# {what}\nset -eu\nhere=$(cd -- "$(dirname -- "$0")" && pwd)\n'


def server_scripts(federation: Federation) -> dict[str, str]:
    return {
        "superlink.sh": f"""\
{_head("Flower's SuperLink, for this machine only: anyone who reaches it can submit code.")}\
{_FLOWER}[ -e "$here/link.db" ] || rm -rf "$here/registered"  # a new SuperLink has no keys
exec flower-superlink --host 127.0.0.1 --port {federation.link_port} \\
    --ssl-ca-certfile "$here/ca.pem" --ssl-certfile "$here/server.pem" --ssl-keyfile "$here/server.key" \\
    --enable-supernode-auth --database "$here/link.db" \\
    --isolation process --superexec-auth-secret-file "$here/superexec.secret" \\
    --disable-runtime-dependency-installation
""",
        "superexec.sh": f"""\
{_head("Starts the server's part of each run, outside the SuperLink, so that runs survive it.")}\
{_FLOWER}export SQSGD_RUN="$here/flwr/run.json"  # where a run is written, even if the app names no folder
exec flower-superexec --runtime-api-address 127.0.0.1:{federation.link_port} \\
    --root-certificates "$here/ca.pem" --superexec-auth-secret-file "$here/superexec.secret"
""",
        "nginx.sh": _head("The only program of the server that other machines reach.")
        + 'PATH="$PATH:/usr/sbin"\nexec nginx -e stderr -p "$here/" -c nginx.conf\n',
        "train.sh": _head("Registers the nodes' keys, trains, and exits with 0 only if it was completed.")
        + 'exec sqsgd deploy train "$here" "$@"\n',
    }


def node_script(federation: Federation) -> str:
    host = federation.hosts[0]
    address = f"[{host}]:{federation.port}" if ":" in host else f"{host}:{federation.port}"
    head = _head("This node. What it allows is in node.conf and allowed-apps.")
    return f'{head}exec python3 -m sqsgd.federation.deploy.node "$here" "${{SQSGD_SERVER:-{address}}}"\n'


def nginx(federation: Federation) -> str:
    """nginx's configuration: TLS, the Fleet API and nothing else, for the keys in nodes.map."""
    most = 64 * 1024 + 2 * federation.bytes
    hosts = ["127.0.0.1:"] if federation.local else [""]
    if not federation.local and ":" in "".join(federation.hosts):
        hosts.append("[::]:")
    listen = " ".join(f"listen {host}{federation.port} ssl;" for host in hosts)
    return f"""\
# Lets nodes reach the Fleet API of Flower's SuperLink, and nobody anything else of it: its Control API, on
# the same port, authenticates nobody, and anyone who reaches it can submit code. Paths are relative to here.
daemon off; pid nginx.pid; worker_processes 1; worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
  access_log off; server_tokens off;
  client_body_temp_path tmp/body; proxy_temp_path tmp/proxy;
  fastcgi_temp_path tmp/fastcgi; uwsgi_temp_path tmp/uwsgi; scgi_temp_path tmp/scgi;
  # The nodes' public keys as Flower sends them; written by sqsgd deploy init, add-node, revoke and train.
  map_hash_bucket_size 1024;
  map $http_flwr_public_key $known {{ default 0; include nodes.map; }}
  # The request as it was sent, so that nginx and Flower cannot read it differently.
  map "$request_method $request_uri" $fleet {{ default 0; "~^GET /$" 1; "~^POST /v1/fleet/[a-z-]+$" 1; }}
  limit_req_zone $binary_remote_addr zone=requests:10m rate=20r/s;
  limit_conn_zone $binary_remote_addr zone=connections:10m;
  server {{
    {listen}
    ssl_certificate server.pem; ssl_certificate_key server.key; ssl_protocols TLSv1.2 TLSv1.3;
    client_header_timeout 10s; client_body_timeout 10s; send_timeout 60s;
    # A request is at most two reports and Flower's wrapping; it is kept in memory, not on disk.
    client_max_body_size {most}; client_body_buffer_size {most}; proxy_max_temp_file_size 0;
    limit_conn connections 100; limit_conn_status 503;
    # Flower repeats a request after a 503, and loses a report that was paid for after a 429.
    limit_req zone=requests burst=400; limit_req_status 503;
    if ($known = 0) {{ return 401; }}  # after which a node ends, and says why when it starts again
    if ($fleet = 0) {{ return 403; }}
    location = / {{ return 200; }}  # by whose date nodes check their clocks
    location /v1/fleet/ {{
      proxy_pass https://127.0.0.1:{federation.link_port}; proxy_http_version 1.1; proxy_read_timeout 120s;
      proxy_ssl_trusted_certificate ca.pem; proxy_ssl_verify on; proxy_ssl_name localhost;
    }}
    location / {{ return 403; }}
  }}
}}
"""


def node_settings(federation: Federation, index: int) -> str:
    code = "".join(
        f'# Python code that the server may call on this node.\n{key}="{name}"\n'
        for key, name in (("dataset", federation.dataset), ("model", federation.model))
        if ":" in name
    )
    default = RECORD if federation.per_record else ",".join(DEFAULT_SCHEMES)
    schemes = default if federation.scheme == "auto" else federation.scheme
    return f"""\
# The owner's settings, in TOML, read when the node starts. Nothing that a server sends can change them.

{_cap(federation)}max-bytes={federation.bytes}
# The smallest batch that the server may ask an app for, where its configuration names one.
min-batch={MIN_BATCH}
# The schemes that this node answers with.
schemes="{schemes}"
# Absolute path of the folder for the ledger and the node's state. Default: state/ in this folder.
# state-dir="/srv/sqsgd/node-{index}-state"
# Answer nothing if the ledger is missing: a lost folder, or a disk that is not mounted, would become a new
# ledger with the full budget. After a change of state-dir, move state/ there.
require-ledger=true
# A second record of the ledger's length, on another disk: detects that all of state-dir was replaced by an
# older copy. After adding it here, create the file with `sqsgd deploy ledger`.
# witness="/mnt/other-disk/node-{index}.tip"

# Which part of the data set this node holds; your own app reads its own data.
partition-id={index}
num-partitions={federation.nodes}
{code}"""


def _cap(federation: Federation) -> str:
    if federation.per_record:
        return f"""\
# The (epsilon, delta) that this node may spend on each of its records, ever. It can be lowered here;
# `sqsgd ledger top-up` raises it. Reports hide single records, and not what all records have in common.
{PER_RECORD}={float(federation.cap)!r}
delta={federation.delta!r}
# How much of it evaluations may spend: the number of correct predictions, with noise. Default: 0.
# evaluation-epsilon-per-record={federation.evaluation_epsilon or 0.1!r}
# The most bytes of codes in a report.
"""
    return f"""\
# The total epsilon that this node may spend, ever. It can be lowered here; `sqsgd ledger top-up` raises it.
max-epsilon={float(federation.cap)!r}
# The most epsilon that one report may spend, and the most bytes of codes in it. At 20,000 and 25,000 a server
# that asks for a small batch can see the examples in it.
max-epsilon-per-report={float(federation.epsilon)!r}
"""


def procfile(nodes: list[str]) -> str:
    """Return the Procfile that runs everything on one machine. It restarts all but nginx and the training."""
    lines = [f"{name}: while :; do server/{name}.sh; sleep 2; done" for name in SERVER_PARTS[:2]]
    lines.append("nginx: exec server/nginx.sh")
    for name in nodes:
        wait = f"until [ -e server/registered/{name} ]; do sleep 1; done"
        lines.append(f"{name}: {wait}; while :; do nodes/{name}/run.sh; sleep 5; done")
    return "\n".join([*lines, "train: eval exec server/train.sh $SQSGD_TRAIN_OPTIONS", ""])


def services(folder: str, scripts: Sequence[str], port: int) -> dict[str, str]:
    """Return the compose file and the systemd units of a server (with the port of nginx) or a node (0)."""
    units = {f"sqsgd-{folder if name == 'run' else name}.service": _unit(folder, name) for name in scripts}
    return {"compose.yaml": _compose(scripts, port), **units}


def _unit(folder: str, script: str) -> str:
    return f"""\
# Copy it to /etc/systemd/system. It assumes this folder at /srv/sqsgd/{folder} and sqsgd installed in
# /srv/sqsgd/venv; otherwise change both paths. A node needs no port to be open.
[Unit]
Description=sqsgd {folder} {script}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
User=sqsgd
ExecStart=/srv/sqsgd/{folder}/{script}.sh
Environment=PATH=/srv/sqsgd/venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin
Restart=always
RestartSec=15
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""


def _compose(scripts: Sequence[str], port: int) -> str:
    text = "# SQSGD_IMAGE: an image with nginx, Python and sqsgd[train,flower].\nservices:\n"
    for name in scripts:
        text += f"""\
  {name}:
    image: "${{SQSGD_IMAGE:?an image with sqsgd[train,flower]}}"
    command: ["/federation/{name}.sh"]
    volumes: [".:/federation"]
    init: true
    restart: unless-stopped
    security_opt: [no-new-privileges:true]
    logging: {{driver: json-file, options: {{max-size: 10m, max-file: "3"}}}}
"""
        if name == "superlink":  # its API stays within the network that the three share
            text += f'    ports: ["{port}:{port}"]\n'
        elif port:
            text += '    network_mode: "service:superlink"\n    depends_on: [superlink]\n'
    return text
