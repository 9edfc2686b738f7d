"""The tests that concern Flower, with other versions of Flower than the installed one.

python tools/flower_versions.py 1.38.0 1.42.0 [-- -m "not faults" tests/flower tests/deploy]

Makes an environment for each version below build/flower/, which takes everything but Flower and what it
needs from the environment of this Python, and runs the tests.
Prints the last line of each; all of it is in build/flower/VERSION.log. Exits with 1 if anything failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ["tests/flower", "tests/deploy"]


def environment(version: str) -> Path:
    """The Python of an environment with this version; it is made once."""
    folder = ROOT / "build/flower" / version
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        inside = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        # After the environment's own packages: what it has itself comes first.
        (inside / "of-the-parent.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wanted = f"flwr[simulation]=={version}"
        if subprocess.run([*pip, wanted]).returncode:
            print(f"{wanted}: what it requires cannot all be had; installing Flower alone", flush=True)
            subprocess.run([*pip, "--no-deps", "--ignore-installed", f"flwr=={version}"], check=True)
        (folder / "bin/sqsgd").write_text(f"#!{python}\nfrom sqsgd.cli import main\n\nmain()\n")
        (folder / "bin/sqsgd").chmod(0o755)
        (folder / "ready").touch()
    return python


def main(arguments: list[str]) -> int:
    """Run the tests with each version."""
    versions, _, tests = "\0".join(arguments).partition("\0--\0")
    failed = 0
    for version in versions.split("\0"):
        python, log = environment(version), ROOT / "build/flower" / f"{version}.log"
        variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        chosen = tests.split("\0") if tests else TESTS
        with log.open("w") as output:
            command = [python, "-m", "pytest", "-q", *chosen]
            done = subprocess.run(command, cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT)
            failed += bool(done.returncode)
        print(f"flwr {version}: {log.read_text().rstrip().splitlines()[-1]}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) if len(sys.argv) > 1 else __doc__)
