"""What vLLM makes of a request for gpt-oss: its own checks of it, its renderer, its library.

Needs an environment with vLLM 0.32 and oss-harmony 0.0.11; no model, no network.
"""

import asyncio
import hashlib
import json
import os
import struct

DATE = "2026-11-30"
os.environ["VLLM_SYSTEM_START_DATE"] = DATE
os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: E402
    ChatCompletionRequest,
)
from vllm.entrypoints.openai.parser.harmony_utils import get_encoding  # noqa: E402
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest  # noqa: E402
from vllm.renderers.online_renderer import OnlineRenderer  # noqa: E402


def _renderer():
    """The renderer of a server of gpt-oss with default options, without its engine."""
    renderer = OnlineRenderer.__new__(OnlineRenderer)
    renderer.use_harmony = True
    renderer.parser = None
    renderer.renderer = type("Tokenizer", (), {"tokenizer": object()})()
    renderer.model_config = type("Model", (), {"max_model_len": 1 << 20})()
    renderer.trust_request_chat_template = False
    renderer.supports_browsing = renderer.supports_code_interpreter = False
    renderer.enable_auto_tools = True
    renderer.exclude_tools_when_tool_choice_none = False
    return renderer


RENDERER = _renderer()


def ids_of(body: str) -> list[int]:
    """The prompt's ids; an exception where vLLM answers with an error."""
    request = ChatCompletionRequest.model_validate(json.loads(body))
    _, prompts = asyncio.run(RENDERER.render_chat(request))
    return prompts[0]["prompt_token_ids"]


def ids_of_responses(body: str) -> list[int]:
    """As `ids_of`, for a body of `/v1/responses`."""
    request = ResponsesRequest.model_validate(json.loads(body))
    rendered = asyncio.run(RENDERER.render_responses(request))
    return rendered.engine_input["prompt_token_ids"]


def case(name: str, body, ids_of=ids_of) -> dict:
    """A golden case: `body` (an object, or JSON as it is spelled) and what becomes of it."""
    if not isinstance(body, str):
        body = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        ids = ids_of(body)
    except Exception:  # Whatever vLLM raises is an error answer to its client.
        return {"name": name, "body": body, "text": None}
    digest = hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()
    text = get_encoding().decode_utf8(ids)
    return {"name": name, "body": body, "text": text, "count": len(ids), "sha256": digest}


def write(cases: list[dict], path: str) -> None:
    """One case a line, so that a change shows as the lines that changed."""
    lines = [json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases]
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")
