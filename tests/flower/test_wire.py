"""Requests, models and reports as Flower's records."""

import pytest
from federation import DIM, message, model, request
from flwr.app import ConfigRecord
from test_request import SENT

from sqsgd.federation.flower import wire
from sqsgd.federation.node.request import MalformedRequest


@pytest.mark.parametrize("changes", SENT)
def test_a_request_arrives_as_it_was_sent(changes):
    sent = request(**changes)
    assert wire.read_request(message(sent).content[wire.REQUEST]) == sent


def test_a_model_that_is_no_array_record_is_malformed():
    sent = message(request())
    sent.content[wire.MODEL] = ConfigRecord({"first": 1.0})
    with pytest.raises(MalformedRequest, match="'arrays' must be an ArrayRecord"):
        wire.download_of(sent.content).arrays()


def test_sizes_are_those_of_the_values_and_their_names():
    report = wire.report_content(b"")
    assert list(report) == [wire.REPORT]
    assert wire.payload_size(report[wire.REPORT]) == len("payload")
    assert wire.payload_size(ConfigRecord({"a": 1, "bc": "def", "d": b"1234"})) == 1 + 8 + 2 + 3 + 1 + 4
    assert wire.payload_size(model()) >= 4 * DIM
    sent = message(request())
    assert wire.serialised_size(sent) > wire.payload_size(sent.content["arrays"])
