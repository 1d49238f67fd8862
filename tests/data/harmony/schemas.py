"""Tools with every part of a schema that the TypeScript form looks at, and random ones."""

import random


def tool(parameters, name="f", description="d"):
    inner = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": inner}


def properties(**named):
    return [tool({"type": "object", "properties": named})]


DEEP = {
    "type": "object",
    "description": "outer",
    "properties": {
        "a": {
            "type": "object",
            "description": "inner",
            "properties": {
                "b": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"c": {"type": "array", "items": {"type": "string"}}},
                        "required": ["c"],
                    },
                }
            },
        }
    },
    "required": ["a", 3, "missing"],
}
CHOICE = {
    "oneOf": [
        {"type": "string", "description": "by name", "default": "x"},
        {"type": "integer", "description": "by number", "nullable": True, "default": 7},
        {"type": "object", "properties": {"k": {"type": "null"}}, "nullable": True},
        {"type": "string", "enum": ["p", "q"], "default": "p"},
        {"type": "string", "enum": [], "default": "p"},
        True,
    ]
}
NUMBERS = [0, 1, -1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30, 0.1, 1.0, 1e16, 1e15, 1e-5]
NUMBERS += [1e22, 1e21, 1.5e-7, 123456789.125, 5e-324, 1.7976931348623157e308, -0.0]
NUMBERS += [0.30000000000000004, 9007199254740993.0, 1234567890123456.7]
SPELLED = ["-0", "-0.0", "1E5", "1e+2", "1.50", "100000000000000000000000", "1e400", "0.1e1"]

SCHEMAS = [
    ("tool without description", [tool(None, description=None)]),
    ("tool with an empty description", [tool({}, description="")]),
    ("description of many lines", [tool({}, description="a\n\nb\r\nc\rd\u2028e\n\n")]),
    ("no parameters", [{"type": "function", "function": {"name": "f"}}]),
    ("no type", [{"function": {"name": "f", "strict": True}, "defer_loading": True}]),
    ("parameters without type", [tool({"properties": {"a": {"type": "string"}}})]),
    ("parameters are a string", [tool({"type": "string", "enum": ["a", 'b"c', 3]})]),
    ("deep", [tool(DEEP)]),
    ("choice at the top", [tool(CHOICE)]),
    ("empty choice", [tool({"oneOf": []})]),
    ("choice that is no list", [tool({"oneOf": {"type": "string"}, "type": "boolean"})]),
    ("property of a choice", properties(a=CHOICE, b={"type": "string"})),
    (
        "choice with a description",
        properties(
            a={**CHOICE, "description": "by name", "default": "x"},
            b={**CHOICE, "description": "other", "title": "T", "examples": ["e", 1], "default": 2},
            c={"oneOf": [{"oneOf": [{"type": "string"}]}], "enum": ["z"], "default": "z"},
            d={"oneOf": "x", "type": "string", "description": "lost", "default": 1},
            e={"oneOf": [], "description": "none"},
        ),
    ),
    (
        "kinds",
        properties(
            s={"type": "string"}, n={"type": "number"}, i={"type": "integer"},
            b={"type": "boolean"},
            z={"type": "null"}, x={"type": "thing"}, a={"type": "array"},
            aa={"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            ab={"type": "array", "items": [{"type": "integer"}]},
            t={"type": ["integer", "null", 3, "string"]}, te={"type": []}, tn={"type": [1]},
            o={"type": "object"}, q={}, r={"$ref": "#/x"}, l=[1], f=False, w="str",
            any={"anyOf": [{"type": "string"}, {"type": "null"}]},
        ),
    ),
    (
        "nullable",
        properties(
            a={"type": "string", "nullable": True}, b={"type": "string", "nullable": "true"},
            c={"type": ["string", "null"], "nullable": True},
            d={"type": "string", "enum": ["nullify"], "nullable": True},
            e={"type": "object", "nullable": True, "properties": {"x": {"default": None}}},
        ),
    ),
    (
        "titles and examples",
        properties(
            a={"type": "string", "title": "A", "description": "about a", "examples": ["x", 'y"z']},
            b={"type": "string", "examples": [1, 2]}, c={"type": "string", "examples": []},
            d={"title": 3, "description": ["x"], "examples": "no"},
            e={"type": "string", "description": "two\nlines"},
        ),
    ),
    (
        "defaults",
        properties(
            a={"default": None}, b={"default": True}, c={"default": False}, d={"default": "s\"\n"},
            e={"default": {"k": [1, "é\"\\\n\u0001\u007f\u2028", None], "": {}}}, f={"default": []},
            g={"enum": ["x"], "default": "y\"z"}, h={"enum": [], "default": "y"},
            i={"type": "string", "enum": [1, 2], "default": 1},
        ),
    ),
    ("numbers", properties(**{f"n{i}": {"default": n} for i, n in enumerate(NUMBERS)})),
    ("names", properties(**{"a b": {}, "ü-1": {}, "": {}, "q\"": {}, "<|end|>": {}})),
    ("tool names", [tool({}, name="a.b"), tool({}, name=""), tool(None, name="<|call|>")]),
    ("special token in a description", [tool({}, description="<|start|>")]),
]


def _schema(rng, depth):
    """A random schema, wrong in places."""
    kinds = ["string", "number", "integer", "boolean", "array", "object", "null", "odd"]
    schema = {}
    if rng.random() < 0.85:
        schema["type"] = rng.choice(kinds if rng.random() < 0.85 else [["string", "integer"], 3])
    if depth < 4 and rng.random() < 0.2:
        schema["oneOf"] = [_schema(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if depth < 4 and rng.random() < 0.7:
        names = rng.sample(["a", "b", "c", "long name", "é"], rng.randint(0, 4))
        schema["properties"] = {name: _schema(rng, depth + 1) for name in names}
        schema["required"] = rng.sample(names, len(names) // 2)
    if depth < 4 and rng.random() < 0.4:
        schema["items"] = _schema(rng, depth + 1)
    for key, values in {
        "description": ["x", "y", "two\nlines", 3],
        "title": ["T", None],
        "enum": [["x", "y"], [], ["null"], [1]],
        "default": ["x", 1, 2.5, None, {"a": [1e100]}, [], True],
        "examples": [["x"], [], [2, "z"]],
        "nullable": [True, False, 1],
    }.items():
        if rng.random() < 0.3:
            schema[key] = rng.choice(values)
    keys = list(schema)
    rng.shuffle(keys)
    return {key: schema[key] for key in keys}


def _message(rng):
    words = ["", "hello", " world", "<|end|>", "\n\n", "日本", "it's", "12345", "a b  c", "😀"]
    def words_of():
        return "".join(rng.choice(words) for _ in range(rng.randint(0, 4)))
    role = rng.choice(["user", "user", "assistant", "assistant", "assistant", "tool", "system"])
    content = words_of()
    if rng.random() < 0.3:
        content = [{"type": "text", "text": words_of()} for _ in range(rng.randint(0, 3))]
    message = {"role": role, "content": content}
    if role == "tool":
        message["tool_call_id"] = rng.choice(["1", "2", "3"])
    if role == "assistant":
        if rng.random() < 0.4:
            message[rng.choice(["reasoning", "reasoning_content"])] = words_of()
        if rng.random() < 0.4:
            inner = [{"name": rng.choice("fgh"), "arguments": words_of()} for _ in range(2)]
            calls = [{"id": rng.choice("123"), "type": "function", "function": f} for f in inner]
            message["tool_calls"] = calls[: rng.randint(0, 2)]
        if rng.random() < 0.2:
            message["content"] = None
    return message


def random_bodies(seed, count):
    """`count` random chats, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        body = {"messages": [_message(rng) for _ in range(rng.randint(1, 7))]}
        if rng.random() < 0.5:
            tools = [tool(_schema(rng, 0), name=f"t{i}") for i in range(rng.randint(1, 3))]
            body["tools"] = tools
        if rng.random() < 0.3:
            body["reasoning_effort"] = rng.choice(["low", "medium", "high"])
        yield body
