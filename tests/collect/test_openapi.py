"""The description of the service is that of the service."""

from starlette.routing import Route

from sqsgd.federation.collect.intake import CODES
from sqsgd.federation.collect.openapi import description
from sqsgd.federation.collect.service import Service
from sqsgd.federation.collect.study import make_study

STUDY = make_study({"name": "digits", "dim": 16, "users": 12, "rounds": 3, "bytes": 8}, "00" * 32)


def test_every_route_is_described_and_no_other(tmp_path):
    routes = [route for route in Service(tmp_path, STUDY).app().routes if isinstance(route, Route)]
    served = {(route.path, route.endpoint.method.lower()) for route in routes}
    paths = description(STUDY, "1")["paths"]
    described = {(path, method) for path, methods in paths.items() for method in methods}
    assert described == served


def test_every_refusal_is_described():
    whole = description(STUDY, "1")
    assert whole["components"]["schemas"]["Error"]["properties"]["error"]["enum"] == list(CODES)
    for methods in whole["paths"].values():
        for method in methods.values():
            assert {"200", "default"} <= method["responses"].keys()


def test_the_length_of_a_report_is_described():
    report = description(STUDY, "1")["paths"]["/report"]["post"]
    schema = report["requestBody"]["content"]["application/octet-stream"]["schema"]
    assert schema["maxLength"] == schema["minLength"] == STUDY.made_scheme.bits // 8
