"""A worker in a thread of the tests, for what needs no process of its own."""

import contextlib
import threading
import time

from sqsgd.federation.collect.serving import prepare


@contextlib.contextmanager
def served(folder, **options):
    """The address of a running service."""
    server, listener, url = prepare(folder, host="127.0.0.1", port=0, **options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield url
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
