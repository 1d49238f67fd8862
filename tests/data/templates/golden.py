#!/usr/bin/env python3
"""Writes golden.json: what vLLM 0.32 and transformers make of conversations.jsonl.

Runs in an environment with vllm 0.32 (CPU is enough) and transformers 5 installed:

    python tests/data/templates/golden.py [NAME ...]

Templates come from two places: our own, beside this script, and those of vendors, which
scripts/fetch-tokenizers keeps in .cache/tokenizers and which are never committed. Each request
goes the way that it goes in the server:

  ChatCompletionRequest.model_validate     members, their order, tools as model_dump gives them
  OnlineRenderer.render_chat               tool_dicts
  OnlineRenderer.preprocess_chat           default arguments, build_chat_params, with_defaults
  HfRenderer.render_messages               resolve_chat_template_content_format,
                                           parse_chat_messages, safe_apply_chat_template
  tokenizer.apply_chat_template            the rendering itself

and once more as /tokenize takes it (TokenizeChatRequest, ServingTokenization.create_tokenize),
with one template, under the name of parts@tokenize.

Media are not fetched: the tracker is told not to look, and a template that takes text gets no
placeholder, so that what is compared is the text. The clock stands at 2024-07-26 09:05:07.

A result is the text, or [length in bytes, SHA-256] when it is long, or null where vLLM answers
with an error.
"""

import datetime
import hashlib
import json
import logging
import pathlib
import shutil
import sys
import tempfile
from types import SimpleNamespace

logging.disable(logging.CRITICAL)

import transformers.utils.chat_template_utils as chat_template_utils
import vllm.renderers.chat_utils as chat_utils
from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest
from vllm.renderers.hf import resolve_chat_template_content_format, safe_apply_chat_template
from vllm.renderers.params import merge_kwargs

HERE = pathlib.Path(__file__).resolve().parent
CACHE = HERE.parents[2] / ".cache" / "tokenizers"
OURS = ["features", "llama_tools", "mistral_like", "parts", "parts@tokenize"]
VENDORS = ["qwen3", "llama3", "llama3_1", "deepseek_v3", "gemma3"]
OUR_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
LONG = 400


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 9, 5, 7)


class NoMedia:
    """Stands in for the tracker of media: takes all, fetches nothing, gives no placeholder."""

    def __init__(self, *_args, **_kwargs):
        self.model_config = MODEL

    def add(self, _modality, _item):
        return None

    def create_parser(self, mm_processor_kwargs=None):
        parser = chat_utils.MultiModalContentParser.__new__(chat_utils.MultiModalContentParser)
        chat_utils.BaseMultiModalContentParser.__init__(parser)
        parser._tracker = self
        for name in ("parse_image", "parse_input_audio", "parse_audio", "parse_video"):
            setattr(parser, name, lambda *_: None)
        return parser

    def resolve_items(self):
        return None, None


MODEL = SimpleNamespace(
    multimodal_config=None,
    enable_prompt_embeds=False,
    tokenizer_revision=None,
    revision=None,
    code_revision=None,
    tokenizer="x",
    model="x",
    trust_remote_code=False,
    hf_config=SimpleNamespace(model_type="none"),
)
chat_template_utils.datetime = Clock
chat_utils.MultiModalItemTracker = NoMedia


def render(tokenizer, body, model):
    request = model.model_validate(body)
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    defaults = merge_kwargs(None, dict(tools=tools, tokenize=False))
    params = request.build_chat_params(None, "auto").with_defaults(defaults)
    content_format = resolve_chat_template_content_format(
        chat_template=params.chat_template,
        tools=params.chat_template_kwargs.get("tools"),
        given_format=params.chat_template_content_format,
        tokenizer=tokenizer,
        model_config=MODEL,
    )
    conversation, _, _ = chat_utils.parse_chat_messages(request.messages, MODEL, content_format)
    kwargs = params.get_apply_chat_template_kwargs()
    return safe_apply_chat_template(MODEL, tokenizer, conversation, **kwargs)


def tokenizer_of(name):
    if name in VENDORS:
        return AutoTokenizer.from_pretrained(CACHE / name)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=name))
    shutil.copy(CACHE / "llama3" / "tokenizer.json", folder)
    config = dict(tokenizer_class="PreTrainedTokenizerFast", **OUR_TOKENS)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    source = name.partition("@")[0]
    shutil.copy(HERE / f"{source}.jinja", folder / "chat_template.jinja")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    shutil.rmtree(folder)
    return tokenizer


def result(tokenizer, body, name, model):
    try:
        text = render(tokenizer, json.loads(json.dumps(body)), model)
    except Exception as error:
        print(f"  {name}: {type(error).__name__}: {str(error)[:90]!r}", file=sys.stderr)
        return None
    data = text.encode()
    return text if len(data) <= LONG else [len(data), hashlib.sha256(data).hexdigest()]


def main():
    target = HERE / "golden.json"
    golden = json.loads(target.read_text()) if target.exists() else {}
    lines = (HERE / "conversations.jsonl").read_text().splitlines()
    conversations = [json.loads(line) for line in lines]
    for name in sys.argv[1:] or OURS + VENDORS:
        print(name, file=sys.stderr)
        tokenizer = tokenizer_of(name)
        model = TokenizeChatRequest if name.endswith("@tokenize") else ChatCompletionRequest
        golden[name] = {
            c["name"]: result(tokenizer, c["body"], c["name"], model) for c in conversations
        }
    rows = []
    for name in sorted(golden):
        cells = (f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in golden[name].items())
        rows.append(f"{json.dumps(name)}: {{\n" + ",\n".join(cells) + "\n}")
    target.write_text("{\n" + ",\n".join(rows) + "\n}\n")


main()
