"""A real PostgreSQL server in a folder of its own, on a port that the system chose."""

import contextlib
import getpass
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
    found = shutil.which("initdb") or next(
        iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None
    )
    return None if found is None else Path(found).resolve().parent


@contextlib.contextmanager
def postgres(*options):
    """A running server: yields an object with ``url``, ``stop`` and ``start``. ``options``: as fsync=off."""
    server = Server(programs(), options)
    try:
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)  # at once: nobody needs the data any more
        shutil.rmtree(server.folder, ignore_errors=True)


class Server:
    """PostgreSQL does not run as root: then it runs as the user that Debian's package made."""

    def __init__(self, folder, options):
        self.programs, self.process, self.options = folder, None, options
        self.folder = Path(tempfile.mkdtemp(prefix="sqsgd-postgres-"))
        self.user = "postgres" if os.geteuid() == 0 else None
        if self.user:
            shutil.chown(self.folder, self.user)
        self.folder.chmod(0o700)
        self._run("initdb", "--auth=trust", "--username=sqsgd", "--no-sync", "-D", self.folder / "data")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @property
    def url(self):
        return f"postgresql://sqsgd@127.0.0.1:{self.port}/postgres"

    def new_url(self, name):
        """The URL of an empty schema: quicker than a database, and a study cannot tell."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}?options=-csearch_path%3D{name}"

    def start(self):
        """Start it, and wait until it answers."""
        import psycopg

        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    self.programs / "postgres", "-D", self.folder / "data", "-p", str(self.port),
                    "-k", self.folder, "-c", "listen_addresses=127.0.0.1",
                    *(word for option in self.options for word in ("-c", option)),
                ],
                stdout=log, stderr=log, user=self.user, cwd=self.folder,
            )  # fmt: skip
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

    def _run(self, name, *arguments):
        done = subprocess.run(
            [self.programs / name, *arguments],
            user=self.user,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{getpass.getuser()}: {done.stdout}{done.stderr}"
