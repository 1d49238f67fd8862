"""Bodies of `/v1/messages`: (name, body, what the server is, whether we leave it alone)."""

BILLING = "x-anthropic-billing-header: cc_version=1; cch=00000;"
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def text(text, **more):
    return {"type": "text", "text": text, **more}


def use(id, name, input):
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(id, content, **more):
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def tool(name, schema, **more):
    return {"name": name, "input_schema": schema, **more}


HI = user("Hello!")
SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer", "default": 1}},
    "required": ["place"],
}
WEATHER = tool("get_weather", SCHEMA, description="Weather of a place.")


def body(*messages, **more):
    return {"model": "m", "max_tokens": 2048, "messages": list(messages), **more}


def chats():
    yield "user only", body(HI)
    yield "count", {"model": "m", "messages": [HI], "system": "s", "thinking": {"type": "adaptive"}}
    yield "system", body(HI, system="Be brief.")
    yield "empty system", body(HI, system="")
    marked = text("A", cache_control={"type": "ephemeral"})
    yield "system blocks", body(HI, system=[marked, text("B")])
    yield "system blocks, one empty", body(HI, system=[text(""), text("é\n\"")])
    yield "system of no blocks", body(HI, system=[])
    yield "billing block", body(HI, system=[text(BILLING), text("Be brief.")])
    yield "billing alone", body(HI, system=[text(BILLING)])
    yield "billing as a string", body(HI, system=BILLING)
    yield "turns", body(HI, assistant("Hi."), user("Go on"), assistant("Sure, "))
    yield "empty text", body(user(""), assistant(""))
    yield "one block", body(user([text("x", cache_control={"type": "ephemeral"})]))
    yield "two blocks", body(user([text("x"), text("y")]))
    yield "blocks, one empty", body(user([text(""), text("y")]))
    yield "empty blocks", body(user([text("")]), assistant([text("")]), user([]), assistant([]))
    yield "null text", body(user([{"type": "text", "text": None}, {"type": "text"}]))
    yield "escapes", (
        r'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":'
        r'"\u0041\n\t\"\\ \ud83d\ude00\/ é"}],"system":[{"type":"text","text":"\u0078-a"},'
        r'{"type":"text","text":"\u0078-anthropic-billing-header"}]}'
    )
    yield "equal keys", (
        '{"model":"m","max_tokens":9,"messages":[],"messages":[{"content":"a","role":"user",'
        '"content":"b"}]}'
    )
    yield "image", body(user([text("What is this?"), {"type": "image", "source": PNG}]))
    yield "image by url", body(
        user([{"type": "image", "source": {"type": "url", "url": "https://example.com/x.png"}}])
    )
    yield "image of bare data", body(user([{"type": "image", "source": {"data": "AAAA"}}]))
    yield "image without source", body(user([{"type": "image"}, {"type": "image", "source": {}}]))
    yield "thinking", body(
        HI,
        assistant([{"type": "thinking", "thinking": "Hm. ", "signature": "s"}, text("A")]),
        user("b"),
    )
    yield "two thoughts and a redacted one", body(
        HI,
        assistant(
            [
                {"type": "thinking", "thinking": "a"},
                {"type": "redacted_thinking", "data": "zzz"},
                {"type": "thinking", "thinking": "b\n"},
            ]
        ),
    )
    yield "empty thought", body(HI, assistant([{"type": "thinking", "thinking": ""}]))
    yield "user thinks", body(user([{"type": "thinking", "thinking": "x"}]))
    call = use("tu_1", "get_weather", {"place": "Zürich 😀", "days": 2})
    yield "call", body(HI, assistant([call]), user([result("tu_1", "7°")]), tools=[WEATHER])
    yield "call with text and thought", body(
        HI,
        assistant([{"type": "thinking", "thinking": "t"}, text("I look."), call]),
        user([result("tu_1", [text("7°"), text("rain")]), text("And?")]),
        tools=[WEATHER],
    )
    yield "parallel calls", body(
        HI,
        assistant([call, use("tu_2", "f", {}), text("both")]),
        user([result("tu_2", "b"), result("tu_1", "a", is_error=True)]),
    )
    yield "call without input", body(HI, assistant([{"type": "tool_use", "id": "1", "name": "f"}]))
    yield "call without a name", body(HI, assistant([{"type": "tool_use", "id": "1"}]))
    yield "call of numbers", (
        '{"model":"m","max_tokens":9,"messages":[{"role":"assistant","content":[{"type":'
        '"tool_use","id":"1","name":"f","input":{"a":[1.50,1E22,-0,1e-7,12345678901234567890],'
        '"b":{"c":null,"d":true},"a\\u00e9":"\\u007f\\u2028"}}]}]}'
    )
    yield "call by a user", body(user([call]), user([call, text("x")]))
    yield "result without content", body(user([{"type": "tool_result", "tool_use_id": "1"}]))
    yield "result without id", body(user([{"type": "tool_result", "content": "x"}]))
    yield "result of nothing", body(user([result("1", []), result("2", "")]))
    yield "result with images", body(
        user(
            [
                result("1", [text("a"), {"type": "image", "source": PNG}, {"type": "text"},
                             {"type": "image"}, {"type": "image", "source": {"type": "url"}}]),
                text("see"),
            ]
        )
    )
    found = {"type": "search_result", "title": "x"}
    yield "result of other blocks", body(user([result("1", [found, text("y")])]))
    yield "result of references", body(
        user(
            [
                result(
                    "1",
                    [
                        {"type": "tool_reference", "tool_name": "get_weather"},
                        {"type": "tool_reference", "name": "f"},
                        {"type": "tool_reference", "tool_name": ""},
                    ],
                )
            ]
        ),
        tools=[{**WEATHER, "defer_loading": True}],
    )
    yield "assistant tells a result", body(assistant([result("1", "x"), result("2", "")]))
    yield "reference block", body(user([{"type": "tool_reference", "tool_name": "f"}, text("x")]))
    yield "tools", body(
        HI,
        tools=[
            WEATHER,
            tool("bare", {}),
            tool("untyped", {"properties": {"b": {}, "a": {}}}),
            tool("strict", {"type": "object"}, strict=True, description=None),
            tool("loose", {"type": "object"}, strict=False, cache_control={"type": "ephemeral"}),
        ],
    )
    yield "no tools", body(HI, tools=[])
    yield "tools null", body(HI, tools=None, system=None, thinking=None, tool_choice=None)
    for choice in (
        {"type": "auto"},
        {"type": "any", "disable_parallel_tool_use": True},
        {"type": "none"},
        {"type": "tool", "name": "get_weather"},
        {"type": "tool"},
    ):
        name = "choice " + " ".join(map(str, choice.values()))
        yield name, body(HI, tools=[WEATHER], tool_choice=choice)
    yield "choice without tools", body(HI, tool_choice={"type": "auto"})
    yield "thinking enabled", body(HI, thinking={"type": "enabled", "budget_tokens": 1024})
    yield "thinking disabled", body(HI, thinking={"type": "disabled"})
    yield "thinking unknown", body(HI, thinking={"type": "perhaps"})
    yield "effort", body(HI, output_config={"effort": "high"})
    yield "effort, thinking disabled", body(
        HI, output_config={"effort": "max"}, thinking={"type": "disabled"}
    )
    yield "format", body(
        HI, output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}
    )
    yield "kwargs and salt", body(
        HI, chat_template_kwargs={"enable_thinking": False, "x": [1.0, "é"]}, cache_salt="s"
    )
    yield "block of another type", body(user([{"type": "document", "source": {}}]))
    yield "role of another name", body({"role": "tool", "content": "x"})
    yield "content null", body(user(None))
    yield "tool without schema", body(HI, tools=[{"type": "web_search_20250305", "name": "w"}])
    yield "input is a list", body(assistant([use("1", "f", [1])]))
    yield "messages missing", {"model": "m", "max_tokens": 1}


def inline():
    """Conversations with system messages inside; what becomes of them is the server's."""
    yield "inline system", body(HI, {"role": "system", "content": "Now French."}, user("Go"))
    yield "inline blocks", body(
        HI, {"role": "system", "content": [text(BILLING), text("a"), text("b")]}, system="s"
    )
    yield "inline nothing", body(
        {"role": "system", "content": ""},
        {"role": "system", "content": BILLING},
        {"role": "system", "content": [text("")]},
        HI,
    )
    yield "inline first", body({"role": "system", "content": "A"}, HI, system=[text("B")])


def cases():
    for name, made in chats():
        yield name, made, {}, False
    for name, made in inline():
        yield name, made, {}, False
        yield f"{name}, merged", made, {"merge_inline_system": True}, False
    low = {"disabled_thinking_effort": "low"}
    yield "thinking disabled as low", body(HI, thinking={"type": "disabled"}), low, False
    change = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "get_weather"}}
    changed = {"role": "system", "content": [change]}
    yield "tool changes", body(HI, changed, tools=[WEATHER]), {}, True
    unnamed = {"type": "tool_use", "name": "f", "input": {}}
    yield "call without id", body(HI, assistant([unnamed])), {}, True
    told = assistant([result("1", [text("x")])])
    yield "assistant tells a result of blocks", body(told), {}, True
    ids = {"prompt_token_ids": [1, 2]}
    yield "token ids", body(HI, kv_transfer_params=ids), {}, True
