"""A ClientApp that misbehaves as its node's own configuration says (``hostile="garbage"``); for tests.

It takes the place of the ready app's client_app.py; the rest of that app stays.
"""

import os
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sqsgd.federation.flower import wire
from sqsgd.federation.flower.mod import SqsgdMod
from sqsgd.federation.flower.ready_app import train

HUGE = 100_000  # what nginx just lets through: 64 KiB and twice the report
ENORMOUS = 30_000_000


def misbehave(msg: Message, context: Context, call_next) -> Message:
    """Outermost: what the honest mod has made can be exchanged for anything."""
    kind, folder = context.node_config.get("hostile", ""), Path(context.node_config["state-dir"])
    round = wire.read_request(msg.content[wire.REQUEST]).task.round
    reply = call_next(msg, context)
    if not kind or reply.has_error():
        return reply
    honest = reply.content[wire.REPORT][wire.PAYLOAD]
    if kind == "straggler":
        if round == 1:
            time.sleep(float(context.node_config["hang"]))
        return reply
    payload = {
        # In turn: an unknown version, and noise under the honest one.
        "garbage": bytes([honest[0] + 1 - round % 2]) + os.urandom(len(honest) - 1),
        "huge": honest[:1] + bytes(HUGE - 1),
        "enormous": os.urandom(ENORMOUS),  # so that nothing can compress it
        "replay": (folder / "first").read_bytes() if (folder / "first").exists() else honest,
    }[kind]
    if kind == "replay" and round == 0:
        (folder / "first").write_bytes(honest)
    return Message(RecordDict({wire.REPORT: ConfigRecord({wire.PAYLOAD: payload})}), reply_to=msg)


app = ClientApp(mods=[misbehave, SqsgdMod()])
app.train()(train)
