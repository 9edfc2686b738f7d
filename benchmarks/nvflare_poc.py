"""A real NVFlare federation of two clients on this machine (its POC mode): the job of examples/nvflare_job.

`unshare -n .venv/bin/python benchmarks/nvflare_poc.py [--rounds 3]`, as root, provisions a server and two
sites, each in its own process. The owners of the sites forbid log streaming and put `SqsgdFilter` into
`local/privacy.json`, as docs/nvflare.md says; the job itself has no filter. Prints what each site answered
and what the server saw.

NVFlare's POC listens on fixed ports, hence the network namespace; give `--here` to do without one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SITES = ("site-1", "site-2")


def nvflare(place: Path, *words: object) -> None:
    """Run a command of NVFlare's, whose settings are below ``place``."""
    folders = {"HOME": place / "home", "NVFLARE_POC_WORKSPACE": place / "poc"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where NVFlare finds `python3`
    variables = {**os.environ, **{name: str(folder) for name, folder in folders.items()}, "PATH": path}
    sources = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [Path(sys.executable).with_name("nvflare"), *map(str, words)]
    done = subprocess.run(command, env={**variables, **sources}, capture_output=True, text=True, cwd=place)
    if done.returncode:
        raise SystemExit(f"nvflare {' '.join(map(str, words))}: {done.stdout}{done.stderr}")


def set_up_site(site: Path, state: Path) -> None:
    """What its owner does: no logs leave, and every job goes through the filter."""
    local = site / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    (local / "resources.json").write_text(json.dumps({**resources, "allow_log_streaming": False}))
    page = (ROOT / "docs/nvflare.md").read_text()
    (text,) = re.findall(r'```json\n(\{\n  "scopes".*?)```', page, re.DOTALL)
    (local / "privacy.json").write_text(text.replace("/var/lib/sqsgd", str(state)))


def answers(state: Path) -> list[dict[str, object]]:
    """What a site has sent."""
    path = state / "answers.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help="in this network namespace")
    given = parser.parse_args()
    if not given.here:
        if [name for _, name in socket.if_nameindex()] != ["lo"]:
            raise SystemExit("run it with `unshare -n`, or give --here")
        subprocess.run([shutil.which("ip") or "/usr/sbin/ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="nvflare-poc-") as name:
        place = Path(name)
        (place / "home").mkdir()
        states = {site: place / "state" / site for site in SITES}
        nvflare(place, "poc", "prepare", "-n", len(SITES), "--force")
        (made,) = (place / "poc").glob("*/prod_00")
        for site, state in states.items():
            state.mkdir(parents=True)
            set_up_site(made / site, state)
        job = shutil.copytree(ROOT / "examples/nvflare_job", place / "job")
        client, server = (job / f"app/config/config_fed_{side}.json" for side in ("client", "server"))
        client.write_text(json.dumps({**json.loads(client.read_text()), "task_data_filters": []}))
        server.write_text(re.sub(r'"num_rounds": \d+', f'"num_rounds": {given.rounds}', server.read_text()))
        started = time.monotonic()
        try:
            nvflare(place, "poc", "start", "--timeout", 120)
            nvflare(place, "job", "submit", "-j", job)
            while min(len(answers(state)) for state in states.values()) < given.rounds:
                if time.monotonic() - started > 600:
                    raise SystemExit("no answers after ten minutes")
                time.sleep(1)
            time.sleep(5)  # the server's last line
            for site, state in states.items():
                sent = answers(state)
                spent = sum(float(str(each["epsilon"])) for each in sent)
                sizes = sorted({each["payload_bytes"] for each in sent})
                print(f"{site}: {len(sent)} reports of {sizes} bytes, epsilon {spent:g} in total")
            log = "".join(path.read_text() for path in made.glob("server/**/log.txt"))
            for line in sorted(set(re.findall(r"sqsgd: round .*", log))):
                print(f"server: {line}")
        finally:
            nvflare(place, "poc", "stop")


if __name__ == "__main__":
    main()
