"""systemd units and a compose file for the folder of a server or a node, with the paths of this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sqsgd.deploy.federation import load_federation
from sqsgd.deploy.live_state import SERVER_PARTS

_INSIDE = "/federation"


def write_services(folder: Path) -> list[Path]:
    """Write ``services/*.service`` and ``services/compose.yaml`` into the folder of a server or a node."""
    folder = folder.absolute()
    if (folder / "node.conf").is_file():
        programs = {folder.name: "run"}
    elif (folder / "superlink.sh").is_file():
        programs = {name: name for name in SERVER_PARTS}
    else:
        raise ValueError(f"{folder} is neither a server's nor a node's folder")
    texts = {f"sqsgd-{name}.service": _unit(folder, name, script) for name, script in programs.items()}
    texts["compose.yaml"] = _compose(folder, programs)
    (folder / "services").mkdir(mode=0o700, exist_ok=True)
    for name, text in texts.items():
        (folder / "services" / name).write_text(text)
    return [folder / "services" / name for name in texts]


def _unit(folder: Path, name: str, script: str) -> str:
    place, owner = str(folder).replace("%", "%%"), folder.stat().st_uid
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin".replace("%", "%%")
    after = " sqsgd-superlink.service" if name in SERVER_PARTS and name != "superlink" else ""
    return f"""\
# Written by `sqsgd deploy services`; copy it to /etc/systemd/system.
[Unit]
Description=sqsgd {name}
Wants=network-online.target{after}
After=network-online.target{after}
StartLimitIntervalSec=0

[Service]
User={owner}
ExecStart="{place}/{script}.sh"
Environment="PATH={path}"
# Such as SQSGD_SERVER=host:port.
EnvironmentFile=-{place}/environment
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


def _compose(folder: Path, programs: dict[str, str]) -> str:
    lines = [
        "# Written by `sqsgd deploy services`. SQSGD_IMAGE: an image with Python and sqsgd[train,flower].",
        "services:",
    ]
    for name, script in programs.items():
        lines += [
            f"  {name}:",
            '    image: "${SQSGD_IMAGE:?an image with sqsgd[train,flower]}"',
            f"    command: [{json.dumps(f'{_INSIDE}/{script}.sh')}]",
            f"    user: {json.dumps(str(folder.stat().st_uid))}",
            f"    volumes: [{{type: bind, source: {json.dumps(str(folder))}, target: {_INSIDE}}}]",
            "    init: true",
            "    restart: unless-stopped",
            "    security_opt: [no-new-privileges:true]",
        ]
        if name == "superlink":  # its API stays within the network that the three share
            port = load_federation(folder).port or 8000
            lines.append(f'    ports: ["{port}:{port}"]')
        elif name in SERVER_PARTS:
            lines += ['    network_mode: "service:superlink"', "    depends_on: [superlink]"]
        else:
            lines.append('    environment: ["SQSGD_SERVER"]')
    return "\n".join(lines) + "\n"
