"""Bodies of `/v1/responses`: (name, body, what the server is, whether we leave it alone)."""


def part(text, **more):
    return {"type": "input_text", "text": text, **more}


def said(*texts, **more):
    content = [{"type": "output_text", "text": text} for text in texts]
    return {"type": "message", "role": "assistant", "content": content, **more}


def call(call_id="c1", name="f", arguments="{}", **more):
    made = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
    return {**made, **more}


def output(call, output, kind="function_call_output", **more):
    return {"type": kind, "call_id": call, "output": output, **more}


def thought(*texts, **more):
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"type": "reasoning", "summary": [], "content": content, **more}


def function(name="f", **more):
    return {"type": "function", "name": name, **more}


HI = {"role": "user", "content": "Hello!"}
WEATHER = function(
    "get_weather",
    description="Weather of a place.",
    parameters={
        "type": "object",
        "properties": {"place": {"type": "string"}, "n": {"type": "number", "default": 1.50}},
        "required": ["place"],
        "additionalProperties": False,
    },
    strict=True,
)


def body(*items, **more):
    return {"model": "m", "input": list(items), **more}


def chats():
    yield "a string", {"input": "Hello!\n"}
    yield "instructions", {"input": "Hello!", "instructions": "Be \"brief\"."}
    yield "empty instructions", {"input": "", "instructions": ""}
    yield "no items", body()
    yield "user", body(HI)
    two = [part("a"), part("b")]
    yield "user of parts", body({"type": "message", "role": "user", "content": two})
    yield "image", body(
        {
            "role": "user",
            "content": [
                part("What is this?"),
                {"type": "input_image", "image_url": "https://example.com/x.png", "detail": "low"},
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
            ],
        }
    )
    yield "part with more", body({"role": "user", "content": [part("a", note={"x": 1})]})
    yield "system and developer", body(
        {"role": "system", "content": "s"},
        {"role": "developer", "content": [part("d")]},
        HI,
        instructions="i",
    )
    yield "message with more", body({**HI, "type": "message", "id": "1", "status": "completed"})
    yield "escapes", (
        r'{"input":[{"role":"user","content":[{"type":"input_text","text":"\u0041\n\/é\ud83d\ude00"'
        r'}]}],"instructions":"\u00e9\t"}'
    )
    yield "equal keys", '{"input":"a","input":[{"role":"user","content":"x","content":"y"}]}'
    yield "turns", body(HI, {"role": "assistant", "content": "Hi."}, HI)
    yield "answer of parts", body(HI, said("a", "b"), HI)
    yield "answer as it was sent", body(
        HI,
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "x", "annotations": [], "logprobs": None}
            ],
        },
        HI,
    )
    yield "answer of input parts", body(HI, {"role": "assistant", "content": two})
    yield "answers in a row", body(HI, said("a"), said("b"), {"role": "assistant", "content": "c"})
    yield "answer that refuses", body(
        {**said(), "content": [{"type": "refusal", "refusal": "no"}]}, HI
    )
    yield "answer of no parts", body(HI, said())
    yield "call", body(HI, call("c1", "get_weather", '{"place": "Oslo"}'), output("c1", "7°"))
    yield "parallel calls", body(HI, call("a"), call("b", "g"), output("b", "B"), output("a", "A"))
    yield "answer and call", body(HI, said("I look."), call(), output("c1", ""))
    yield "call and answer", body(HI, call(), said("I looked."), call("c2"))
    yield "call as it was sent", body(HI, call(id="fc_1", status="completed", namespace=None), HI)
    yield "call in a namespace", body(HI, call(namespace="files", name="read"))
    yield "call without id", body(HI, {"type": "function_call", "name": "f", "arguments": "{}"})
    yield "arguments as an object", body(HI, {**call(), "arguments": {}})
    yield "output of parts", body(
        HI,
        call(),
        output("c1", [part("a"), {"type": "input_image", "image_url": "https://example.com/x"}]),
    )
    sent = output("c1", [part("a")], id="o", status="completed")
    yield "output as it was sent", body(HI, call(), sent)
    yield "custom call", body(
        HI,
        {"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": "ls\n\"é😀\" \u007f"},
        output("c", "x", "custom_tool_call_output"),
    )
    yield "custom call as it was sent", body(
        HI,
        {"type": "custom_tool_call", "id": "i", "call_id": "c", "name": "sh", "input": ""},
        output("c", [part("x")], "custom_tool_call_output", id="j"),
    )
    yield "reasoning, answer", body(HI, thought("a", "b"), said("c"), HI)
    yield "reasoning, call, output, reasoning", body(
        HI, thought("a"), call(), output("c1", "x"), thought("b"), said("c"), HI
    )
    yield "reasoning twice", body(HI, thought("a"), thought("b"), said("c"))
    yield "answer, reasoning", body(HI, said("c"), thought("a"))
    yield "reasoning of a summary", body(
        HI, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, call()
    )
    yield "reasoning of nothing", body(HI, thought(), call(), thought("x"))
    yield "reasoning as it was sent", body(
        HI, thought("r", id="rs_1", status=None, encrypted_content=None), said("x")
    )
    yield "sealed reasoning", body(HI, thought("r", encrypted_content="zzz"))
    yield "answer to go on with", body(HI, said("Sure, ", status="incomplete"))
    yield "text to go on with", body(
        HI, {"role": "assistant", "content": "Sure, ", "status": "in_progress"}
    )
    yield "thought to go on with", body(HI, thought("Sure, ", status="in_progress"))
    yield "call that is not gone on with", body(HI, call(status="in_progress"))
    yield "open answer before another", body(said("a", status="incomplete"), HI)
    yield "tools", body(
        HI,
        tools=[
            WEATHER,
            function(),
            function("g", parameters=None, description=None, strict=False),
            function("h", parameters={}, defer_loading=True),
        ],
    )
    yield "custom tools", body(
        HI,
        tools=[
            {"type": "custom", "name": "sh", "description": "A shell."},
            {"type": "custom", "name": "bare", "format": {"type": "text"}},
        ],
    )
    yield "custom tool with a grammar", body(
        HI,
        tools=[{"type": "custom", "name": "x",
                "format": {"type": "grammar", "syntax": "lark", "definition": "s"}}],
    )
    yield "namespace", body(
        HI,
        tools=[
            {
                "type": "namespace",
                "name": "files",
                "description": "Files.",
                "tools": [function("read", parameters={"type": "object"}, strict=True),
                          {"type": "custom", "name": "edit"}],
            },
            WEATHER,
        ],
    )
    search = {"type": "web_search"}
    yield "tools of the engine that are not shown", body(HI, tools=[search, WEATHER])
    yield "only such tools", body(HI, tools=[search])
    yield "no tools", body(HI, tools=[])
    yield "tools null", body(HI, tools=None)
    for choice in ("none", "auto", "required", {"type": "function", "name": "get_weather"}):
        name = choice if isinstance(choice, str) else "named"
        yield f"choice {name}", body(HI, tools=[WEATHER], tool_choice=choice)
    yield "choice without tools", body(HI, tool_choice="auto")
    yield "effort", body(HI, reasoning={"effort": "high", "summary": "auto"})
    yield "effort none", body(HI, reasoning={"effort": "none"})
    yield "reasoning null", body(HI, reasoning=None)
    yield "kwargs and salt", body(HI, chat_template_kwargs={"x": {"y": [1.0]}}, cache_salt="s")
    yield "truncation", body(HI, truncation="auto")
    yield "truncation null", body(HI, truncation=None)
    yield "truncation disabled", body(HI, truncation="disabled")
    yield "tool role", body({"role": "tool", "content": "x", "tool_call_id": "1"})
    yield "input missing", {"model": "m"}
    yield "prompt template", body(HI, prompt={"id": "x"})


def cases():
    for name, made in chats():
        yield name, made, {}, False
    for name, made in {
        "previous response": body(HI, previous_response_id="resp_1"),
        "previous messages": body(HI, previous_input_messages=[HI]),
        "tool that the engine runs": body(HI, tools=[{"type": "code_interpreter",
                                                      "container": {"type": "auto"}}]),
        "web preview": body(HI, tools=[{"type": "web_search_preview"}]),
        "mcp": body(HI, tools=[{"type": "mcp", "server_label": "x", "server_url": "https://x"}]),
        "file": body({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}),
        "name": body({**HI, "name": "bob"}),
        "sent answer of a string": body(
            {**said(), "id": "msg_1", "status": "completed", "content": ""}, HI
        ),
        "answer without text": body(HI, {"role": "assistant", "content": []}),
        "item that is kept": body({"type": "item_reference", "id": "x"}),
        "token ids": body(HI, kv_transfer_params={"prompt_token_ids": [1]}),
    }.items():
        yield name, made, {}, True
