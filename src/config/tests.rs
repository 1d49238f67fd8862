//! What a configuration file may hold, what each mistake is called, and what is never shown.

use serde_json::Value;

use super::*;

/// Every documented key, each with another value than its default.
const FULL: &str = r#"[server]
listen = ["127.0.0.1:8081", "[::1]:8081"]
admin = "127.0.0.1:9191"
handover = "/run/expedite/handover.sock"
cores = [2, 3]
driver = "epoll"
h2c = true
body_bytes_max = 1048576
half_close = "allow"
[[pool]]
name = "llama-8b"
model = "meta-llama/Llama-3.1-8B-Instruct"
aliases = ["gpt-fast", "gpt-4"]
replicas = [
  "http://10.0.0.1:8000",
  { url = "http://10.0.0.2:8000", id = "r2", zone = "b", weight = 2 },
]
api_key = "${VLLM_KEY}"
discover = { dns = "vllm-8b.llm.svc:8000" }
tokenizer = "tokenizers/llama-3"
context_tokens = 131072
block_size = 32
sequences_max = 64
kv_events = "tcp://{host}:5557"
adapters = "load"
role = "decode"
pair = "prefill"
prefill_tokens_min = 1024
slo = { ttft_ms = 400, tpot_ms = 50.5 }
engine = "a100-70b-tp2"
price = { input = 0.10, cached = 0.02, output = 0.80 }

[[pool]]
name = "prefill"
replicas = ["http://[fd00::1]:8000/"]
role = "prefill"
pair = "llama-8b"

[routing]
policy = "round_robin"
policy_header = true
share = "redis://:canary-share@host:6379/1"
share_every_ms = 200
cache_salt_secret = "canary-salt-secret"
[admission]
headroom_ratio = 0.25
stale_ms = 6000
queue_ms_max = 3000
queue_requests_max = 20000
[timeouts]
connect_ms = 1001
first_token_ms = 120001
next_token_ms = 60001
client_head_ms = 10001
client_idle_ms = 60001
sse_keepalive_ms = 15000
[retry]
attempts_max = 4
budget_ratio = 0.2

[quota]
store = "redis://:canary-store@host:6379/0"
on_store_down = "refuse"

[[tenant]]
id = "acme"
keys = ["sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"]
tier = "gold"
tokens_per_second = 20000
burst_tokens = 400000
in_flight_max = 64
pools = ["llama-8b"]
may_choose_policy = true
trust_group = "friends"
[tier.gold]
weight = 4
priority = 1
deadline_ms = 60000
[usage]
path = "-"
on_full = "drop"
open = "open.jsonl"
rotate_bytes = 1000000
rotate_hours = 24
keep = 30
stream = "redis-stream:usage"
stream_store = "redis://:canary-stream@host:6379/1"
stream_length_max = 1000
otlp = true
[log]
level = "debug"
format = "json"
access = "json"
access_path = "access.jsonl"
[otel]
endpoint = "http://otel:4318"
sample_ratio = 0.1
service_name = "gateway"
"#;

const POOL: &str = "[[pool]]\nname = \"p\"\nreplicas = [\"http://r:1\"]\n";

fn env(name: &str) -> Option<String> {
    match name {
        "VLLM_KEY" => Some("canary-env".to_owned()),
        "HOST" => Some("10.0.0.9".to_owned()),
        _ => None,
    }
}

fn build(text: &str, flags: &Flags) -> Result<Config, ConfigErrors> {
    Config::build("gw.toml", text, flags, &env)
}

fn full() -> Config {
    build(FULL, &Flags::default()).map_err(|e| e.to_string()).unwrap()
}

/// The messages about a text, one a line.
fn mistakes(text: &str) -> String {
    build(text, &Flags::default()).err().map(|errors| errors.to_string()).unwrap_or_default()
}

/// The messages about a text that has one good pool in front.
fn with_pool(rest: &str) -> String {
    mistakes(&format!("{POOL}{rest}"))
}

#[test]
fn every_documented_key_comes_back_with_its_line() {
    let config = full();
    let shown = config.effective_json();
    let mut keys = 0;
    let defaults = &Config::from_text("gw.toml", POOL).unwrap().effective_json();
    for (n, line) in FULL.lines().enumerate() {
        let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with([' ', '#']))
        else {
            continue;
        };
        let header = FULL.lines().take(n).filter(|line| line.starts_with('[')).last().unwrap();
        let nth = FULL.lines().take(n).filter(|line| *line == header).count() - 1;
        let kind = header.trim_matches(['[', ']']);
        let table = match kind {
            "pool" | "tenant" => &shown[kind][nth],
            "tier.gold" => &shown["tier"]["gold"],
            _ => &shown[kind],
        };
        let inline = format!("{key}.");
        let mut found = table.as_object().unwrap().iter();
        let (name, entry) =
            found.find(|(name, _)| *name == key || name.starts_with(&inline)).expect(key);
        // A list of replicas starts on the line of its first item.
        let line = if key == "replicas" && nth == 0 { n + 2 } else { n + 1 };
        let want = match key {
            "api_key" => format!("gw.toml:{line}, env VLLM_KEY"),
            _ => format!("gw.toml:{line}"),
        };
        assert_eq!(entry["origin"], want, "{header} {key}");
        if defaults[kind].is_object() {
            assert_ne!(entry["value"], defaults[kind][name]["value"], "{header} {key}");
            assert_eq!(defaults[kind][name]["origin"], "default", "{header} {key}");
        }
        keys += 1;
    }
    assert_eq!(keys, 78);
}

#[test]
fn values_arrive_as_written() {
    let config = full();
    assert_eq!(config.server.listen[1], "[::1]:8081".parse().unwrap());
    assert_eq!(config.server.cores, Cores::List(vec![2, 3]));
    assert_eq!(config.server.half_close, HalfClose::Allow);
    let [pool, decode] = &config.pools[..] else { panic!("two pools") };
    assert_eq!(pool.api_key.as_ref().unwrap().expose(), "canary-env");
    assert_eq!(pool.replicas[0].id, "10.0.0.1:8000");
    let second = &pool.replicas[1];
    assert_eq!((second.id.as_str(), second.zone.as_deref(), second.weight), ("r2", Some("b"), 2.0));
    let v6 = &decode.replicas[0];
    assert_eq!((v6.host.as_str(), v6.port), ("fd00::1", 8000));
    assert_eq!(v6.authority(), "[fd00::1]:8000");
    assert_eq!(pool.slo.tpot_ms, Some(50.5));
    assert_eq!(pool.price.unwrap().cached, 0.02);
    assert_eq!(config.timeouts.sse_keepalive_ms, 15_000);
    assert_eq!(config.retry, Retry { attempts_max: 4, budget_ratio: 0.2 });
    let tenant = &config.tenants[0];
    assert!(tenant.keys == [KeyDigest::of(b"abc")]);
    let limits = (Some(20_000), Some(400_000), Some(64));
    let got = tenant.limits;
    assert_eq!((got.tokens_per_second, got.burst_tokens, got.in_flight_max), limits);
    assert_eq!(config.quota.output_tokens_default, 4096);
    assert!(tenant.may_use("llama-8b") && !tenant.may_use("decode"));
    assert_eq!(
        config.tiers.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(),
        ["gold", "default"]
    );
}

#[test]
fn defaults_are_the_documented_ones() {
    let config = Config::from_text("gw.toml", POOL).unwrap();
    assert_eq!(config.server.listen, ["0.0.0.0:8080".parse().unwrap()]);
    assert_eq!(config.server.admin, Some("127.0.0.1:9090".parse().unwrap()));
    assert_eq!((config.server.driver, config.server.body_bytes_max), (Driver::Auto, 8 << 20));
    assert_eq!(config.routing, Routing { policy: Policy::Cost, policy_header: false });
    assert_eq!(config.pools[0].engine, EngineKind::A100_8b);
    let timeouts = Timeouts {
        connect_ms: 1000,
        first_token_ms: 120_000,
        next_token_ms: 60_000,
        client_head_ms: 10_000,
        client_idle_ms: 60_000,
        sse_keepalive_ms: 0,
    };
    assert_eq!(config.timeouts, timeouts);
    assert_eq!(config.retry, Retry { attempts_max: 3, budget_ratio: 0.1 });
    let usage = UsageConfig {
        path: "usage.jsonl".to_owned(),
        on_full: OnFull::Refuse,
        open: OpenList::Beside,
        rotate_bytes: 0,
        rotate_hours: 0,
        keep: 0,
        stream: None,
        otlp: false,
    };
    assert_eq!(config.usage, usage);
    assert!(config.tenants.is_empty());
    assert!(config.warnings.is_empty());
}

#[test]
fn a_stream_of_records_takes_the_quotas_store_when_it_has_none() {
    let stream = |rest: &str| {
        let text = format!("{POOL}[usage]\nstream = \"redis-stream:s\"\n{rest}");
        Config::from_text("gw.toml", &text).unwrap().usage.stream.unwrap().store
    };
    let own = "stream_store = \"redis://own:1\"\n";
    let quota = "[quota]\nstore = \"redis://q:1\"\n";
    assert_eq!(stream(quota).expose(), "redis://q:1");
    assert_eq!(stream(&format!("{own}{quota}")).expose(), "redis://own:1");
}

#[test]
fn the_effective_configuration_can_be_loaded_again() {
    let config = build(POOL, &Flags::default()).unwrap();
    let again = Config::from_text("again.toml", &config.effective()).unwrap();
    assert_eq!(again.pools, config.pools);
    assert_eq!(again.server, config.server);
    let full = full().effective();
    toml::from_str::<toml::Table>(&full).unwrap();
    assert!(full.contains("# gw.toml:16\n"), "each replica has its line: {full}");
}

#[test]
fn secrets_are_never_shown() {
    let config = full();
    let shown = format!("{}\n{}\n{config:?}", config.effective(), config.effective_json());
    assert!(shown.contains("***"));
    for secret in ["canary", "8f01cfea"] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
}

#[test]
fn errors_never_repeat_a_secret() {
    for text in [
        "[[tenant]]\nid = \"t\"\nkeys = [\"sk-canary\"]\n",
        "[[tenant]]\nid = \"t\"\nkeys = \"sk-canary\"\n",
        "[[tenant]]\nid = \"t\"\nkeys = [\"sha256:canary\"]\n",
        "[quota]\nstore = \"rediss://:canary@host\"\n",
        "[routing]\nshare = \"rediss://:canary@host\"\n",
        "[usage]\nstream_store = \"rediss://:canary@host\"\n",
        "[[pool]]\nname = \"q\"\nreplicas = [\"http://canary:canary@host:1\"]\n",
        "[[pool]]\nname = \"q\"\nreplicas = [\"http://${VLLM_KEY}\"]\n",
        "[[pool]]\nname = \"q\"\nreplicas = [\"http://q:1\"]\napi_key = \"canary \"\n",
        "[[pool]]\nname = \"q\"\nreplicas = [\"http://q:1\"]\napi_key = [\"canary\"]\n",
        "[server]\nadmin = \"${VLLM_KEY}\"\n",
        "[server]\ndriver = \"${VLLM_KEY}\"\n",
        "[[pool]]\nname = \"q ${VLLM_KEY}\"\nreplicas = [\"http://q:1\"]\n",
        "[[pool]]\nname = \"q\"\nreplicas = [\"http://q:1\"]\napi_key = \"canary\n",
    ] {
        let said = with_pool(text);
        assert!(!said.is_empty() && !said.contains("canary"), "{text} -> {said}");
    }
    let flags = Flags { replicas: vec!["http://u:canary@h:1".to_owned()], ..Flags::default() };
    let said = build("", &flags).unwrap_err().to_string();
    assert!(!said.contains("canary"), "{said}");
}

#[test]
fn an_unknown_key_names_its_line_and_the_nearest_one() {
    let text = "[[pool]]\nname = \"p\"\nreplcias = [\"http://r:1\"]\n";
    let want = "gw.toml:3: unknown key \"replcias\" in [[pool]]; did you mean \"replicas\"?";
    assert!(mistakes(text).lines().any(|line| line == want), "{}", mistakes(text));
    for (text, want) in [
        ("[timeout]\n", "unknown section \"timeout\"; did you mean \"timeouts\"?"),
        ("[server]\nzzzzzz = 1\n", "gw.toml:5: unknown key \"zzzzzz\" in [server]"),
        ("[tier.x]\nwieght = 1\n", "\"wieght\" in [tier.x]; did you mean \"weight\"?"),
        (
            "[[pool]]\nname = \"q\"\nreplicas = [{ url = \"http://q:1\", idd = \"q\" }]\n",
            "gw.toml:6: unknown key \"idd\" in replicas of [[pool]]; did you mean \"id\"?",
        ),
        (
            "[[pool]]\nname = \"q\"\nreplicas = [\"http://q:1\"]\nslo = { ttft = 1 }\n",
            "\"ttft\" in slo of [[pool]]; did you mean \"ttft_ms\"?",
        ),
        ("[server]\ntls = { chain = \"x\" }\n", "\"chain\" in tls of [server]; it has cert, key,"),
        ("[usage]\npath = \"a\\u0000b\"\n", "gw.toml:5: a string must not have the character NUL"),
    ] {
        assert!(with_pool(text).contains(want), "{text} -> {}", with_pool(text));
    }
}

#[test]
fn several_mistakes_are_reported_at_once_in_the_order_of_lines() {
    let said =
        with_pool("[retry]\nattempts_max = 0\n[server]\nh2c = 1\n[timeouts]\nconnect_ms = -1\n");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines,
        [
            "gw.toml:5: attempts_max in [retry] must be a whole number of attempts from 1 to 10, \
             not 0",
            "gw.toml:7: h2c in [server] must be true or false, not of type integer",
            "gw.toml:9: connect_ms in [timeouts] must be a whole number of milliseconds (0 = none) \
             from 0 to 86400000, not -1",
        ]
    );
}

#[test]
fn a_value_out_of_place_is_a_mistake() {
    for (text, want) in [
        ("server = 3\n[x", "gw.toml:"),
        ("[server]\nlisten = [\"8080\"]\n", "must be an IP address and a port"),
        ("[server]\nlisten = []\n", "listen in [server] is empty"),
        ("[[pool]]\nname=\"q\"\ntokenizer = \"\"\n", "tokenizer in [[pool]] is empty"),
        ("[server]\nlisten = [\"0.0.0.0:1\", \"0.0.0.0:1\"]\n", "0.0.0.0:1 is listed twice"),
        ("[server]\nadmin = \"0.0.0.0:8080\"\n", "admin must not be one of listen"),
        ("[server]\nlisten = [\"127.0.0.1:9090\"]\n", "gw.toml:5: admin must not be one of"),
        ("[server]\ncores = []\n", "cores in [server]"),
        ("[server]\ncores = [1, 1]\n", "each CPU once"),
        ("[server]\ncores = \"many\"\n", "cores in [server]"),
        ("[routing]\npolicy = \"p2\"\n", "not \"p2\"; did you mean \"p2c\"?"),
        ("[retry]\nbudget_ratio = nan\n", "from 0 to 1, not nan"),
        ("[admission]\nheadroom_ratio = 1.5\n", "from 0 to 0.9, not 1.5"),
        ("[usage]\npath = \"redis-stream:x\"\n", "stands beside it: stream = "),
        ("[usage]\nstream = \"x\"\n", "must be \"redis-stream:NAME\", not \"x\""),
        ("[usage]\nstream = \"redis-stream:x\"\n", "gw.toml:5: stream in [usage] needs a server"),
        ("[[tenant]]\nid = \"t\"\nkeys = []\nburst_tokens = 1\n", "gw.toml:7: burst_tokens needs"),
        ("[[tenant]]\nid = \"t\"\nkeys = [{ ky = \"x\" }]\n", "\"ky\" in keys of [[tenant]]; did"),
        ("[[tenant]]\nid = \"t\"\nkeys = [{ in_flight_max = 1 }]\n", "gw.toml:6: key is missing"),
        ("[[tenant]]\nid = \"t\"\nkeys = [1]\n", "gw.toml:6: a key must be a string or a table"),
        ("[quota]\noutput_tokens_default = 0\n", "output_tokens_default in [quota] must be"),
        ("[pool2]\n", "unknown section"),
        ("[tier]\ngold = 1\n", "[tier.NAME]"),
        ("[server]\nh2c = true\nh2c = true\n", "gw.toml:6: duplicate key"),
    ] {
        assert!(with_pool(text).contains(want), "{text} -> {}", with_pool(text));
    }
    assert!(mistakes("[pool]\nname = \"p\"\n").contains("[[pool]]"));
    assert!(mistakes("").contains("no [[pool]]"));
    assert!(
        mistakes("[[pool]]\nreplicas = [\"http://r:1\"]\n").contains("gw.toml:1: name is missing")
    );
}

#[test]
fn replica_urls_are_http_host_port() {
    for (url, want) in [
        ("ftp://h:1", "must be http://host:port"),
        ("h:1", "must be http://host:port"),
        ("http://h", "must name its port"),
        ("http://h:0", "must be http://host:port"),
        ("http://h:65536", "must be http://host:port"),
        ("http://h:+1", "must be http://host:port"),
        ("http://:1", "must be http://host:port"),
        ("http://h:1/v1", "without a path"),
        ("http://h:1?x", "without a path"),
        ("http://[::g]:1", "must be http://host:port"),
        ("http://::1:1", "must be http://host:port"),
        ("http://h h:1", "must be http://host:port"),
    ] {
        let said = Replica::from_url(url).unwrap_err();
        assert!(said.contains(want), "{url} -> {said}");
    }
    let replica = Replica::from_url("HTTP://GPU-1.Example:8000/").unwrap();
    assert_eq!((replica.url.as_str(), replica.port), ("http://gpu-1.example:8000", 8000));
    let secure = Replica::from_url("https://GPU-1.example").unwrap();
    assert_eq!((secure.authority(), secure.is_secure()), ("gpu-1.example:443", true));
}

#[test]
fn doubles_and_clashes_name_both_sides() {
    let digest = KeyDigest::of(b"k").to_text();
    let tenant = |id: &str| format!("[[tenant]]\nid = \"{id}\"\nkeys = [\"{digest}\"]\n");
    for (text, want) in [
        (POOL.to_owned(), "gw.toml:5: \"p\" already means pool \"p\""),
        (POOL.replace("\"p\"", "\"q\""), "gw.toml:6: replica http://r:1 is already in pool \"p\""),
        (
            "[[pool]]\nname = \"q\"\naliases = [\"x\", \"p\"]\nreplicas = [\"http://q:1\"]\n"
                .into(),
            "gw.toml:6: \"p\" already means pool \"p\"",
        ),
        (
            "[[pool]]\nname = \"q\"\nreplicas = [{ url = \"http://q:1\", id = \"r:1\" }]\n".into(),
            "replica id \"r:1\" is already in pool \"p\"",
        ),
        ("[[pool]]\nname = \"q\"\n".into(), "pool \"q\" has no replicas"),
        (tenant("a") + &tenant("b"), "already belongs to tenant \"a\""),
        (tenant("a") + &tenant("a"), "tenant \"a\" is there twice"),
        (tenant("a") + "tier = \"gld\"\n[tier.gold]\n", "no [tier.gld]; did you mean \"gold\"?"),
        (tenant("a") + "pools = [\"pp\"]\n", "there is no pool \"pp\"; did you mean \"p\"?"),
        ("[[tenant]]\nid = \"a\"\n".into(), "keys is missing in [[tenant]]"),
    ] {
        assert!(with_pool(&text).contains(want), "{text} -> {}", with_pool(&text));
    }
}

#[test]
fn a_pool_with_more_replicas_than_its_index_has_room_for_is_refused() {
    let errors = |count: usize| {
        let urls: String = (0..count).map(|n| format!("\"http://h{n}:1\",")).collect();
        let text = format!("[[pool]]\nname = \"p\"\nreplicas = [{urls}]\n");
        Config::from_text("gw.toml", &text).err().map(|errors| errors.to_string())
    };
    assert_eq!(errors(REPLICAS_MAX), None);
    let said = errors(REPLICAS_MAX + 1).expect("refused");
    assert!(said.contains("gw.toml:3: a pool has at most 4096 replicas, not 4097"), "{said}");
}

#[test]
fn environment_variables_are_substituted_and_missed_by_name() {
    let text = "[[pool]]\nname = \"q\"\nreplicas = [\"http://${HOST}:80${NOPE}\"]\n";
    assert!(with_pool(text).contains("gw.toml:6: environment variable NOPE is not set"));
    let text = text.replace("${NOPE}", "");
    let config = build(&text, &Flags::default()).unwrap();
    assert_eq!(config.pools[0].replicas[0].url, "http://10.0.0.9:80");
    assert!(config.effective().contains("# gw.toml:3, env HOST"));
    assert!(with_pool("[usage]\npath = \"${HOST\"\n").contains("without its \"}\""));
}

#[test]
fn a_key_may_have_limits_of_its_own() {
    let [one, two] = [b"one", b"two"].map(|key| KeyDigest::of(key));
    let text = format!(
        "{POOL}[[tenant]]\nid = \"t\"\nkeys = [\"{}\", {{ key = \"{}\", tokens_per_second = 5, \
         in_flight_max = 2 }}]\n",
        one.to_text(),
        two.to_text()
    );
    let config = build(&text, &Flags::default()).unwrap();
    let tenant = &config.tenants[0];
    let limits =
        TenantLimits { tokens_per_second: Some(5), burst_tokens: None, in_flight_max: Some(2) };
    assert!(tenant.keys == [one, two] && tenant.key_limits == [(two, limits)]);
    assert_eq!(tenant.limits, TenantLimits::default());
    let shown = config.effective();
    assert!(shown.contains("***") && shown.contains("in_flight_max = 2"), "{shown}");
    toml::from_str::<toml::Table>(&shown).unwrap();
}

#[test]
fn tls_names_a_certificate_and_its_key() {
    let tls = "[server]\ntls = { cert = \"c\", key = \"k\", client_ca = \"a\" }\n";
    let config = build(&format!("{POOL}{tls}"), &Flags::default()).unwrap();
    assert_eq!(config.effective_json()["server"]["tls.client_ca"]["value"], "a");
    let files = TlsFiles { cert: "c".into(), key: "k".into(), client_ca: Some("a".into()) };
    assert_eq!(config.server.tls, Some(files));
    assert_eq!(full().server.tls, None);
    assert!(with_pool("[server]\ntls = { cert = \"c\" }\n").contains("tls in [server] needs key"));
}

#[test]
fn what_this_version_lacks_is_warned_about() {
    let warnings = full().warnings.join("\n");
    let absent = "h2c";
    for key in absent.split_whitespace() {
        assert!(warnings.contains(&format!(": {key} in [")), "{key}: {warnings}");
    }
    // A default that is spelled out is no wish.
    let plain = format!("{POOL}adapters = \"auto\"\nrole = \"both\"\n[server]\nh2c = false\n");
    assert_eq!(build(&plain, &Flags::default()).unwrap().warnings.len(), 0);
}

#[test]
fn risky_choices_are_said() {
    let text =
        format!("{POOL}[server]\nadmin = \"0.0.0.0:9090\"\n[[tenant]]\nid = \"t\"\nkeys = []\n");
    let warnings = build(&text, &Flags::default()).unwrap().warnings.join("\n");
    assert!(warnings.contains("not on loopback") && warnings.contains("\"t\" has no keys"));
}

#[test]
fn the_admin_secret_is_long_plain_and_never_shown() {
    let with = |line: &str| {
        let text = format!("{POOL}[server]\nadmin = \"0.0.0.0:9090\"\n{line}\n");
        Config::from_text("gw.toml", &text)
    };
    let config = with("admin_secret = \"canary-canary-canary\"").unwrap();
    assert_eq!(config.server.admin_secret.as_ref().unwrap().expose(), "canary-canary-canary");
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let shown = config.effective_json();
    assert_eq!(shown["server"]["admin_secret"]["value"], "***");
    assert!(!format!("{config:?}{shown}").contains("canary"));
    for bad in ["canary", "canary canary canary", "canary-canary-canary\\n"] {
        let said = with(&format!("admin_secret = \"{bad}\"")).unwrap_err().to_string();
        assert!(said.contains("admin_secret in [server] must have 16 bytes"), "{said}");
        assert!(!said.contains("canary"), "{said}");
    }
}

#[test]
fn flags_win_over_the_file_and_say_so() {
    let flags = Flags {
        replicas: vec!["http://a:1".to_owned(), "http://b:2".to_owned()],
        listen: vec!["127.0.0.1:0".to_owned()],
        admin: Some("none".to_owned()),
        cores: Some("0-1,3".to_owned()),
    };
    for text in ["", POOL] {
        let config = build(text, &flags).unwrap();
        assert_eq!(config.pools[0].replicas[1].id, "b:2");
        assert_eq!(config.server.listen[0].port(), 0);
        assert_eq!(config.server.admin, None);
        assert_eq!(config.server.cores, Cores::List(vec![0, 1, 3]));
        let shown = config.effective_json();
        for key in ["listen", "admin", "cores"] {
            assert_eq!(shown["server"][key]["origin"], "flag", "{key}");
        }
        assert_eq!(shown["pool"][0]["replicas"]["origin"], "flag");
        assert_eq!(shown["retry"]["attempts_max"]["origin"], "default");
    }
    let bad = Flags {
        replicas: vec!["x".to_owned()],
        listen: vec!["y".to_owned()],
        admin: Some("z".to_owned()),
        cores: Some("2-1".to_owned()),
    };
    let said = build(FULL, &bad).unwrap_err().to_string();
    for flag in ["--replica x", "cannot tell which", "--listen y", "--admin z", "--cores 2-1"] {
        assert!(said.contains(flag), "{flag}: {said}");
    }
}

#[test]
fn without_a_file_the_replicas_are_the_pool_default_and_everyone_is_open() {
    let flags = Flags { replicas: vec!["http://a:1".to_owned()], ..Flags::default() };
    let config = Config::zero(&flags).unwrap();
    assert_eq!(config.pools, [Pool::of("default", vec![Replica::from_url("http://a:1").unwrap()])]);
    assert!(config.tenants.is_empty());
    let said = Config::zero(&Flags::default()).unwrap_err().to_string();
    assert_eq!(said, "no [[pool]] and no --replica: nothing to serve");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let said = Config::load("/nonexistent/gw.toml").unwrap_err().to_string();
    assert!(said.starts_with("/nonexistent/gw.toml: "), "{said}");
}

#[test]
fn json_shows_lists_by_place_and_tiers_by_name() {
    let shown = full().effective_json();
    assert_eq!(shown["pool"][1]["name"]["value"], "prefill");
    assert_eq!(shown["tier"]["gold"]["weight"]["value"], 4.0);
    assert_eq!(shown["tier"]["default"]["weight"]["origin"], "default");
    assert_eq!(shown["pool"][1]["model"]["value"], Value::Null);
}

#[test]
fn gateways_share_through_the_quota_store_unless_told_otherwise() {
    let store = |more: &str| {
        let config = Config::from_text("gw.toml", &format!("{POOL}{more}")).unwrap();
        let said = config.warnings.iter().any(|warning| warning.contains("routing.share"));
        (config.share_store().map(|url| url.expose().to_owned()), said)
    };
    let url = |url: &str| Some(url.to_owned());
    let quota = |scheme: &str| format!("[quota]\nstore = \"{scheme}://q:1/0\"\n");
    assert_eq!(store(""), (None, false));
    assert_eq!(store(&quota("redis")), (url("redis://q:1/0"), false));
    assert_eq!(store(&quota("redis+cluster")), (None, true));
    let none = format!("[routing]\nshare = \"none\"\n{}", quota("redis"));
    assert_eq!(store(&none), (None, false));
    let own = format!("[routing]\nshare = \"redis://s:2/3\"\n{}", quota("redis+cluster"));
    assert_eq!(store(&own), (url("redis://s:2/3"), false));
    for wrong in ["share = \"redis://\"", "share = \"host:6379\"", "share_every_ms = 49"] {
        let text = format!("{POOL}[routing]\n{wrong}\n");
        assert!(Config::from_text("gw.toml", &text).is_err(), "{wrong}");
    }
}
