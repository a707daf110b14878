"""What schemathesis is told of this server: what would not end, and a check of streams' events."""
import json

import jsonschema_rs
import schemathesis

validators = {}


@schemathesis.hook
def before_call(context, case, **kwargs):
    if case.operation.path == "/v1/effects/events" and isinstance(case.query, dict):
        case.query.pop("stream", None)  # it goes on until the client goes
    body = case.body
    if case.operation.path == "/v1/searches" and isinstance(body, dict) and isinstance(body.get("budget", {}), dict):
        tokens = body.setdefault("budget", {}).setdefault("tokens", 64)
        if isinstance(tokens, int) and 64 < tokens < 1 << 40:
            body["budget"]["tokens"] = 64


def validator_of(operation):
    """Of the events of its stream; None: it has none."""
    if operation.label not in validators:
        document = operation.schema.raw_schema
        content = document["paths"][operation.path][operation.method]["responses"]["200"].get("content", {})
        event = content.get("text/event-stream", {}).get("x-event")
        validators[operation.label] = event and jsonschema_rs.Draft202012Validator(
            {**event, "components": document["components"]})
    return validators[operation.label]


@schemathesis.check
def events_conform(context, response, case):
    if response.headers.get("content-type", [""])[0] != "text/event-stream":
        return
    validator = validator_of(case.operation)
    lines = [line.removeprefix("data: ") for line in response.content.decode().split("\n") if line.startswith("data: ")]
    assert lines, "a stream without events"
    for line in lines:
        if line == "[DONE]":
            continue
        for error in validator.iter_errors(json.loads(line)):
            raise AssertionError(f"event {line}: {error.message}")
