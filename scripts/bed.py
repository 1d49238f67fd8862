"""A simulated fleet, gateways and a store as processes of this machine, for the measuring scripts.

Ports are free ones; everything ends with the `with` block. The tokenizer is a tiny one (a byte is a
token), so that nothing is to be fetched; the simulator uses the same.
"""

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

MODEL = "sim-model"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


def get(url, timeout=30):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


def wait(what, ready, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if ready():
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)
    sys.exit(f"{what}: not within {seconds} s")


def free_ports(count):
    """Ports that nobody has now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def free_range(count):
    """The first of so many ports in a row that nobody has now, below those of outgoing calls."""
    for first in random.sample(range(10_000, 30_000), 200):
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    sys.exit("no ports are free")


def write_tokenizer(folder):
    """Byte-level BPE without merges, and a ChatML template."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    odd = [byte for byte in range(256) if byte not in plain]
    char = lambda byte: chr(byte) if byte in plain else chr(256 + odd.index(byte))
    vocab = {char(byte): byte for byte in range(256)}
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    level["use_regex"] = True
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": 256 + i, "content": content, **flags, "special": True}
            for i, content in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocab, "merges": []}
        | {"continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False}
        | {"byte_fallback": False, "ignore_merges": False},
    }
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}
    config |= {"chat_template": TEMPLATE}
    for name, value in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False)


class Process:
    """A command that ends with its owner."""

    def __init__(self, command, log):
        self.log = log
        with open(log, "a", encoding="utf-8") as out:
            self.child = subprocess.Popen(command, stdout=out, stderr=out)

    def lives(self):
        """True; the script ends with what the process said if it has ended."""
        if self.child.poll() is None:
            return True
        with open(self.log, encoding="utf-8") as log:
            sys.exit(f"{' '.join(self.child.args)}: it has ended\n{log.read()}")

    def cpu_s(self):
        with open(f"/proc/{self.child.pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def end(self):
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()


class Gateway(Process):
    """`expedite serve` with what it tells of itself."""

    def __init__(self, command, log, addr, admin, usage):
        super().__init__(command, log)
        self.addr, self.admin, self.usage = addr, admin, usage

    def metric(self, name, labels=""):
        """Sum of the series whose labels contain `labels`."""
        lines = get(f"http://127.0.0.1:{self.admin}/metrics").splitlines()
        found = [line for line in lines if line.startswith((name + "{", name + " "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found if labels in line)

    def records(self):
        with open(self.usage, encoding="utf-8") as file:
            return [json.loads(line) for line in file]


class Bed(contextlib.ExitStack):
    """Starts things; `with` ends them."""

    def __init__(self, expedite):
        super().__init__()
        self.expedite = expedite
        self.folder = self.enter_context(tempfile.TemporaryDirectory())
        self.count = 0

    def path(self, name):
        self.count += 1
        return os.path.join(self.folder, f"{self.count}-{name}")

    def tokenizer(self):
        folder = os.path.join(self.folder, "tokenizer")
        if not os.path.exists(folder):
            os.mkdir(folder)
            write_tokenizer(folder)
        return folder

    def keep(self, process):
        self.callback(process.end)
        return process

    def fleet(self, replicas, engine, tokenizer=None, kv_events=False, pace=None):
        """Ports of simulated replicas, and their process. `pace`: TTFT and ITL in ms."""
        first = free_range(3 * replicas)
        last = first + replicas - 1
        command = [self.expedite, "sim", "--ports", f"{first}-{last}", "--engine", engine]
        command += ["--tokenizer", tokenizer] if tokenizer else []
        command += ["--ttft-ms", str(pace[0]), "--itl-ms", str(pace[1])] if pace else []
        command += ["--kv-events-port", str(last + 1)] if kv_events else []
        process = self.keep(Process(command, self.path("sim.log")))
        ports = list(range(first, last + 1))
        urls = [f"http://127.0.0.1:{port}/health" for port in ports]
        wait("the fleet", lambda: process.lives() and all(get(url) == "" for url in urls))
        return ports, process

    def gateway(self, fleet, engine, tokenizer=None, routing="", cores="[0]", pool="", more=""):
        """`pool`: further keys of the pool, `more`: further sections."""
        addr, admin = free_ports(2)
        config, usage = self.path("gateway.toml"), self.path("usage.jsonl")
        urls = ", ".join(f'"http://127.0.0.1:{port}"' for port in fleet)
        with open(config, "w", encoding="utf-8") as file:
            file.write(
                f'[server]\nlisten = ["127.0.0.1:{addr}"]\nadmin = "127.0.0.1:{admin}"\n'
                f'cores = {cores}\n[usage]\npath = "{usage}"\n[log]\nlevel = "warn"\n'
                f"[routing]\n{routing}\n"
                f'[[pool]]\nname = "p"\nmodel = "{MODEL}"\nreplicas = [{urls}]\n'
                f'engine = "{engine}"\n'
            )
            file.write(f'tokenizer = "{tokenizer}"\n' if tokenizer else "")
            file.write(f"{pool}\n{more}\n")
        command = [self.expedite, "serve", "--config", config]
        log = self.path("gateway.log")
        gateway = self.keep(Gateway(command, log, addr, admin, usage))
        up = lambda: gateway.metric("expedite_replica_up") == len(fleet)
        wait("the gateway", lambda: gateway.lives() and up())
        return gateway

    def redis(self, port=None):
        port = port or free_ports(1)[0]
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", self.folder]
        process = self.keep(Process(command, self.path("redis.log")))

        def answers():
            with socket.create_connection(("127.0.0.1", port), timeout=1) as one:
                one.sendall(b"PING\r\n")
                return one.recv(16).startswith(b"+PONG")

        wait("redis-server", answers)
        return process, port


def stats(fleet):
    """What each replica counted."""
    return [json.loads(get(f"http://127.0.0.1:{port}/stats")) for port in fleet]
