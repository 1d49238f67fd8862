"""The files of scripts/deploy and tuning/observability with the programs that they are for.

`scripts/check-deploy` runs it: check.py EXPEDITE PROMTOOL. Manifests against their schemas; the
metrics page of a gateway by promtool; a gateway that serves a stream under the seccomp profile, and
one that cannot have the ring under a profile without it.
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import manifests

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "scripts" / "deploy"
PATIENCE_S = 30

CONFIG = """
[server]
listen = ["127.0.0.1:{port}"]
admin = "127.0.0.1:{admin}"
cores = [0]
driver = "{driver}"
[[pool]]
name = "p"
replicas = ["http://127.0.0.1:{replica}"]
[usage]
path = "usage.jsonl"
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def get(url: str, body: dict | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return answer.read()


def eventually(what: str, holds) -> None:
    for _ in range(PATIENCE_S * 20):
        with contextlib.suppress(OSError):
            if holds():
                return
        time.sleep(0.05)
    raise AssertionError(f"never came true: {what}")


@contextlib.contextmanager
def running(command: list[str], folder: str):
    with open(f"{folder}/log", "ab") as log:
        child = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def gateway(expedite: str, driver: str, before: list[str]):
    """A gateway, run by `before`, in front of a simulated replica; yields its two ports."""
    port, admin, replica = free_ports(3)
    with tempfile.TemporaryDirectory() as folder:
        config = CONFIG.format(port=port, admin=admin, replica=replica, driver=driver)
        pathlib.Path(folder, "gateway.toml").write_text(config)
        sim = [expedite, "sim", "--ports", str(replica), "--ttft-ms", "1", "--itl-ms", "1"]
        serve = [*before, expedite, "serve", "--config", "gateway.toml"]
        with running(sim, folder), running(serve, folder):
            try:
                models = f"http://127.0.0.1:{port}/v1/models"
                eventually("models are learned", lambda: json.loads(get(models))["data"])
            except AssertionError as error:
                raise AssertionError(pathlib.Path(folder, "log").read_text()) from error
            yield port, admin


def streams(port: int) -> None:
    base = f"http://127.0.0.1:{port}/v1"
    model = json.loads(get(f"{base}/models"))["data"][0]["id"]
    call = {"model": model, "stream": True, "max_tokens": 8}
    call["messages"] = [{"role": "user", "content": "hello"}]
    assert get(f"{base}/chat/completions", call).endswith(b"data: [DONE]\n\n")


def configurations_are_right(expedite: str) -> int:
    """What the ConfigMaps hold, by `check`; how many there are."""
    held = [o["data"] for o in manifests.load(DEPLOY / "kubernetes") if o["kind"] == "ConfigMap"]
    env = os.environ | {"ADMIN_SECRET": "0123456789abcdef"}
    for data in held:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "gateway.toml")
            path.write_text(data["gateway.toml"])
            command = [expedite, "check", "--config", str(path)]
            done = subprocess.run(command, capture_output=True, env=env)
            assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return len(held)


def page_passes_promtool(expedite: str, promtool: str) -> None:
    with gateway(expedite, "auto", []) as (port, admin):
        streams(port)
        page = get(f"http://127.0.0.1:{admin}/metrics")
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True)
    said = (checked.stdout + checked.stderr).decode()
    assert checked.returncode == 0 and not said, said


def under(profile: pathlib.Path) -> list[str]:
    return [sys.executable, str(pathlib.Path(__file__).with_name("seccomp.py")), str(profile)]


def serves_under_the_profile(expedite: str) -> None:
    with gateway(expedite, "io_uring", under(DEPLOY / "seccomp.json")) as (port, admin):
        streams(port)
        assert b'expedite_driver_info{driver="io_uring"} 1' in get(
            f"http://127.0.0.1:{admin}/metrics"
        )


def doctor_names_a_profile_without_the_ring(expedite: str) -> None:
    profile = json.loads((DEPLOY / "seccomp.json").read_text())
    for group in profile["syscalls"]:
        group["names"] = [name for name in group["names"] if not name.startswith("io_uring")]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "without.json")
        path.write_text(json.dumps(profile))
        command = [*under(path), expedite, "doctor", "--json"]
        told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    ring = next(f for f in told["findings"] if f["name"] == "io-uring")
    assert ring["level"] == "warn" and "seccomp.json" in ring["mend"], ring


def main() -> None:
    expedite, promtool = sys.argv[1:]
    checked = manifests.check(DEPLOY / "kubernetes")
    print(f"manifests: {checked} objects hold to their schemas")
    print(f"configurations: check finds nothing in {configurations_are_right(expedite)}")
    page_passes_promtool(expedite, promtool)
    print("metrics: promtool finds nothing to remark")
    serves_under_the_profile(expedite)
    print("seccomp: a gateway serves on io_uring under the profile")
    doctor_names_a_profile_without_the_ring(expedite)
    print("seccomp: doctor names what is missing without it")
    print("5 passed, 0 failed")


main()
