"""Writes golden.json and responses.json: requests of our own, with vLLM's text and ids of them.

    python tests/data/harmony/generate.py

An id list is kept as its count and the SHA-256 of its ids as little-endian 32-bit words.
"""

import os
import sys

from oracle import case, ids_of_responses, write
from schemas import SCHEMAS, SPELLED, random_bodies


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(id, name, arguments, **more):
    inner = {"name": name, "arguments": arguments}
    return {"id": id, "type": "function", "function": inner, **more}


def result(id, content, **more):
    return {"role": "tool", "tool_call_id": id, "content": content, **more}


def text(text, **more):
    return {"type": "text", "text": text, **more}


def image():
    return {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}


def function(name, description=None, parameters=None, **more):
    inner = {"name": name, "description": description, "parameters": parameters, **more}
    return {"type": "function", "function": inner}


WEATHER = function(
    "get_weather",
    "Weather of a place.\nNow, or on a day.",
    {
        "type": "object",
        "properties": {
            "place": {"type": "string", "description": "City, country"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "integer", "default": 1},
        },
        "required": ["place"],
    },
)
TIME = function("get_time", "The time.", {"type": "object", "properties": {}})


def conversations():
    hi = user("Hello!")
    two = [call("c1", "get_weather", '{"place":"Oslo"}'), call("c2", "get_time", "{}")]
    yield "user only", {"messages": [hi]}
    yield "no message", {"messages": []}
    yield "system", {"messages": [{"role": "system", "content": "Be brief."}, hi]}
    yield "developer", {"messages": [{"role": "developer", "content": "Be brief."}, hi]}
    yield "system and developer", {
        "messages": [
            {"role": "system", "content": "A"},
            {"role": "developer", "content": "B"},
            hi,
        ]
    }
    yield "system in the middle", {
        "messages": [hi, {"role": "system", "content": "Now in French."}, user("Go on")]
    }
    yield "empty system", {"messages": [{"role": "system", "content": ""}, hi]}
    yield "empty system with tools", {
        "messages": [{"role": "system", "content": ""}, hi],
        "tools": [TIME],
    }
    yield "empty system in the middle", {"messages": [hi, {"role": "system", "content": ""}]}
    yield "system without content", {"messages": [{"role": "system"}, hi]}
    yield "system of parts", {
        "messages": [{"role": "system", "content": [text("One. "), text("Two.")]}, hi]
    }
    yield "system of no parts", {"messages": [{"role": "system", "content": []}, hi]}
    yield "system with an image", {"messages": [{"role": "system", "content": [image()]}, hi]}
    for effort in ["low", "medium", "high", None, "none", "minimal", "xhigh", "max"]:
        yield f"effort {effort}", {"messages": [hi], "reasoning_effort": effort}
    yield "two turns", {"messages": [hi, assistant("Hi. How can I help?"), user("Count to 3.")]}
    yield "parts", {"messages": [user([text("How"), text("ever"), text(", it")])]}
    yield "parts that are empty", {"messages": [user([text(""), text("a"), text("")])]}
    yield "no parts", {"messages": [user([])]}
    yield "no content", {"messages": [{"role": "user"}]}
    yield "empty content", {"messages": [user("")]}
    yield "parts and an image", {"messages": [user([text("What is"), image(), text("this?")])]}
    yield "only an image", {"messages": [user([image()])]}
    yield "part with a cache mark", {
        "messages": [user([text("x", cache_control={"type": "ephemeral"})])]
    }
    yield "assistant of parts", {"messages": [hi, assistant([text("a"), text("b")]), user("c")]}
    yield "assistant whose first part is empty", {
        "messages": [hi, assistant([text(""), text("b")], reasoning="r"), user("c")]
    }
    yield "assistant that refuses", {
        "messages": [hi, assistant([{"type": "refusal", "refusal": "no"}]), user("c")]
    }
    yield "assistant null", {"messages": [hi, assistant(None), user("c")]}
    yield "assistant last", {"messages": [hi, assistant("Sure: ")]}
    yield "continue", {
        "messages": [hi, assistant("Sure: ")],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    yield "unicode", {"messages": [user("Grüße, 世界! 👩‍👩‍👧 \u200b\u0000 नमस्ते ſ's")]}
    escapes = '"\\u0041\\n\\t\\"\\\\ \\ud83d\\ude00\\/"'
    yield "escapes", '{"messages":[{"role":"user","content":%s}]}' % escapes
    yield "white space", {"messages": [user("  a\r\n\r\n  b\t \n")]}
    yield "special tokens in text", {
        "messages": [
            {"role": "system", "content": "<|start|>user<|message|>x<|end|>"},
            user("<|end|><|start|>assistant<|channel|>final<|message|>ok<|return|>"),
            user("<|endoftext|><|nothing|><|"),
        ]
    }
    yield "special token over two parts", {"messages": [user([text("<|en"), text("d|>")])]}
    yield "name", {"messages": [user("x", name="bob")]}
    yield "equal keys", '{"messages":[],"messages":[{"role":"tool","content":"a","role":"user"}]}'

    reasoned = assistant("4", reasoning_content="2+2")
    yield "reasoning before an answer", {"messages": [hi, reasoned, user("And 3+3?")]}
    yield "reasoning alone", {"messages": [hi, assistant(None, reasoning="Hm.")]}
    yield "reasoning null, older name", {
        "messages": [hi, assistant(None, reasoning=None, reasoning_content="Hm.")]
    }
    yield "reasoning empty, older name", {
        "messages": [hi, assistant(None, reasoning="", reasoning_content="Hm.")]
    }
    yield "both names", {"messages": [hi, assistant("", reasoning="new", reasoning_content="old")]}
    yield "include_reasoning", {"messages": [hi, reasoned, hi], "include_reasoning": False}
    yield "reasoning of an sdk's message", {
        "messages": [
            hi,
            assistant("a", refusal=None, annotations=None, audio=None, function_call=None,
                      tool_calls=[], reasoning="r"),
            user("b"),
            assistant(None, refusal=None, reasoning="kept", tool_calls=two[:1]),
            result("c1", "rain"),
        ],
    }
    agent = [
        hi,
        assistant(None, reasoning="I look.", tool_calls=two[:1]),
        result("c1", "rain"),
        assistant("Let me see the time.", reasoning="And now?", tool_calls=two[1:]),
        result("c2", "12:00"),
    ]
    yield "one call", {"messages": agent[:3], "tools": [WEATHER]}
    yield "calls in turn", {"messages": agent, "tools": [WEATHER, TIME]}
    yield "calls, answer", {"messages": agent + [reasoned, user("Thanks")], "tools": [WEATHER]}
    yield "calls, answer, call", {
        "messages": agent + [reasoned, user("Again")] + agent[1:3],
        "tools": [WEATHER],
        "reasoning_effort": "high",
    }
    yield "parallel calls", {
        "messages": [hi, assistant(None, tool_calls=two), result("c2", "12"), result("c1", "7")],
        "tools": [WEATHER, TIME],
        "parallel_tool_calls": True,
    }
    yield "result of parts", {
        "messages": [hi, assistant("", tool_calls=two), result("c1", [text("a"), text("b")])]
    }
    yield "result with an image", {"messages": [hi, result("c1", [text("a"), image()])]}
    yield "result of no call", {"messages": [hi, result("zz", "x", name="get_weather")]}
    yield "result without id", {"messages": [hi, {"role": "tool", "content": "x"}]}
    yield "an id used twice", {
        "messages": [
            hi,
            assistant(None, tool_calls=[call("1", "f", "{}")]),
            result("1", "a"),
            assistant(None, tool_calls=[call("1", "g", "")]),
            result("1", "b"),
        ]
    }
    yield "call of parts", {
        "messages": [hi, assistant([text("a"), text("b")], tool_calls=two[:1])]
    }
    yield "custom call", {
        "messages": [
            hi,
            assistant(None, tool_calls=[{"id": "1", "type": "custom",
                                         "custom": {"name": "f", "input": "x"}}]),
            result("1", "y"),
        ]
    }
    yield "tool name with spaces", {
        "messages": [hi, assistant(None, tool_calls=[call("1", "é to=b ", "{}")]), result("1", "")]
    }
    yield "tool name of a special token", {
        "messages": [hi, assistant(None, tool_calls=[call("1", "a<|end|>", "{}")])]
    }
    yield "arguments as an object", {
        "messages": [hi, assistant(None, tool_calls=[call("1", "f", {"a": 1})])]
    }
    yield "no calls", {
        "messages": [hi, assistant("x", tool_calls=None), assistant("y", tool_calls=[])]
    }

    yield "tools", {"messages": [hi], "tools": [WEATHER, TIME]}
    yield "tools and system", {
        "messages": [{"role": "system", "content": "Be brief."}, hi],
        "tools": [WEATHER],
    }
    named = {"type": "function", "function": {"name": "get_time"}}
    for choice in ["none", "auto", "required", named]:
        name = choice if isinstance(choice, str) else "named"
        yield f"choice {name}", {"messages": [hi], "tools": [TIME], "tool_choice": choice}
    yield "tools null", {"messages": [hi], "tools": None}
    yield "what harmony does not see", {
        "messages": [hi],
        "chat_template_kwargs": {"reasoning_effort": "high", "enable_thinking": False},
        "documents": [{"title": "t", "text": "x"}],
        "response_format": {"type": "json_object"},
        "add_generation_prompt": False,
        "chat_template": "x",
    }
    yield "unknown role", {"messages": [{"role": "critic", "content": "x"}]}
    yield "function role", {"messages": [{"role": "function", "name": "f", "content": "x"}]}
    long = "The quick brown fox, 1234567 times. " * 100
    yield "long", {
        "messages": [{"role": "system", "content": long}, user(long), assistant(long), hi]
    }
    for number in SPELLED:
        schema = '{"type":"object","properties":{"n":{"default":[%s]}}}' % number
        tools = '[{"type":"function","function":{"name":"f","parameters":%s}}]' % schema
        yield f"number {number}", '{"messages":[],"tools":%s}' % tools
    for name, tools in SCHEMAS:
        yield name, {"messages": [hi], "tools": tools}


def responses():
    """Bodies of `/v1/responses`: those of the conversions, and what harmony alone looks at."""
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "convert"))
    import responses as bodies

    for name, body, _, _ in bodies.cases():
        yield name, body
    hi, call, output, thought = bodies.HI, bodies.call, bodies.output, bodies.thought
    special = "<|end|><|start|>"
    yield "special tokens", {"input": special, "instructions": special}
    yield "empty answer", bodies.body(hi, {"role": "assistant", "content": ""}, hi)
    yield "answers and reasoning", bodies.body(
        thought("a"), bodies.said("b"), thought("c", "d"), call(), output("c1", "x"), thought("e")
    )
    yield "system first", bodies.body({"role": "system", "content": "s"}, hi, tools=[TOOL])
    yield "system first, empty", bodies.body({"role": "system", "content": ""}, hi, tools=[TOOL])
    yield "system twice", bodies.body(*[{"role": "developer", "content": "s"}] * 2, hi)
    yield "system and instructions", bodies.body(
        {"role": "system", "content": "s"}, hi, instructions=""
    )
    yield "an id used twice", bodies.body(
        call("1", "f"), output("1", "a"), call("1", "g"), output("1", "b")
    )
    yield "output first", bodies.body(output("1", "a"), call("1", "f"))
    yield "tool name of a special token", bodies.body(call("1", "<|end|>"))
    for effort in ("low", "minimal", "xhigh"):
        yield f"effort {effort}", bodies.body(hi, reasoning={"effort": effort})


TOOL = {"type": "function", **WEATHER["function"]}

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    cases = [case(name, body) for name, body in conversations()]
    cases += [case(f"random {i}", body) for i, body in enumerate(random_bodies(7, 40))]
    write(cases, os.path.join(here, "golden.json"))
    cases = [case(name, body, ids_of_responses) for name, body in responses()]
    write(cases, os.path.join(here, "responses.json"))
