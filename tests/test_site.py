"""The site builds without network access and without warnings: links resolve, everything is documented."""

import subprocess
import sys

import pytest
from snippets import ROOT


def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    pytest.importorskip("flwr", reason="the flower extra is not installed")
    offline = "import socket\ndef refused(*_): raise OSError('the build asked for the network')\n"
    offline += "socket.socket.connect = socket.getaddrinfo = refused\n"
    (tmp_path / "sitecustomize.py").write_text(offline)
    path = f"{tmp_path}:{ROOT / 'src'}"
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
