#!/usr/bin/env python3
"""The SDKs through the gateway in front of a simulated fleet: every call passes, also over TLS and
while silent streams are commented, and no client takes a stream that was cut behind the gateway for
a whole one.

Needs target/debug/expedite and openssl. Closes with `N passed, M failed`; exit 1 when something
failed.
"""

import hashlib
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request

from beds import CLIENTS, HERE, run

EXPEDITE = os.path.join(HERE, "..", "..", "target", "debug", "expedite")
KEY = "sk-test"
# No way to cut a stream: what the others are held against.
WHOLE = "none"
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


def wait_for(url, headers, trust):
    for _ in range(200):
        try:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=5, context=trust) as answer:
                if b'"id"' in answer.read():
                    return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"{url} is not ready")


class Fleet:
    """Programs that end with the `with` block, and what they write."""

    def __init__(self, folder):
        self.folder, self.running = folder, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in self.running:
            program.terminate()
        for program in self.running:
            program.wait(10)

    def start(self, *command):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.running.append(subprocess.Popen([EXPEDITE, *command], **quiet))

    def engine(self, ttft_ms, itl_ms):
        port = free_port()
        pace = ["--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms)]
        self.start("sim", "--ports", str(port), *pace)
        return port

    def gateway(self, engine, server="", more="", trust=None):
        """The base URL of a gateway before that engine."""
        port = free_port()
        config = os.path.join(self.folder, f"{port}.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"""
[server]
listen = ["127.0.0.1:{port}"]
admin = "none"
cores = [0]
{server}
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
path = "{self.folder}/{port}.jsonl"
[log]
level = "error"
{more}
""")
        self.start("serve", "--config", config)
        base = f"{'https' if trust else 'http'}://127.0.0.1:{port}/v1"
        wait_for(f"{base}/models", {"authorization": f"Bearer {KEY}"}, trust)
        return base


def certificate(folder):
    """A certificate for this host that signs itself, and its key."""
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
    command += ["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return cert, key


def calls(base, **env):
    """How many of the beds of calls fail."""
    failed = 0
    for bed in ("openai_chat.py", "openai_chat.mjs"):
        said = run(bed, base, BAD_KEY="sk-bad", **env)
        print(json.dumps(said))
        failed += not said["ok"]
    return failed


def is_commented(base):
    """Does a stream that keeps its reader waiting carry comments?"""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    data = json.dumps({**body, "stream": True}).encode()
    request = urllib.request.Request(f"{base}/chat/completions", data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return text.startswith(b": keep-alive") and text.endswith(b"data: [DONE]\n\n")


def main():
    with tempfile.TemporaryDirectory() as folder, Fleet(folder) as fleet:
        engine, slow = fleet.engine(2, 1), fleet.engine(250, 60)
        cert, key = certificate(folder)
        trust = ssl.create_default_context(cafile=cert)
        tls = fleet.gateway(engine, f'tls = {{ cert = "{cert}", key = "{key}" }}', trust=trust)
        trusting = {"SSL_CERT_FILE": cert, "NODE_EXTRA_CA_CERTS": cert, "CURL_CA_BUNDLE": cert}
        silent = fleet.gateway(slow, more="[timeouts]\nsse_keepalive_ms = 50")
        passed, failed = check(fleet.gateway(engine), engine, CUTS)
        more = check(tls, engine, CUTS[:2], **trusting)
        passed, failed = passed + more[0], failed + more[1]
        unheard = calls(silent) + (not is_commented(silent))
        passed, failed = passed + 3 - unheard, failed + unheard
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def check(base, engine, cuts, **env):
    """How many checks passed, and how many failed."""
    failed = calls(base, **env)
    passed = 2 - failed
    print("".join(f"{name:<22}" for name in ("cut", *CLIENTS)))
    for cut in (WHOLE, *cuts):
        fault(engine, cut)
        said = {}
        for bed in ("truncated.py", "truncated.mjs"):
            said.update(run(bed, base, **env)["verdicts"])
        print("".join(f"{word:<22}" for word in (cut, *(said[name] for name in CLIENTS))))
        wanted = "complete" if cut == WHOLE else "error"
        wrong = sum(said[name] != wanted for name in CLIENTS)
        passed, failed = passed + len(CLIENTS) - wrong, failed + wrong
    fault(engine, WHOLE)
    return passed, failed


def fault(engine, kind):
    data = json.dumps({"kind": kind, "after_events": 3}).encode()
    url = f"http://127.0.0.1:{engine}/fault"
    urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=5).read()


if __name__ == "__main__":
    sys.exit(main())
