#!/usr/bin/env python3
"""Tests the scripts that judge: `python3 tests/scripts/check.py EXPEDITE`.

`scripts/instructions` with stand-ins for valgrind and the bench, `scripts/compare-bench` with
stand-ins for one or both generators and the simulator as engine. Closes with `N passed, M failed`;
exit 1 when one failed.
"""

import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from bed import Process, free_range, get, wait  # noqa: E402

EXPEDITE = ""
# How callgrind ends.
VALGRIND = """#!{python}
import pathlib, subprocess, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(print("valgrind-0"))
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
done = subprocess.run(words, capture_output=True, text=True)
sys.stdout.write(done.stdout)
print("==7== Callgrind, a call-graph generating cache profiler", file=sys.stderr)
if words[1] == "--rounds":
    cost = int(pathlib.Path(words[0] + "." + words[2]).read_text())
    print(f"==7== Events    : Ir\\n==7== Collected : {{90_000 + cost * int(words[3])}}\\n==7== ",
          file=sys.stderr)
sys.exit(done.returncode)
"""
BENCH = """#!{python}
import pathlib, sys
here = sys.argv[0]
match sys.argv[1:]:
    case ["--list"]: print("head 100\\nbody 10\\nfar 10")
    case ["--processor"]: print(pathlib.Path(here + ".processor").read_text())
    case ["--rounds", "far", _]: print("absent")
"""
# A generator that saves a prepared result, of each run the next.
GENERATOR = """#!{python}
import json, os, pathlib, sys
args = sys.argv
path = args[args.index("--json") + 1] if "--json" in args else os.path.join(
    args[args.index("--result-dir") + 1], args[args.index("--result-filename") + 1])
results = json.loads(pathlib.Path(args[0] + ".results").read_text())
pathlib.Path(args[0] + ".results").write_text(json.dumps(results[1:]))
pathlib.Path(path).write_text(json.dumps(results[0]))
"""


class Folder(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)

    def program(self, name, text):
        path = self.folder / name
        path.write_text(text.format(python=sys.executable))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    def run_script(self, name, *args, first=""):
        env = {**os.environ, "PATH": f"{first}:{os.environ['PATH']}"}
        command = [sys.executable, str(SCRIPTS / name), *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)


class Instructions(Folder):
    def setUp(self):
        super().setUp()
        self.program("valgrind", VALGRIND)
        self.bench = self.program("bench", BENCH)
        self.counts = self.folder / "counts.toml"
        self.cost(head=1_000, body=50, far=1)
        pathlib.Path(self.bench + ".processor").write_text("one")

    def cost(self, **cases):
        for name, cost in cases.items():
            pathlib.Path(f"{self.bench}.{name}").write_text(str(cost))

    def count(self, *args):
        args = ["--bench", self.bench, "--counts", self.counts, *args]
        return self.run_script("instructions", *args, first=self.folder)

    def test_the_cost_of_a_round_is_the_difference_of_two_runs(self):
        done = self.count("--accept")
        self.assertEqual(done.returncode, 0, done.stderr)
        held = self.counts.read_text()
        self.assertIn("head = 1000\n", held)
        self.assertIn("body = 50\n", held)
        self.assertNotIn("far", held)
        self.assertIn("scripts/fetch-tokenizers", done.stdout)

    def test_more_than_three_percent_fails_until_it_is_accepted(self):
        self.count("--accept")
        self.cost(head=1_030)
        self.assertEqual(self.count().returncode, 0)
        self.cost(head=1_031)
        done = self.count()
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("scripts/instructions --accept head\n", done.stdout)
        self.assertEqual(self.count("body").returncode, 0)
        self.assertEqual(self.count("--accept", "head").returncode, 0)
        self.assertIn("head = 1031\n", self.counts.read_text())
        self.assertIn("body = 50\n", self.counts.read_text())
        self.assertEqual(self.count().returncode, 0)

    def test_what_was_never_counted_is_no_success(self):
        done = self.count()
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("not counted before", done.stdout)

    def test_another_processor_is_not_compared(self):
        self.count("--accept")
        pathlib.Path(self.bench + ".processor").write_text("another")
        self.cost(body=49)
        for args in ([], ["body"], ["--accept", "body"]):
            done = self.count(*args)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("processor: one there, another here", done.stdout)
        self.assertIn("body = 50\n", self.counts.read_text())
        self.assertEqual(self.count("--accept").returncode, 0)
        self.assertIn("body = 49\n", self.counts.read_text())

    def test_a_bench_that_fails_is_no_count(self):
        self.program("bench", "#!/bin/sh\nexit 3\n")
        self.assertEqual(self.count("--accept").returncode, 1)
        self.assertFalse(self.counts.exists())


def result(ttft, tokens=2_560, completed=80):
    return {
        "completed": completed,
        "total_input_tokens": 10_240,
        "total_output_tokens": tokens,
        "median_ttft_ms": ttft,
        "median_tpot_ms": 10.0,
        "median_itl_ms": 10.0,
        "median_e2el_ms": 350.0,
        "request_throughput": 5.5,
        "output_throughput": 176.0,
    }


class CompareBench(Folder):
    def compare(self, ours, theirs, *more):
        """With results of either, the first of which is of the round that is not counted."""
        programs = []
        for name, results in (("expedite", ours), ("vllm", theirs)):
            programs += [f"--{name}", self.program(name, GENERATOR)]
            pathlib.Path(programs[-1] + ".results").write_text(json.dumps(results))
        args = ["--engine", "http://127.0.0.1:9", "--tokenizer", "t", "--rounds", len(ours) - 1]
        return self.run_script("compare-bench", *args, *programs, *more)

    def test_medians_are_held_against_each_other(self):
        ours = [result(x) for x in (900, 52, 10, 51)]
        theirs = [result(x) for x in (9, 50, 50, 90)]
        done = self.compare(ours, theirs)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        row = next(line for line in done.stdout.splitlines() if "ttft" in line)
        self.assertEqual(row.split(), "median_ttft_ms 51.000 50.000 1.020 0.200 to 1.040".split())

    def test_more_than_the_limit_apart_fails(self):
        near, far = [result(50)] * 2, [result(53)] * 2
        self.assertEqual(self.compare(far, near).returncode, 1)
        done = self.compare(near, far)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("APART", done.stdout)
        self.assertEqual(self.compare(far, near, "--percent", "7").returncode, 0)

    def test_another_load_is_no_comparison(self):
        done = self.compare([result(50)] * 2, [result(50, tokens=1_000)] * 2)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("total_output_tokens: 2560 and 1000", done.stdout)
        failed = [result(50, completed=79)] * 2
        self.assertEqual(self.compare(failed, failed).returncode, 2)

    def test_a_generator_that_is_not_there_is_told(self):
        done = self.compare([result(50)] * 2, [result(50)] * 2, "--vllm", self.folder / "none")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("none", done.stderr)

    def test_our_own_results_have_what_is_compared(self):
        port = free_range(1)
        command = [EXPEDITE, "sim", "--ports", f"{port}-{port}", "--model", "m", "--itl-ms", "2"]
        sim = Process(command, str(self.folder / "sim.log"))
        self.addCleanup(sim.child.wait)
        self.addCleanup(sim.child.terminate)
        engine = f"http://127.0.0.1:{port}"
        wait("the simulator", lambda: sim.lives() and get(f"{engine}/health") == "")
        # As many tokens as a chat of the simulator's counts; the times do not matter here.
        vllm = self.program("vllm", GENERATOR)
        theirs = [result(50, tokens=64, completed=4)] * 2
        pathlib.Path(vllm + ".results").write_text(json.dumps(theirs))
        args = ["--engine", engine, "--tokenizer", "t", "--model", "m", "--expedite", EXPEDITE]
        args += ["--vllm", vllm, "--rounds", 1, "--requests", 4, "--output-tokens", 16]
        done = self.run_script("compare-bench", *args, "--percent", 1e9, "--keep", self.folder)
        told = json.loads((self.folder / "expedite-1.json").read_text())
        self.assertEqual((told["completed"], told["total_output_tokens"]), (4, 64))
        self.assertIn("median_itl_ms", done.stdout, done.stderr)


def main():
    global EXPEDITE
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[0])
    EXPEDITE = os.path.abspath(sys.argv[1])
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    done = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    failed = len(done.failures) + len(done.errors)
    print(f"{done.testsRun - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
