"""The description of the service for machines: OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from sqsgd.federation.collect.intake import CODES
from sqsgd.federation.collect.study import INVITED, LENGTH, MOST_SEED, Study

_TEXT, _NUMBER, _WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 0}
_TICKET = {
    "type": "string",
    "pattern": "^[0-9a-f]{64}$",
    "description": "32 random bytes that the device draws, and keeps until its report is accepted",
}


def description(study: Study, version: str) -> dict[str, Any]:
    """All that a device needs to know about requests; docs/wire-format.md describes a report's bytes."""
    size = study.made_scheme.bits // 8
    task = {
        "round": _WHOLE,
        "client": {**_WHOLE, "description": "the slot"},
        "seed": {**_WHOLE, "maximum": MOST_SEED},
        "dim": _WHOLE,
        "bound": _NUMBER,
        "clip": {"type": "null"},
    }
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
                    "responses": _responses(
                        "The slot.",
                        schema=_object(
                            {
                                "study": _TEXT,
                                "task": _object(task),
                                "model": {**_TEXT, "description": "where the round's weights are"},
                                "seconds": {**_NUMBER, "description": "how long the slot is the device's"},
                            }
                        ),
                    ),
                }
            },
            "/model/{study}/{round}": {
                "get": {
                    "summary": "The weights before a round, little-endian float32; they never change.",
                    "parameters": [
                        {"name": "study", "in": "path", "required": True, "schema": {"const": study.id}},
                        {"name": "round", "in": "path", "required": True, "schema": _WHOLE},
                    ],
                    "responses": _responses(f"{4 * study.dim} bytes.", "application/octet-stream"),
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
                    "responses": _responses(
                        "It is on the disk.",
                        schema=_object(
                            {"accepted": {"const": True}, "round": _WHOLE, "again": {"type": "boolean"}}
                        ),
                    ),
                }
            },
            "/health": {"get": _get("Whether reports can be stored now.")},
            "/metrics": {
                "get": {
                    "summary": "Counters for Prometheus.",
                    "responses": _responses("Text.", "text/plain"),
                }
            },
            "/openapi.json": {"get": _get("This description.")},
        },
        "components": {
            "securitySchemes": {"ticket": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": _object({"error": {"enum": list(CODES)}, "reason": _TEXT, "what_to_do": _TEXT})
            },
        },
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _body(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {kind: {"schema": schema}}}


def _get(summary: str) -> dict[str, Any]:
    return {"summary": summary, "responses": _responses("JSON.")}


def _responses(about: str, kind: str = "application/json", **content: object) -> dict[str, Any]:
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    what = "What is wrong and what to do; with Retry-After where repeating helps."
    return {
        "200": {"description": about, "content": {kind: content}},
        "default": {"description": what, "content": {"application/json": error}},
    }
