#!/usr/bin/env python3
"""Real clients through the gateway: `through.py EXPEDITE`, the path of the binary.

A simulated replica cuts streams in mid-answer in each way that it knows. No client may take one
for complete; every client must take the whole answer for complete. Prints the table, closes with
`N passed, M failed`; exit 1 when a cell differs.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request

from beds import CLIENTS, run

MODEL = "m"
# Faults of the simulator (`src/sim/fault.rs`), and after them a stream without any.
CUTS = (
    "reset_mid_event",
    "reset_between_events",
    "fin_between_events",
    "no_done",
    "bad_chunk",
    "error_mid_stream",
    "abort_finish",
)
WHOLE = "none"


def start(command, folder):
    """A program that prints its address in its first line; the process and that address."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    found = re.search(r"http://[0-9.:]+", process.stdout.readline())
    if not found:
        process.kill()
        sys.exit(f"{command[1]} did not say where it listens")
    return process, found[0]


def order(engine, kind):
    """Gives the simulated replica a fault that strikes after the role and one content event."""
    fault = {"kind": kind} if kind == WHOLE else {"kind": kind, "after_events": 2}
    request = urllib.request.Request(engine + "/fault", json.dumps(fault).encode())
    urllib.request.urlopen(request, timeout=10).close()


def table(engine, gateway):
    """Runs every client on every cut; passed and failed cells."""
    passed = failed = 0
    print("".join(f"{name:<21}" for name in ("cut", *CLIENTS)))
    for kind in (*CUTS, WHOLE):
        order(engine, kind)
        said, why = {}, {}
        for bed in ("truncated.py", "truncated.mjs"):
            line = run(bed, gateway + "/v1", MODEL=MODEL)
            said.update(line["verdicts"])
            why.update(line["why"])
        print("".join(f"{word:<21}" for word in (kind, *(said[name] for name in CLIENTS))))
        for name in CLIENTS:
            right = (said[name] == "complete") == (kind == WHOLE)
            passed, failed = passed + right, failed + (not right)
            if not right:
                print(f"  {name} on {kind}: {said[name]}", why.get(name, ""))
    return passed, failed


def main():
    expedite = os.path.abspath(sys.argv[1])
    started = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            sim = [expedite, "sim", "--ports", "0", "--model", MODEL, "--engine", "instant"]
            process, engine = start(sim, folder)
            started.append(process)
            serve = [expedite, "serve", "--replica", engine]
            serve += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
            process, gateway = start(serve, folder)
            started.append(process)
            passed, failed = table(engine, gateway)
        finally:
            for process in started:
                process.kill()
                process.wait()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
