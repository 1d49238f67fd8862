#!/usr/bin/env python3
"""Tests the beds against the stub: the calls pass, and each cut is taken as the table says.

The table is also why the gateway ends a broken stream with an error event and an unfinished body:
each `complete` in a row other than `good` is a client that takes that cut for a whole answer.
Closes with `N passed, M failed`; exit 1 when a cell differs.
"""

import json
import os
import subprocess
import sys
import threading

import stub

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = {".py": sys.executable, ".mjs": "node"}
CLIENTS = ("openai-python", "openai-js", "httpx-sse", "eventsource-parser", "fetch", "curl")
# The clients that take this end for a whole answer.
TAKEN_FOR_COMPLETE = {
    "good": set(CLIENTS),
    "reset": set(),
    "fin": set(),
    "error_then_fin": set(),
    "error_then_end": {"curl"},
    "no_done": {"openai-python", "openai-js", "curl"},
    "torn_event": {"openai-python", "curl"},
    "short_length": set(),
}


def run(bed, base, **more):
    """The bed's line of verdicts."""
    program = PROGRAMS[os.path.splitext(bed)[1]]
    env = {**os.environ, "BASE_URL": base, "MODEL": "m", "API_KEY": "sk-test", **more}
    command = [program, os.path.join(HERE, bed)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=False, timeout=120)
    return json.loads(done.stdout)


def main():
    server = stub.serve()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    passed = failed = 0
    for bed in ("openai_chat.py", "openai_chat.mjs"):
        said = run(bed, f"{base}/good/v1", BAD_KEY="sk-bad", LIMITED_KEY="sk-limited")
        print(json.dumps(said))
        passed, failed = passed + bool(said["ok"]), failed + (not said["ok"])
    print("".join(f"{name:<19}" for name in ("end of stream", *CLIENTS)))
    for end in stub.ENDS:
        said, why = {}, {}
        for bed in ("truncated.py", "truncated.mjs"):
            line = run(bed, f"{base}/{end}/v1")
            said.update(line["verdicts"])
            why.update(line["why"])
        print("".join(f"{word:<19}" for word in (end, *(said[name] for name in CLIENTS))))
        for name in CLIENTS:
            right = (said[name] == "complete") == (name in TAKEN_FOR_COMPLETE[end])
            passed, failed = passed + right, failed + (not right)
            if not right:
                print(f"  {name} on {end}: {said[name]} is not what the table says", why.get(name))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
