"""A gate that runs, with no SuperLink behind it."""

import asyncio
import contextlib
import http.client
import ssl
import threading

from sqsgd.deploy.node import free_port

from sqsgd.deploy.gate import Gate


@contextlib.contextmanager
def open_gate(server):
    """The address of a gate for a server's folder."""
    port, loop, tasks, ready = free_port(), asyncio.new_event_loop(), [], threading.Event()

    async def serve():
        tasks.append(asyncio.create_task(Gate(server, ("127.0.0.1", free_port())).serve("127.0.0.1", port)))
        await asyncio.sleep(0)
        ready.set()
        with contextlib.suppress(asyncio.CancelledError):
            await tasks[0]

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(tasks[0].cancel)
        thread.join()
        loop.close()


def ask(address, trusted, method="POST", path="/v1/fleet/pull-messages", headers=()):
    """The status of the gate's answer, and the certificate that it showed."""
    host, _, port = address.partition(":")
    context = ssl.create_default_context(cafile=str(trusted))
    connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
    try:
        connection.putrequest(method, path)
        for name, value in [("Content-Length", "0"), *headers]:
            connection.putheader(name, value)
        connection.endheaders()
        shown = connection.sock.getpeercert()
        return connection.getresponse().status, shown
    finally:
        connection.close()
