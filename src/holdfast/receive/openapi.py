"""The OpenAPI document of the OpenLineage endpoints: every path, every answer.

Made from the same table of reasons as the answers themselves (`STATUS_OF`), so that a status cannot
be given that is not in it. Tests send what the document allows, and what it does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast import __version__
from holdfast.receive.responses import STATUS_OF, Reason

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}

# What may be said to a POST besides 200; 404 and 405 answer other paths and methods.
_ELSEWHERE = {Reason.NOT_FOUND, Reason.METHOD}
_DESCRIPTIONS = {
    400: "Not valid, or not readable. Not accepted; `kept` says whether it is in the dead letters.",
    401: "The bearer token is missing or not known.",
    403: "The producer may not speak for one of the namespaces.",
    404: "No such path.",
    405: "No such method here; see `Allow`.",
    413: "The body, unpacked or not, or the batch is too large.",
    415: "The content type, its charset or the content encoding is not supported.",
    431: "The headers are too large.",
    503: "Not now; nothing is lost if it is sent again after `Retry-After` seconds.",
}
_HEADERS: dict[int, Schema] = {
    401: {"WWW-Authenticate": {"required": True, "schema": _TEXT}},
    405: {"Allow": {"required": True, "schema": _TEXT}},
    503: {"Retry-After": {"required": True, "schema": {"type": "integer", "minimum": 1}}},
}


def openapi_document(paths: Iterable[str], *, asks_token: bool) -> Schema:
    """Return the document for single-event paths; each has a batch and a validate path too."""
    items: dict[str, Schema] = {}
    for number, path in enumerate(paths):
        # Names of operations must differ; the first path is the proper one.
        alias = f"_{number}" if number else ""
        items[path] = _operation(f"post_event{alias}", "Store one event", _EVENT_BODY, "Accepted")
        items[f"{path}/batch"] = _operation(
            f"post_batch{alias}", "Store many events as one bundle", _BATCH_BODY, "BatchResult"
        )
        items[f"{path}/validate"] = _operation(
            f"validate_event{alias}", "Check one event, store nothing", _EVENT_BODY, "Verdict"
        )
    items["/openapi.json"] = {
        "get": {
            "operationId": "get_openapi",
            "summary": "This document",
            "security": [],
            "responses": {"200": _json("This document", {"type": "object"})},
        }
    }
    bearer = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast: OpenLineage receiver",
            "version": __version__,
            "description": (
                "Takes OpenLineage events and answers once they are durable. A trailing slash and "
                "a query string change nothing. Bodies may be gzip, deflate or zstd."
            ),
        },
        "paths": items,
        "components": {
            "schemas": _SCHEMAS,
            "responses": {str(status): _refusal(status) for status in sorted(_DESCRIPTIONS)},
            **({"securitySchemes": bearer} if asks_token else {}),
        },
        **({"security": [{"bearer": []}]} if asks_token else {}),
    }


def _operation(name: str, summary: str, body: Schema, answer: str) -> Schema:
    statuses = {STATUS_OF[reason] for reason in STATUS_OF if reason not in _ELSEWHERE}
    responses = {"200": _json(_SCHEMAS[answer]["description"], _named(answer))}
    for status in sorted(statuses):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            "requestBody": {"required": True, "content": body},
            "responses": responses,
        }
    }


def _refusal(status: int) -> Schema:
    schema = _named("Rejected" if status == 400 else "Refused")  # noqa: PLR2004
    response = _json(_DESCRIPTIONS[status], schema)
    return {**response, "headers": _HEADERS[status]} if status in _HEADERS else response


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _named(schema: str) -> Schema:
    return {"$ref": f"#/components/schemas/{schema}"}


def _object(description: str, required: Schema, optional: Schema | None = None) -> Schema:
    return {
        "type": "object",
        "description": description,
        "required": list(required),
        "properties": {**required, **(optional or {})},
        "additionalProperties": False,
    }


_POSITION: Schema = {
    "type": "string",
    "description": "Quiver id / number of the bundle / row in it, of the first accepted event",
}
_PROBLEMS: Schema = {"type": "array", "items": _named("Problem")}
_THING: Schema = {
    "type": "object",
    "required": ["namespace", "name"],
    "properties": {"namespace": _TEXT, "name": _TEXT},
}
_WHY: Schema = {
    "status": {"const": "rejected"},
    "reason": {"enum": sorted(set(Reason) - {Reason.DISCONNECTED})},
    "message": _TEXT,
    "hint": _TEXT,
}
_SCHEMAS: dict[str, Schema] = {
    "Event": {
        "type": "object",
        "description": "A RunEvent, JobEvent or DatasetEvent as the OpenLineage specification says",
        "required": ["eventTime", "producer", "schemaURL"],
        "properties": {
            "eventTime": {"type": "string", "format": "date-time"},
            "producer": {"type": "string", "format": "uri"},
            "schemaURL": {"type": "string", "format": "uri"},
            "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
            "run": {
                "type": "object",
                "required": ["runId"],
                "properties": {"runId": {"type": "string", "format": "uuid"}},
            },
            "job": _THING,
            "dataset": _THING,
            "inputs": {"type": "array", "items": _THING},
            "outputs": {"type": "array", "items": _THING},
        },
        "anyOf": [{"required": ["run", "job"]}, {"required": ["job"]}, {"required": ["dataset"]}],
    },
    "Accepted": _object(
        "The event is durable at the promised level",
        {
            "status": {"const": "accepted"},
            "level": {"enum": ["memory", "written", "fsynced"]},
            "position": _POSITION,
        },
        {"warnings": _PROBLEMS},
    ),
    "BatchResult": _object(
        "All good events are durable, as one bundle",
        {
            "status": {"enum": ["success", "partial_success"]},
            "summary": _object(
                "Counts of events",
                {"received": _COUNT, "successful": _COUNT, "failed": _COUNT},
                {"retriable": _COUNT, "non_retriable": _COUNT},
            ),
        },
        {
            "position": _POSITION,
            "failed_events": {
                "type": "array",
                "items": _object(
                    "One event that was not accepted",
                    {"index": _COUNT, "reason": _TEXT, "retriable": {"type": "boolean"}},
                ),
            },
        },
    ),
    "Verdict": _object(
        "What validation found",
        {
            "valid": {"type": "boolean"},
            "kind": {"enum": ["run", "job", "dataset", None]},
            "errors": _PROBLEMS,
            "warnings": _PROBLEMS,
        },
    ),
    "Problem": _object(
        "One finding; never shows the event's data",
        {"pointer": _TEXT, "rule": _TEXT, "message": _TEXT, "hint": _TEXT},
        {"facet": _TEXT},
    ),
    "Refused": _object("Why it was not accepted", _WHY),
    "Rejected": _object(
        "Why it was not accepted",
        _WHY,
        {"kept": {"type": "boolean"}, "errors": _PROBLEMS, "warnings": _PROBLEMS},
    ),
}
_EVENT_BODY: Schema = {"application/json": {"schema": _named("Event")}}
_EVENTS: Schema = {"type": "array", "items": _named("Event")}
_BATCH_BODY: Schema = {
    "application/json": {
        "schema": {
            "oneOf": [
                _EVENTS,
                {"type": "object", "required": ["events"], "properties": {"events": _EVENTS}},
            ]
        }
    },
    "application/x-ndjson": {"schema": {"type": "string", "description": "One event per line"}},
}
