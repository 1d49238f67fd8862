"""What vLLM makes of bodies of the other APIs: its own request models and conversions.

Needs an environment with vLLM 0.32; no model, no network.
"""

import json
import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from vllm.entrypoints.anthropic.protocol import (  # noqa: E402
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
)
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: E402
    ChatCompletionRequest,
)
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest  # noqa: E402
from vllm.entrypoints.openai.responses.utils import (  # noqa: E402
    construct_input_messages,
    construct_tool_dicts,
)


def plain(value):
    """Dicts, lists and scalars of what pydantic left: its one-shot iterators become lists."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    return [plain(item) for item in value]


def as_chat(request, chat):
    """`chat`, checked: as a chat request it gives the template the same keyword arguments."""
    checked = {key: value for key, value in chat.items() if key not in ("messages", "tools")}
    if chat.get("tools"):
        checked["tools"] = chat["tools"]
    else:
        checked.pop("tool_choice", None)
    again = ChatCompletionRequest.model_validate({"messages": [], **checked})
    ours = again.build_chat_params(None, "auto").chat_template_kwargs
    theirs = request.build_chat_params(None, "auto").chat_template_kwargs
    assert ours == theirs, (ours, theirs)
    return chat


def messages_to_chat(body: str, server: dict):
    """The chat of a `/v1/messages` body, or of a count of one (which has no `max_tokens`)."""
    data = json.loads(body)
    model = AnthropicMessagesRequest if "max_tokens" in data else AnthropicCountTokensRequest
    request = AnthropicServingMessages.to_chat_completion_request(
        model.model_validate(data), **server
    )
    chat = {"messages": plain(request.messages)}
    if request.tools is not None:
        chat["tools"] = [tool.model_dump() for tool in request.tools]
    if request.tools:
        chat["tool_choice"] = plain(request.tool_choice)
    for name in ("reasoning_effort", "chat_template_kwargs", "cache_salt"):
        if getattr(request, name) is not None:
            chat[name] = plain(getattr(request, name))
    return as_chat(request, chat)


def chat_part(part):
    """A part of an item as a part of a chat: the parser of messages reads both alike."""
    if part["type"] in ("input_text", "output_text"):
        return {**part, "type": "text"}
    if part["type"] == "input_image":
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return part


def chat_message(message):
    """A message of items as one of a chat, without what no template is given."""
    content = message.get("content")
    if isinstance(content, list):
        message = {**message, "content": [chat_part(part) for part in content]}
    kept = ("role", "content", "reasoning", "tool_calls", "tool_call_id")
    return {key: value for key, value in message.items() if key in kept}


def responses_to_chat(body: str, _server: dict):
    """The chat of a `/v1/responses` body."""
    request = ResponsesRequest.model_validate(json.loads(body))
    messages = construct_input_messages(
        request_instructions=request.instructions, request_input=request.input
    )
    chat = {"messages": [chat_message(message) for message in plain(messages)]}
    tools = construct_tool_dicts(request.tools, request.tool_choice)
    if tools is not None:
        chat["tools"] = plain(tools)
        if isinstance(request.tool_choice, str):
            chat["tool_choice"] = request.tool_choice
    if request.reasoning is not None and request.reasoning.effort is not None:
        chat["reasoning_effort"] = request.reasoning.effort
    for name in ("chat_template_kwargs", "cache_salt"):
        if getattr(request, name) is not None:
            chat[name] = plain(getattr(request, name))
    kwargs = request.build_chat_params(None, "auto").chat_template_kwargs
    if kwargs["continue_final_message"]:
        chat["add_generation_prompt"], chat["continue_final_message"] = False, True
    tokens = request.build_tok_params(type("Model", (), {"max_model_len": 1 << 20})())
    assert tokens.add_special_tokens
    chat["add_special_tokens"] = True
    if tokens.truncate_prompt_tokens is not None:
        chat["truncate_prompt_tokens"] = tokens.truncate_prompt_tokens
    return as_chat(request, chat)


def case(convert, name, body, server, unsupported):
    """A golden case; `chat` is null where vLLM refuses the body."""
    if not isinstance(body, str):
        body = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        chat = convert(body, server)
    except AssertionError:
        raise
    except Exception:  # Whatever vLLM raises is an error answer to its client.
        chat = None
    made = {"name": name, "body": body, "chat": chat}
    if server:
        made["server"] = server
    if unsupported:
        made["unsupported"] = True
    return made


def write(cases, path):
    """One case a line, so that a change shows as the lines that changed."""
    lines = [json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases]
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")
