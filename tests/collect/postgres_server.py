"""A real PostgreSQL server in a folder of its own, on a port that the system chose."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

MISSING = "no PostgreSQL server here: apt-get install postgresql"


def programs():
    """The folder of the server's programs; None if it is not installed."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    found = shutil.which("initdb") or (debian[0] if debian else None)
    return None if found is None else Path(found).resolve().parent


@contextlib.contextmanager
def postgres():
    """A running server, without fsync: workers are killed in the tests, the server is not."""
    server = Server()
    try:
        server.start()
        yield server
    finally:
        server.stop("immediate")  # nobody needs the data any more
        shutil.rmtree(server.folder, ignore_errors=True)


class Server:
    """PostgreSQL does not run as root: then it runs as the user that Debian's package made."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="sqsgd-postgres-"))
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(self.folder, self._user)
        self.folder.chmod(0o700)
        self._run("initdb", "--auth=trust", "--username=sqsgd", "--no-sync")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://sqsgd@127.0.0.1:{self.port}/postgres"

    def _run(self, program, *options):
        command = [programs() / program, "-D", self.folder / "data", *options]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # the server inherits them
        subprocess.run(command, check=True, user=self._user, cwd=self.folder, **quiet)

    def new_url(self, name):
        """The URL of an empty schema: quicker than a database, and a study cannot tell."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}?options=-csearch_path%3D{name}"

    def start(self):
        """Start it, and wait until it answers."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "start", "--wait", "-l", self.folder / "log", "-o", options)

    def stop(self, mode="fast"):
        """Stop it without waiting for its clients."""
        self._run("pg_ctl", "stop", "--wait", "-m", mode)
