"""A real PostgreSQL server in a folder of its own, on a port that the system chose."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
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
        server.stop(signal.SIGQUIT)  # at once: nobody needs the data any more
        shutil.rmtree(server.folder, ignore_errors=True)


class Server:
    """PostgreSQL does not run as root: then it runs as the user that Debian's package made."""

    def __init__(self):
        self.programs, self.process = programs(), None
        self.folder = Path(tempfile.mkdtemp(prefix="sqsgd-postgres-"))
        user = "postgres" if os.geteuid() == 0 else None
        if user:
            shutil.chown(self.folder, user)
        self.folder.chmod(0o700)
        self._as = {"user": user, "cwd": self.folder}
        options = ["--auth=trust", "--username=sqsgd", "--no-sync", "-D", self.folder / "data"]
        subprocess.run([self.programs / "initdb", *options], check=True, capture_output=True, **self._as)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://sqsgd@127.0.0.1:{self.port}/postgres"

    def new_url(self, name):
        """The URL of an empty schema: quicker than a database, and a study cannot tell."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}?options=-csearch_path%3D{name}"

    def start(self):
        """Start it, and wait until it answers."""
        import psycopg

        command = [
            self.programs / "postgres", "-D", self.folder / "data", "-p", str(self.port),
            "-k", self.folder, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off",
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **self._as)
        for _ in range(600):
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.1)
        raise AssertionError((self.folder / "log").read_text())

    def stop(self, number=signal.SIGINT):
        """Stop it, by its own id, without waiting for its clients."""
        if self.process is not None:
            self.process.send_signal(number)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
