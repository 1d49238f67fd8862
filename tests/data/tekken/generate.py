"""Writes tiny.json, a tekken.json of our own, and golden.json: what vLLM makes of our texts with
it, and with the one that `scripts/fetch-tokenizers tekken` brings.

    python tests/data/tekken/generate.py

Needs vLLM 0.32 with mistral-common 1.13.1. Ids and lists of ids are kept as their count and the
SHA-256 of the ids as little-endian 32-bit words; texts as the SHA-256 of their UTF-8.
"""

import base64
import hashlib
import json
import random
import shutil
import struct
import tempfile
from collections import Counter
from pathlib import Path

import regex
from texts import CODE, LANGUAGES, TEXTS
from vllm.tokenizers.mistral import MistralTokenizer

HERE = Path(__file__).parent
FETCHED = HERE.parents[2] / ".cache/tokenizers/tekken/tekken.json"
# Of the tiny one: tokens that the file has and its configuration leaves out, and special tokens.
LEFT_OUT = 15
NAMED = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
         "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "<pad>", "[PREFIX]", "[MIDDLE]",
         "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]",
         "[THINK]", "[/THINK]", "[é]"]
SPECIAL = 30


def train(pattern, merges):
    """Byte-level BPE of our own texts: tokens in the order in which they are learned."""
    words = Counter(regex.findall(pattern, "\n".join(LANGUAGES + CODE)))
    words = {tuple(bytes([b]) for b in word.encode()): n for word, n in words.items()}
    tokens = [bytes([b]) for b in range(256)]
    for _ in range(merges):
        pairs = Counter()
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += n
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        tokens.append(best[0] + best[1])
        words = {merge(word, best): n for word, n in words.items()}
    return tokens


def merge(word, pair):
    out = []
    for piece in word:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)


def tiny(pattern):
    tokens = train(pattern, 400 + LEFT_OUT)
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    config = {
        "pattern": pattern,
        "num_vocab_tokens": len(tokens),
        "default_vocab_size": SPECIAL + len(tokens) - LEFT_OUT,
        "default_num_special_tokens": SPECIAL,
        "version": "v13",
    }
    special = [
        {"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(NAMED)
    ]
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in vocab)
    head = f'"config":{json.dumps(config)},\n"special_tokens":{json.dumps(special)}'
    return f'{{{head},\n"vocab":[\n{lines}\n]}}\n'


def ids_digest(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


def text_digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def code_points(tokenizer):
    """Digests of the ids of 4,096 code points each, alone and after a letter."""
    encode = tokenizer.tokenizer.encode
    digests = []
    for block in range(0, 0x110000, 0x1000):
        ids = []
        for c in range(block, block + 0x1000):
            if not 0xD800 <= c < 0xE000:
                ids += encode(chr(c), False, False) + encode("a" + chr(c), False, False)
        digests.append(ids_digest(ids))
    return digests


def record(file):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(file, Path(folder) / "tekken.json")
        tokenizer = MistralTokenizer.from_pretrained(folder, truncation_side="left")
    texts = []
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=True)["input_ids"]
        bare = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids == [tokenizer.bos_token_id, *bare]
        assert tokenizer.decode(bare) == text
        texts.append([len(ids), ids_digest(ids)])
    rng = random.Random(9)
    decoded = []
    for _ in range(40):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randint(1, 20))]
        ids += [rng.randrange(40) for _ in range(rng.randint(0, 3))]
        rng.shuffle(ids)
        skipped = tokenizer.decode(ids, skip_special_tokens=True)
        decoded.append([ids, text_digest(tokenizer.decode(ids)), text_digest(skipped)])
    tokens = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    return {
        "vocab_size": tokenizer.vocab_size,
        "tokens": text_digest("\0".join(tokens)),
        "texts": texts,
        "decoded": decoded,
        "code_points": code_points(tokenizer),
    }


def lines(value, depth):
    """JSON with a line for each item down to a depth."""
    short = json.dumps(value, separators=(",", ":"))
    if depth == 0 or not isinstance(value, (dict, list)):
        return short
    if isinstance(value, list):
        return "[\n" + ",\n".join(lines(item, depth - 1) for item in value) + "\n]"
    items = (f"{json.dumps(key)}:{lines(item, depth - 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + "\n}"


def main():
    pattern = json.loads(FETCHED.read_text())["config"]["pattern"]
    (HERE / "tiny.json").write_text(tiny(pattern))
    golden = {"texts": TEXTS, "tiny": record(HERE / "tiny.json"), "tekken": record(FETCHED)}
    (HERE / "golden.json").write_text(lines(golden, 3) + "\n")
    print(f"{len(TEXTS)} texts, {sum(n for n, _ in golden['tekken']['texts'])} tokens")


main()
