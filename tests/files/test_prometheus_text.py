"""The text that Prometheus reads."""

from sqsgd.files.prometheus_text import Metric, exposition


def test_labels_that_quote_others_break_no_line():
    values = [({"reason": 'a "b"\n\\c', "node": "x"}, 2), ({}, 0.5)]
    text = exposition([Metric(name="n", kind="counter", about="About.", values=values)])
    assert text == ('# HELP n About.\n# TYPE n counter\nn{reason="a \\"b\\"\\n\\\\c",node="x"} 2\nn 0.5\n')
