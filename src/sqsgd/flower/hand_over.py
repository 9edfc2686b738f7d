"""Hands a message to the node's warm process; the first thing that Flower starts for each message.

Run by its path, without anything but the standard library, so that it takes milliseconds:
``python3 -IS hand_over.py SOCKET ARGUMENT...``. Exits with 0 if a process has taken the message over, with 1
if there is none; ``bin/flwr-clientapp`` in a node's folder then starts one itself.
"""

import json
import os
import socket
import sys

TAKEN, YOURS = b"T", b"Y"
"""Said by the process that is ready for a message, and by the caller that then leaves it to that process."""
_PATIENCE = 20.0


def hand_over(path: str, arguments: list[str]) -> bool:
    """Whether a process beyond this socket has taken over these arguments of ``flwr-clientapp``."""
    try:
        os.chdir(os.path.dirname(path))  # noqa: PTH120 - pathlib takes longer than all the rest
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect(os.path.basename(path))  # noqa: PTH119 - a socket's path has at most 107 bytes
            socket.send_fds(connection, [json.dumps(arguments).encode() + b"\n"], [1, 2])
            if connection.recv(1) != TAKEN:
                return False
            connection.sendall(YOURS)
            return True
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(0 if hand_over(sys.argv[1], sys.argv[2:]) else 1)
