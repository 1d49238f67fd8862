"""Reads what a gateway sent to its collector by OpenTelemetry's own definitions.

    strict.py < LINES

A line is a path, a space and a body in hex. OTLP's JSON is protobuf's but for ids, which it writes
in hex and protobuf in base64. Prints the number of spans or log records for each line; ends with 1
at a field that the definitions do not have, a value of the wrong kind, or an id of a wrong length.
"""

import base64
import json
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

IDS = {"traceId": 16, "spanId": 8, "parentSpanId": 8}


def with_base64(value):
    """The same with its ids as protobuf's JSON has them."""
    if isinstance(value, list):
        return [with_base64(one) for one in value]
    if not isinstance(value, dict):
        return value
    out = {}
    for key, inner in value.items():
        if key in IDS and isinstance(inner, str):
            raw = bytes.fromhex(inner)
            if len(raw) != IDS[key]:
                sys.exit(f"{key} of {len(raw)} bytes")
            inner = base64.b64encode(raw).decode()
        out[key] = with_base64(inner)
    return out


def main():
    for line in sys.stdin:
        path, body = line.split()
        text = json.dumps(with_base64(json.loads(bytes.fromhex(body))))
        if path == "/v1/traces":
            sent = json_format.Parse(text, ExportTraceServiceRequest())
            items = [s for r in sent.resource_spans for c in r.scope_spans for s in c.spans]
            if any(span.start_time_unix_nano > span.end_time_unix_nano for span in items):
                sys.exit("a span ends before it starts")
        elif path == "/v1/logs":
            sent = json_format.Parse(text, ExportLogsServiceRequest())
            items = [s for r in sent.resource_logs for c in r.scope_logs for s in c.log_records]
        else:
            sys.exit(f"no such path: {path}")
        print(len(items))


main()
