#!/usr/bin/env python3
"""The SDKs through the gateway in front of a simulated fleet: every call passes, and no client
takes a stream that was cut behind the gateway for a whole one.

Needs target/debug/expedite. Closes with `N passed, M failed`; exit 1 when something failed.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from beds import CLIENTS, HERE, run

EXPEDITE = os.path.join(HERE, "..", "..", "target", "debug", "expedite")
KEY = "sk-test"
# Ways to cut a stream after its third event.
CUTS = (
    "reset_between_events",
    "fin_between_events",
    "reset_mid_event",
    "no_done",
    "bad_chunk",
    "abort_finish",
    "error_mid_stream",
)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(url, headers):
    for _ in range(200):
        try:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=5) as answer:
                if b'"id"' in answer.read():
                    return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"{url} is not ready")


def main():
    engine, front = free_port(), free_port()
    base = f"http://127.0.0.1:{front}/v1"
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "gateway.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"""
[server]
listen = ["127.0.0.1:{front}"]
admin = "none"
cores = [0]
[[pool]]
name = "p"
aliases = ["m"]
replicas = ["http://127.0.0.1:{engine}"]
[routing]
policy = "p2c"
[[tenant]]
id = "t"
keys = ["sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"]
[usage]
path = "{folder}/usage.jsonl"
[log]
level = "error"
""")
        sim = [EXPEDITE, "sim", "--ports", str(engine), "--ttft-ms", "2", "--itl-ms", "1"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running = [subprocess.Popen(sim, **quiet)]
        try:
            running.append(subprocess.Popen([EXPEDITE, "serve", "--config", config], **quiet))
            wait_for(f"{base}/models", {"authorization": f"Bearer {KEY}"})
            failed = check(base, engine)
        finally:
            for program in running:
                program.terminate()
            for program in running:
                program.wait(10)
    return 1 if failed else 0


def check(base, engine):
    passed = failed = 0
    for bed in ("openai_chat.py", "openai_chat.mjs"):
        said = run(bed, base, BAD_KEY="sk-bad")
        print(json.dumps(said))
        passed, failed = passed + bool(said["ok"]), failed + (not said["ok"])
    print("".join(f"{name:<22}" for name in ("cut", *CLIENTS)))
    for cut in CUTS:
        fault = json.dumps({"kind": cut, "after_events": 3}).encode()
        url = f"http://127.0.0.1:{engine}/fault"
        urllib.request.urlopen(urllib.request.Request(url, data=fault), timeout=5).read()
        said = {}
        for bed in ("truncated.py", "truncated.mjs"):
            said.update(run(bed, base)["verdicts"])
        print("".join(f"{word:<22}" for word in (cut, *(said[name] for name in CLIENTS))))
        wrong = sum(said[name] != "error" for name in CLIENTS)
        passed, failed = passed + len(CLIENTS) - wrong, failed + wrong
    print(f"{passed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
