#!/usr/bin/env python3
"""Which clients take a cut stream for a whole one: OpenAI Python, httpx-sse, curl.

Environment: BASE_URL (ends in /v1; the server cuts the stream), MODEL, API_KEY, EXPECT (`error`,
the default, or `complete`). A client says `complete` when its user sees a normal end: the SDK's
loop ends, curl exits 0, and with httpx-sse the transport raised nothing and `[DONE]` came.
Prints one line of JSON; exit 1 when a client says other than EXPECT.
"""

import json
import os
import subprocess
import sys

import httpx
import openai
from httpx_sse import connect_sse

BASE = os.environ["BASE_URL"]
KEY = os.environ.get("API_KEY", "none")
ASK = {
    "model": os.environ["MODEL"],
    "messages": [{"role": "user", "content": "Count to twenty."}],
    "max_tokens": 64,
    "stream": True,
}
AUTH = {"authorization": f"Bearer {KEY}"}
URL = BASE + "/chat/completions"


def openai_python():
    ai = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0, timeout=60)
    for _ in ai.chat.completions.create(**ASK):
        pass
    return True


def httpx_sse():
    with httpx.Client(timeout=60) as http:
        with connect_sse(http, "POST", URL, json=ASK, headers=AUTH) as source:
            source.response.raise_for_status()
            return any([event.data == "[DONE]" for event in source.iter_sse()])


def curl():
    auth = f"authorization: Bearer {KEY}"
    command = ["curl", "-sN", "--fail", "--max-time", "60", "-H", auth]
    command += ["-H", "content-type: application/json", "-d", json.dumps(ASK), URL]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=True).returncode == 0


def verdict(client):
    try:
        return ("complete", "") if client() else ("error", "no [DONE]")
    except Exception as error:  # whatever a client throws is what its user sees
        return "error", f"{type(error).__name__}: {error}"[:120]


CLIENTS = {"openai-python": openai_python, "httpx-sse": httpx_sse, "curl": curl}
RESULTS = {name: verdict(client) for name, client in CLIENTS.items()}
VERDICTS = {name: result[0] for name, result in RESULTS.items()}
OK = set(VERDICTS.values()) == {os.environ.get("EXPECT", "error")}
WHY = {name: result[1] for name, result in RESULTS.items() if result[1]}
print(json.dumps({"ok": OK, "verdicts": VERDICTS, "why": WHY}))
sys.exit(0 if OK else 1)
