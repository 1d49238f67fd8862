#!/usr/bin/env python3
"""The OpenAI Python SDK against BASE_URL: every call that an application makes.

Environment: BASE_URL (ends in /v1), MODEL, API_KEY; BAD_KEY and LIMITED_KEY (a key that is unknown,
one whose quota is spent), each of which adds its check. Prints one line of JSON; exit 1 when a
check failed.
"""

import importlib.metadata
import json
import os
import sys

import openai

MODEL = os.environ["MODEL"]
ASK = {"model": MODEL, "max_tokens": 8}
MESSAGES = [{"role": "user", "content": "Say hello."}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]


def client(key):
    base = os.environ["BASE_URL"]
    return openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=60)


AI = client(os.environ.get("API_KEY", "none"))


def models():
    assert MODEL in [model.id for model in AI.models.list()], "not in the list"
    assert AI.models.retrieve(MODEL).id == MODEL, "another model"


def whole_usage(usage):
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0, usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage


def chat():
    answer = AI.chat.completions.create(messages=MESSAGES, **ASK)
    assert answer.choices[0].message.content and answer.choices[0].finish_reason, answer
    whole_usage(answer.usage)


def chat_n():
    answer = AI.chat.completions.create(messages=MESSAGES, n=2, **ASK)
    assert [choice.index for choice in answer.choices] == [0, 1], answer


def chat_stream(n=1, usage=False):
    more = {"stream_options": {"include_usage": True}} if usage else {}
    text, finished, usages, last = [""] * n, set(), [], None
    for last in AI.chat.completions.create(messages=MESSAGES, n=n, stream=True, **more, **ASK):
        usages += [last.usage] if last.usage else []
        for choice in last.choices:
            text[choice.index] += choice.delta.content or ""
            finished |= {choice.index} if choice.finish_reason else set()
    assert all(text) and len(finished) == n, (text, finished)
    assert len(usages) == (1 if usage else 0), f"{len(usages)} usage events"
    if usage:
        assert last.choices == [], "usage is not the last event"
        whole_usage(usages[0])


def chat_tools():
    answer = AI.chat.completions.create(messages=MESSAGES, tools=TOOLS, **ASK)
    message = answer.choices[0].message
    assert message.tool_calls or message.content, answer
    for call in message.tool_calls or []:
        json.loads(call.function.arguments)


def completion():
    answer = AI.completions.create(prompt="Hello", **ASK)
    assert answer.choices[0].text and answer.choices[0].finish_reason, answer
    whole_usage(answer.usage)


def completion_stream(usage=False):
    more = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = list(AI.completions.create(prompt="Hello", stream=True, **more, **ASK))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices), "no text"
    assert sum(1 for chunk in chunks if chunk.usage) == (1 if usage else 0), "usage events"


def embeddings():
    try:
        assert AI.embeddings.create(model=MODEL, input="Hello").data[0].embedding, "empty"
    except (openai.NotFoundError, openai.BadRequestError):
        return "not_offered"


def refused(kind, status, code=None, ai=AI, **change):
    """The error must be `kind`, so that an application's `except` finds it."""
    try:
        ai.chat.completions.create(**{"messages": MESSAGES, **ASK, **change})
    except kind as error:
        assert error.status_code == status, error.status_code
        assert isinstance(error.body, dict) and error.body.get("message"), error.body
        assert code is None or error.body.get("code") == code, error.body
        return error
    raise AssertionError("it was accepted")


def bad_request():
    refused(openai.BadRequestError, 400, extra_body={"temperature": "hot"})


def not_found():
    refused(openai.NotFoundError, 404, "model_not_found", model="no-such-model")


def bad_key():
    ai = client(os.environ["BAD_KEY"])
    refused(openai.AuthenticationError, 401, "invalid_api_key", ai)


def rate_limit():
    ai = client(os.environ["LIMITED_KEY"])
    error = refused(openai.RateLimitError, 429, "rate_limit_exceeded", ai)
    assert int(error.response.headers["retry-after"]) >= 0, "retry-after"


CHECKS = {
    "models": models,
    "chat": chat,
    "chat_n": chat_n,
    "chat_stream": chat_stream,
    "chat_stream_n": lambda: chat_stream(n=2),
    "chat_stream_usage": lambda: chat_stream(usage=True),
    "chat_tools": chat_tools,
    "completion": completion,
    "completion_stream": completion_stream,
    "completion_stream_usage": lambda: completion_stream(usage=True),
    "embeddings": embeddings,
    "bad_request": bad_request,
    "not_found": not_found,
    **({"bad_key": bad_key} if os.environ.get("BAD_KEY") else {}),
    **({"rate_limit": rate_limit} if os.environ.get("LIMITED_KEY") else {}),
}


def verdict(check):
    try:
        return check() or "ok"
    except Exception as error:  # whatever a client throws is the verdict
        return f"failed: {type(error).__name__}: {error}"


RESULTS = {name: verdict(check) for name, check in CHECKS.items()}
OK = all(result in ("ok", "not_offered") for result in RESULTS.values())
NAME = "openai-python " + importlib.metadata.version("openai")
print(json.dumps({"client": NAME, "ok": OK, "checks": RESULTS}))
sys.exit(0 if OK else 1)
