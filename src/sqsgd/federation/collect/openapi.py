"""The description of the service for machines: OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from sqsgd.federation.collect.intake import CODES
from sqsgd.federation.collect.study import INVITED, LENGTH, Study

_TEXT, _NUMBER, _WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 0}
_TICKET = {
    "type": "string",
    "pattern": "^[0-9a-f]{64}$",
    "description": "32 random bytes that the device draws, and keeps until its report is accepted",
}
_TASK = {
    "type": "object",
    "required": ["round", "client", "seed", "dim", "bound", "clip"],
    "properties": {
        "round": _WHOLE,
        "client": {**_WHOLE, "description": "the slot"},
        "seed": {**_WHOLE, "maximum": 2**53 - 1},
        "dim": _WHOLE,
        "bound": _NUMBER,
        "clip": {"type": "null"},
    },
}


def description(study: Study, version: str) -> dict[str, Any]:
    """All that a device needs to know about requests; docs/wire-format.md describes a report's bytes."""
    size = study.made_scheme.bits // 8
    join: dict[str, Any] = {"study": {"const": study.id}, "ticket": _TICKET}
    if study.admission == INVITED:
        join["invitation"] = {**_TEXT, "maxLength": LENGTH}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Study {study.name}", "version": version},
        "paths": {
            "/study": {"get": _get("What is asked, of how many, at which epsilon, and how far it is.")},
            "/join": {
                "post": {
                    "summary": "A slot of the current round; the same slot if repeated with the same ticket.",
                    "requestBody": _body("application/json", _object(join)),
                    "responses": {
                        "200": _json(
                            "The slot.",
                            {
                                "study": _TEXT,
                                "task": _TASK,
                                "model": {**_TEXT, "description": "where the round's weights are"},
                                "seconds": {**_NUMBER, "description": "how long the slot is the device's"},
                            },
                        ),
                        **_errors(),
                    },
                }
            },
            "/model/{study}/{round}": {
                "get": {
                    "summary": "The weights before a round, little-endian float32; they never change.",
                    "parameters": [
                        {"name": "study", "in": "path", "required": True, "schema": {"const": study.id}},
                        {"name": "round", "in": "path", "required": True, "schema": _WHOLE},
                    ],
                    "responses": {
                        "200": {
                            "description": f"{4 * study.dim} bytes.",
                            "content": {"application/octet-stream": {}},
                        },
                        **_errors(),
                    },
                }
            },
            "/report": {
                "post": {
                    "summary": "The report. It counts once, however often the same bytes are sent.",
                    "security": [{"ticket": []}],
                    "requestBody": _body(
                        "application/octet-stream",
                        {"type": "string", "format": "binary", "minLength": size, "maxLength": size},
                    ),
                    "responses": {
                        "200": _json(
                            "It is on the disk.",
                            {"accepted": {"const": True}, "round": _WHOLE, "again": {"type": "boolean"}},
                        ),
                        **_errors(),
                    },
                }
            },
            "/health": {"get": _get("Whether reports can be stored now.")},
            "/metrics": {
                "get": {
                    "summary": "Counters for Prometheus.",
                    "responses": {
                        "200": {"description": "Text.", "content": {"text/plain": {}}},
                        **_errors(),
                    },
                }
            },
            "/openapi.json": {"get": _get("This description.")},
        },
        "components": {
            "securitySchemes": {"ticket": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": _object(
                    {"error": {"enum": list(CODES)}, "reason": _TEXT, "what_to_do": _TEXT},
                )
            },
        },
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _json(about: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": _object(properties)}}}


def _body(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {kind: {"schema": schema}}}


def _get(summary: str) -> dict[str, Any]:
    answer = {"description": "JSON.", "content": {"application/json": {}}}
    return {"summary": summary, "responses": {"200": answer, **_errors()}}


def _errors() -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {
        "default": {
            "description": "What is wrong and what to do; with Retry-After where repeating helps.",
            "content": {"application/json": {"schema": schema}},
        }
    }
