"""What `scripts/compare` measures of one gateway before one simulated fleet, and how.

CPU is what the gateway's processes used, by /proc, over a run of `expedite bench`, divided by the
requests that were answered; a tick of 10 ms is under 1 % of a run of two seconds. The gateway has a
core of its own; the fleet, the load generator and this script share another.
"""

import contextlib
import http.client
import json
import os
import resource
import socket
import statistics
import subprocess
import time

from bed import MODEL, Process, free_range, get, wait
from rivals import KEY

REPLICAS = 4
# Bytes of a prompt by name; the generator writes four bytes a token.
BODIES = {"256 B": 256, "8 KB": 8_192, "400 KB": 409_600}
STREAM_TOKENS = 300
PACED_STREAMS = 64
# A replica's pace where it is paced, in ms.
TTFT_MS, ITL_MS = 20, 10
# Longer than the prompts above.
CONTEXT_TOKENS = 262_144
CANCELS = 20
# Later than that the replica was not told.
CANCEL_SECONDS = 2
IDLE_STREAMS = 400


def pinned(cpu, command, env=None):
    return ["env", *(f"{k}={v}" for k, v in (env or {}).items()), "taskset", "-c", cpu, *command]


def raise_limits():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fleet(bed, cpu, ttft_ms, itl_ms):
    """Ports of replicas with this pace."""
    first = free_range(REPLICAS)
    ports = list(range(first, first + REPLICAS))
    command = [bed.expedite, "sim", "--ports", f"{first}-{ports[-1]}", "--blocks", "1000000"]
    command += ["--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms)]
    command += ["--max-model-len", str(CONTEXT_TOKENS), "--model", MODEL]
    process = bed.keep(Process(pinned(cpu, command), bed.path("sim.log")))
    urls = [f"http://127.0.0.1:{port}/health" for port in ports]
    wait("the fleet", lambda: process.lives() and all(get(url) == "" for url in urls))
    return ports


def family(pid):
    """A process and its children's children."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                parents[int(entry)] = int(stat.read().rsplit(")", 1)[1].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def cpu_s(pid):
    total = 0
    for one in family(pid):
        with contextlib.suppress(OSError):
            with open(f"/proc/{one}/stat", encoding="utf-8", errors="replace") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def memory_kib(pid):
    """What the processes hold, pages that they share counted once."""
    total = 0
    for one in family(pid):
        with contextlib.suppress(OSError):
            with open(f"/proc/{one}/smaps_rollup", encoding="utf-8") as file:
                lines = [line for line in file if line.startswith("Pss:")]
            total += sum(int(line.split()[1]) for line in lines)
    return total


class Stand:
    """A gateway that runs before a fleet."""

    def __init__(self, rival, site, cpus, seconds):
        self.rival, self.site, self.seconds = rival, site, seconds
        self.load_cpu, self.own_cpu = cpus
        self.scale = 0.1 if rival.slow else 1.0
        self.errors = {}
        log = site.bed.path(f"{rival.name}.log")
        self.process = Process(pinned(self.own_cpu, rival.command(site), rival.env), log)
        try:
            wait(rival.name, lambda: self.process.lives() and self.answers(), seconds=120)
        except SystemExit:
            self.process.end()
            raise

    def end(self):
        self.process.end()

    @property
    def pid(self):
        return self.process.child.pid

    def body(self, tokens):
        message = {"role": "user", "content": "hello"}
        body = {"model": MODEL, "messages": [message], "max_tokens": tokens, "stream": True}
        return json.dumps(body).encode()

    def answers(self):
        one = http.client.HTTPConnection("127.0.0.1", self.site.port, timeout=10)
        fields = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        with contextlib.closing(one):
            one.request("POST", "/v1/chat/completions", self.body(1), fields)
            answer = one.getresponse()
            return answer.status == 200 and b"[DONE]" in answer.read()

    def bench(self, what, *options, direct=False):
        """A run of the load generator: its numbers, and the gateway's CPU in seconds."""
        command = [self.site.expedite, "bench", "--target", f"http://127.0.0.1:{self.site.port}"]
        command += ["--model", MODEL, "--key", KEY, "--no-usage", "--json", "-", *map(str, options)]
        if direct:
            command += ["--direct", self.site.urls()[0]]
        before = cpu_s(self.pid)
        done = subprocess.run(
            pinned(self.load_cpu, command), capture_output=True, text=True, check=False
        )
        used = cpu_s(self.pid) - before
        try:
            told = json.loads(done.stdout)
        except ValueError:
            told = {"completed": 0, "failed": 1, "errors": {done.stderr.strip()[-200:]: {}}}
        if told["failed"]:
            self.errors[what] = {"failed": told["failed"], "why": sorted(told["errors"])}
        return told, used

    def closed(self, what, connections, *options):
        """CPU a request in us, requests a second, and how busy the gateway's core was."""
        connections = max(1, round(connections * self.scale))
        options = ["--concurrency", connections, "--duration", self.seconds, *options]
        told, used = self.bench(what, *options)
        if not told["completed"]:
            return None
        rate = told["request_throughput"]
        return used * 1e6 / told["completed"], rate, used / max(told["duration"], 1e-9)

    def streams(self):
        """Before a fleet without pauses: requests, short streams, streams in bursts."""
        figures, one_us = {}, None
        for name, size in BODIES.items():
            load = ["--no-stream", "--output-tokens", 1, "--prompt-tokens", size // 4]
            came = self.closed(name, 8 if size > 100_000 else 32, *load)
            if came:
                figures[f"CPU per request, {name}, us"] = came[0]
                figures[f"requests/s, {name}"] = came[1]
                figures[f"core busy, {name}, %"] = came[2] * 100
                # What a core carries that has nothing else to wait for.
                figures[f"requests/s of a full core, {name}"] = 1e6 / max(came[0], 1e-9)
        came = self.closed("short", 32, "--output-tokens", 1, "--prompt-tokens", 64)
        if came:
            one_us = came[0]
            figures["CPU per stream of one token, us"] = one_us
        came = self.closed("burst", 16, "--output-tokens", STREAM_TOKENS)
        if came and one_us is not None:
            per_event = (came[0] - one_us) / (STREAM_TOKENS - 1)
            figures["CPU per event, bursts, us"] = per_event
        load = ["--rate", 400 * self.scale, "--duration", self.seconds, "--no-stream"]
        told, _ = self.bench("latency", *load, "--output-tokens", 1, direct=True)
        if "overhead" in told:
            figures["added latency p50, ms"] = told["overhead"]["e2el_p50_ms"]
            figures["added latency p99, ms"] = told["overhead"]["e2el_p99_ms"]
        return figures, one_us

    def paced(self, one_us):
        """Before a fleet with a pause before each token."""
        figures = {}
        # Begun one after the other, so that their events fall apart as those of real users do.
        length_s = (TTFT_MS + ITL_MS * STREAM_TOKENS) / 1000
        rate = PACED_STREAMS / length_s * self.scale
        load = ["--rate", rate, "--duration", max(self.seconds, length_s)]
        told, used = self.bench("paced", *load, "--output-tokens", STREAM_TOKENS)
        if told["completed"] and one_us is not None:
            stream_us = used * 1e6 / told["completed"]
            figures["CPU per event, paced, us"] = (stream_us - one_us) / (STREAM_TOKENS - 1)
        load = ["--rate", 100 * self.scale, "--duration", self.seconds, "--output-tokens", 16]
        told, _ = self.bench("ttft", *load, direct=True)
        if "overhead" in told:
            figures["added TTFT p50, ms"] = told["overhead"]["ttft_p50_ms"]
            figures["added TTFT p99, ms"] = told["overhead"]["ttft_p99_ms"]
            gap = told["p99_itl_ms"] - told["direct"]["p99_itl_ms"]
            figures["added gap between events p99, ms"] = gap
        figures |= self.cancels("in a stream", early=False)
        self.fault({"kind": "stall_before_head"})
        figures |= self.cancels("in prefill", early=True)
        self.fault({"kind": "none"})
        figures["memory per stream, KiB"] = self.memory()
        return figures

    def fault(self, fault):
        for port in self.site.replicas:
            one = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            with contextlib.closing(one):
                one.request("POST", "/fault", json.dumps(fault))
                one.getresponse().read()

    def ask(self):
        """A client that has asked for a stream."""
        body = self.body(STREAM_TOKENS)
        one = socket.create_connection(("127.0.0.1", self.site.port), timeout=30)
        one.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer "
            + KEY.encode()
            + b"\r\ncontent-type: application/json\r\ncontent-length: "
            + f"{len(body)}\r\n\r\n".encode()
            + body
        )
        return one

    def open_stream(self):
        """A client that has read its first event."""
        one, seen = self.ask(), b""
        while b"data: " not in seen:
            piece = one.recv(65_536)
            if not piece:
                raise OSError(f"{self.rival.name} ended a stream: {seen[:200]!r}")
            seen += piece
        return one

    def counted(self, asked, what):
        """A count of the replicas', summed."""
        total = 0
        for one in asked:
            one.request("GET", "/stats")
            total += json.loads(one.getresponse().read())[what]
        return total

    def cancels(self, where, early):
        """From a client's close to the replica's end of its work, as polled: half a millisecond."""
        closes = [came for came in (self.cancel(early) for _ in range(CANCELS)) if came is not None]
        figures = {f"cancels {where} that reached the replica, %": 100 * len(closes) / CANCELS}
        if closes:
            figures[f"cancel {where} p50, ms"] = statistics.median(closes)
            figures[f"cancel {where}, longest, ms"] = max(closes)
        return figures

    def cancel(self, early):
        """Ms from a client's close to the replica's end of its work, None if that did not come
        within `CANCEL_SECONDS`. `early`: before the replica has said anything."""
        asked = [http.client.HTTPConnection("127.0.0.1", p, timeout=10) for p in self.site.replicas]
        with contextlib.ExitStack() as held:
            for one in asked:
                held.callback(one.close)
            before = self.counted(asked, "aborted")
            running = self.counted(asked, "running")
            stream = self.ask() if early else self.open_stream()
            if early:
                wait("a replica has it", lambda: self.counted(asked, "running") > running)
            begun = time.monotonic()
            stream.close()
            while time.monotonic() - begun < CANCEL_SECONDS:
                if self.counted(asked, "aborted") > before:
                    return (time.monotonic() - begun) * 1000
        return None

    def memory(self):
        """KiB that a stream adds which its replica keeps silent."""
        count = max(1, round(IDLE_STREAMS * self.scale))
        self.fault({"kind": "stall_between_events", "after_events": 2})
        with contextlib.ExitStack() as held:
            held.enter_context(self.open_stream())
            before = memory_kib(self.pid)
            for _ in range(count):
                held.enter_context(self.open_stream())
            time.sleep(0.2)
            grown = memory_kib(self.pid) - before
        self.fault({"kind": "none"})
        return grown / count
