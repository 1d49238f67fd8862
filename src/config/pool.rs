//! `[[pool]]` and its replicas.

use serde_json::{Value, json};
use toml::de::DeValue;

use super::effective::{Entry, Origin};
use super::reader::{Table, Text, spans};
use super::secret::Secret;
use super::types::*;

const LEARNED: &str = "learned from the replicas";
/// Most replicas of a pool: as many as its prefix index has room for.
pub const REPLICAS_MAX: usize = 4_096;
/// Names go into headers, labels and records.
const NAME_BYTES_MAX: usize = 128;
/// An upper bound of sanity; today's longest windows hold ten million tokens.
const CONTEXT_TOKENS_MAX: u64 = 100_000_000;

/// Names, addresses, or `*.` and what names end with.
fn media_hosts(table: &mut Table<'_, '_>) -> Option<Vec<String>> {
    const KEY: &str = "media_hosts";
    if table.line_of(KEY) == 0 {
        table.note_text(KEY, None, "any public host");
        return None;
    }
    let hosts = table.texts_or(KEY, &[]);
    for Text { text, origin } in &hosts {
        let name = text.strip_prefix("*.").unwrap_or(text);
        if name.is_empty() || name.contains(['/', '@', '*', '%', ' ']) {
            let what = format!("{KEY} in [[pool]] has `{text}`, which is no host");
            table.error(origin.line(), what);
        }
    }
    Some(hosts.into_iter().map(|text| text.text).collect())
}

pub(super) fn pool(mut table: Table<'_, '_>) -> Pool {
    let name = required_name(&mut table, "name");
    let model = table.opt_text("model", LEARNED);
    let aliases = table.texts_or("aliases", &[]);
    for text in model.iter().chain(&aliases) {
        check_name(&mut table, "a model's name", text);
    }
    let replicas = replicas(&mut table);
    let api_key = table.text("api_key");
    let masked = api_key
        .as_ref()
        .map(|Text { origin, .. }| Text { text: "***".into(), origin: origin.clone() });
    table.note_text("api_key", masked.as_ref(), "none sent");
    if let Some(key) = api_key.as_ref().filter(|key| !is_token(&key.text)) {
        let what = "api_key in [[pool]] must be visible ASCII without spaces, not empty";
        table.error(key.origin.line(), what);
    }
    let pool = Pool {
        name,
        model: model.map(|text| text.text),
        aliases: aliases.into_iter().map(|text| text.text).collect(),
        replicas,
        api_key: api_key.map(|text| Secret::new(text.text)),
        tls: tls(&mut table),
        discover: discover(&mut table),
        tokenizer: path(&mut table, "tokenizer", "none"),
        chat_template: path(&mut table, "chat_template", "the tokenizer's"),
        context_tokens: table.opt_number(
            "context_tokens",
            1..=CONTEXT_TOKENS_MAX,
            "tokens",
            LEARNED,
        ),
        block_size: table.opt_number("block_size", 1..=4096, "tokens", LEARNED),
        sequences_max: table.opt_number("sequences_max", 1..=1_000_000, "sequences", LEARNED),
        kv_events: kv_events(&mut table),
        adapters: table.choice("adapters", &[("auto", Adapters::Auto), ("load", Adapters::Load)]),
        role: table.choice(
            "role",
            &[("both", Role::Both), ("prefill", Role::Prefill), ("decode", Role::Decode)],
        ),
        pair: table.opt_text("pair", "none").map(|text| text.text),
        prefill_tokens_min: table.opt_number(
            "prefill_tokens_min",
            0..=CONTEXT_TOKENS_MAX,
            "tokens",
            "512 in a decode pool",
        ),
        media_hosts: media_hosts(&mut table),
        slo: slo(&mut table),
        engine: table.choice(
            "engine",
            &[
                ("a100-8b", EngineKind::A100_8b),
                ("a100-70b-tp2", EngineKind::A100_70bTp2),
                ("a100-8b-lora", EngineKind::A100_8bLora),
            ],
        ),
        price: price(&mut table),
    };
    if pool.chat_template.is_some() && pool.tokenizer.is_none() {
        let what = "chat_template in [[pool]] needs a tokenizer to go with";
        table.error(table.line, what);
    }
    parts(&mut table, &pool);
    secured(&mut table, &pool);
    table.finish();
    pool
}

/// What a pool that does a part of the work must say, and what only such a pool may.
fn parts(table: &mut Table<'_, '_>, pool: &Pool) {
    let lines = ["pair", "prefill_tokens_min", "aliases"].map(|key| table.line_of(key));
    let [pair, least, aliases] = lines;
    if pool.role == Role::Both && pool.pair.is_some() {
        let what = "pair in [[pool]] goes with a role: \
                    a prefill or decode pool names its other half, a pool for both has none";
        table.error(pair, what);
    }
    if pool.role != Role::Decode && pool.prefill_tokens_min.is_some() {
        let what = "prefill_tokens_min in [[pool]] goes with role = \"decode\"";
        table.error(least, what);
    }
    if pool.role == Role::Prefill && !pool.aliases.is_empty() {
        let what = "aliases in [[pool]] are names for clients, who ask for the decode pool of a \
                    pair, not for the prefill pool";
        table.error(aliases, what);
    }
}

/// A pool with `tls` keeps nobody who is spoken to without.
fn secured(table: &mut Table<'_, '_>, pool: &Pool) {
    let line = table.line_of("tls");
    let plain = pool.replicas.iter().find(|replica| !replica.is_secure());
    if let (Some(_), Some(plain)) = (&pool.tls, plain) {
        let id = &plain.id;
        let what = format!("tls in [[pool]] is for replicas behind https://, and {id} is not one");
        table.error(line, what);
    }
}

fn tls(table: &mut Table<'_, '_>) -> Option<UpstreamTls> {
    let given = table.inline("tls", |tls| {
        let unset = ["what the system trusts", "none shown", "none shown", "each replica's host"];
        let keys = ["ca", "cert", "key", "server_name"].into_iter().zip(unset);
        let mut given = keys.map(|(key, unset)| (key, tls.opt_text(key, unset)));
        let mut next = || given.next().and_then(|(_, text)| text);
        let [ca, cert, key, server_name] = [next(), next(), next(), next()];
        if cert.is_some() != key.is_some() {
            tls.error(tls.line, "tls in [[pool]] needs cert and key together, or neither");
        }
        let is_name = |name: &str| is_host(name) || name.parse::<std::net::IpAddr>().is_ok();
        if let Some(name) = server_name.as_ref().filter(|name| !is_name(&name.text)) {
            let what = format!("server_name in tls of [[pool]] is no name: {}", name.quoted());
            tls.error(name.origin.line(), what);
        }
        let text = |text: Option<Text>| text.map(|text| text.text);
        let [ca, cert, key, server_name] = [ca, cert, key, server_name].map(text);
        UpstreamTls { ca, cert, key, server_name }
    });
    if given.is_none() {
        table.note_unset("tls", "what the system trusts, for https://");
    }
    given
}

/// Gives a prefill or decode pool that names no other half the one that names it.
pub(super) fn pair(pools: &mut [Pool]) {
    for at in 0..pools.len() {
        let Some(one) = pools.get(at).filter(|it| it.role != Role::Both && it.pair.is_none())
        else {
            continue;
        };
        let mut namers = pools.iter().filter(|it| it.pair.as_ref() == Some(&one.name));
        let (Some(other), None) = (namers.next(), namers.next()) else { continue };
        let name = other.name.clone();
        if let Some(one) = pools.get_mut(at) {
            one.pair = Some(name);
        }
    }
}

/// The path of a folder or file.
fn path(table: &mut Table<'_, '_>, key: &'static str, unset: &'static str) -> Option<String> {
    let path = table.opt_text(key, unset)?;
    if path.text.is_empty() {
        table.error(path.origin.line(), format!("{key} in [[pool]] is empty"));
    }
    Some(path.text)
}

fn required_name(table: &mut Table<'_, '_>, key: &'static str) -> String {
    let text = table.opt_text(key, "missing");
    match &text {
        Some(text) => check_name(table, key, text),
        None => table.error(table.line, format!("{key} is missing in [[pool]]")),
    }
    text.map(|text| text.text).unwrap_or_default()
}

/// Notes a mistake unless the text [`is_name`].
pub(super) fn check_name(table: &mut Table<'_, '_>, what: &str, text: &Text) {
    if !is_name(&text.text) {
        let what = format!(
            "{what} must be 1 to {NAME_BYTES_MAX} visible ASCII characters without quotes, not {}",
            text.quoted()
        );
        table.error(text.origin.line(), what);
    }
}

/// Is this a name for a pool, model, replica, zone or tenant: 1 to 128 visible ASCII characters
/// without quotes and backslashes? Such a name fits headers, labels and records as it is.
pub fn is_name(text: &str) -> bool {
    is_token(text) && text.len() <= NAME_BYTES_MAX && !text.contains(['"', '\\'])
}

/// Is this an id for a replica: a name that a path can have as a segment? Dots alone cannot be one,
/// escaped or not (RFC 3986, section 5.2.4).
pub fn is_replica_id(text: &str) -> bool {
    is_name(text) && text != "." && text != ".."
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn replicas(table: &mut Table<'_, '_>) -> Vec<Replica> {
    let Some((raw, line)) = table.get("replicas") else {
        table.note_list("replicas", Vec::new(), Vec::new());
        return Vec::new();
    };
    if !raw.is_array() {
        table.error(line, "replicas in [[pool]] must be a list of URLs or { url = ... } tables");
    }
    let (mut replicas, mut shown, mut origins) = (Vec::new(), Vec::new(), Vec::new());
    for item in spans(raw) {
        let line = table.reader.line_at(item.span().start);
        let read = match item.get_ref() {
            DeValue::String(url) => {
                let url = table.reader.substitute(url, line);
                let origin = url.origin.clone();
                replica(table, &url, None, None, 1.0).map(|replica| (replica, origin))
            }
            DeValue::Table(fields) => replica_table(table, fields, line),
            other => {
                let got = other.type_str();
                table.error(line, format!("a replica must be a URL or a table, not of type {got}"));
                None
            }
        };
        if let Some((replica, origin)) = read {
            shown.push(show_replica(&replica));
            origins.push(origin);
            replicas.push(replica);
        }
    }
    if replicas.len() > REPLICAS_MAX {
        let count = replicas.len();
        table.error(line, format!("a pool has at most {REPLICAS_MAX} replicas, not {count}"));
    }
    table.note_list("replicas", shown, origins);
    replicas
}

fn replica_table<'a>(
    table: &mut Table<'_, 'a>,
    fields: &'a toml::de::DeTable<'a>,
    line: u32,
) -> Option<(Replica, Origin)> {
    let mut origin = Origin::File(line);
    let replica = table.detached("replicas of [[pool]]", line, fields, |inner| {
        let url = inner.text("url");
        let id = inner.text("id");
        let zone = inner.text("zone");
        let weight = inner.float("weight", 1.0, 0.001..=1000.0, "relative to the others");
        let Some(url) = url else {
            inner.error(line, "url is missing in replicas of [[pool]]");
            return None;
        };
        for (what, text) in [("id", &id), ("zone", &zone)] {
            if let Some(text) = text {
                check_name(inner, what, text);
            }
        }
        if let Some(id) = id.as_ref().filter(|id| is_name(&id.text) && !is_replica_id(&id.text)) {
            inner.error(id.origin.line(), "id must not be \".\" or \"..\", which no path can name");
        }
        if let Some(env) = [Some(&url), id.as_ref(), zone.as_ref()]
            .into_iter()
            .flatten()
            .find(|text| matches!(text.origin, Origin::Env(..)))
        {
            origin = env.origin.clone();
        }
        replica(inner, &url, id, zone, weight)
    });
    replica.map(|replica| (replica, origin))
}

fn replica(
    table: &mut Table<'_, '_>,
    url: &Text,
    id: Option<Text>,
    zone: Option<Text>,
    weight: f64,
) -> Option<Replica> {
    match parse_replica(&url.text) {
        Ok(replica) => Some(Replica {
            id: id.map_or(replica.id, |id| id.text),
            zone: zone.map(|zone| zone.text),
            weight,
            ..replica
        }),
        Err(what) => {
            // A URL with credentials is a secret, and so is a substituted one.
            let given = match url.text.contains('@') {
                true => "a URL".to_owned(),
                false => url.quoted(),
            };
            table.error(url.origin.line(), format!("replica {given}: {what}"));
            None
        }
    }
}

/// Parses `http://host:port` or `https://host[:port]` with an optional final slash. The error says
/// what is wrong without repeating the URL.
pub(super) fn parse_replica(url: &str) -> Result<Replica, &'static str> {
    const WANT: &str = "must be http://host:port or https://host:port";
    const HTTPS_PORT: u16 = 443;
    if url.contains('@') {
        return Err("credentials in a URL are refused; use api_key");
    }
    let lower = url.to_ascii_lowercase();
    let (scheme, rest) = lower.split_once("://").ok_or(WANT)?;
    let secure = match scheme {
        "http" => false,
        "https" => true,
        _ => return Err(WANT),
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#']) {
        return Err("must be http://host:port without a path; /v1 is added by the gateway");
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            (host, port.parse().ok().filter(|&port| port != 0 && digits).ok_or(WANT)?)
        }
        _ if secure => (authority, HTTPS_PORT),
        _ => return Err("must name its port: http://host:8000"),
    };
    let bare = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().map(|_| v6).map_err(|_| WANT)?,
        None => Some(host).filter(|host| is_host(host)).ok_or(WANT)?,
    };
    Ok(Replica {
        url: format!("{scheme}://{host}:{port}"),
        host: bare.to_owned(),
        port,
        id: format!("{host}:{port}"),
        zone: None,
        weight: 1.0,
        server_name: None,
    })
}

/// A DNS name (RFC 1123, with `_` as container networks use it) or an IPv4 address.
fn is_host(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    host.len() <= 253 && host.split('.').all(label)
}

/// A replica as the effective configuration shows it.
pub(super) fn show_replica(replica: &Replica) -> Value {
    let Replica { url, id, zone, weight, .. } = replica;
    json!({ "url": url, "id": id, "zone": zone, "weight": weight })
}

fn discover(table: &mut Table<'_, '_>) -> Option<Discover> {
    let found = table.inline("discover", |inner| {
        let ways = ["dns", "file", "kubernetes"].map(|key| inner.opt_text(key, "not used"));
        let server = inner.opt_text("server", "the system's");
        let kubeconfig = inner.opt_text("kubeconfig", "the pod's or the user's own");
        for (key, text, way, owner) in
            [("server", &server, 0, "dns"), ("kubeconfig", &kubeconfig, 2, "kubernetes")]
        {
            if let Some(text) = text.as_ref().filter(|_| ways.get(way).is_none_or(Option::is_none))
            {
                let what = format!("{key} in discover goes with {owner}");
                inner.error(text.origin.line(), what);
            }
        }
        match ways {
            [Some(dns), None, None] => dns_name(inner, &dns, server).map(Discover::Dns),
            [None, Some(file), None] => Some(Discover::File(file.text)),
            [None, None, Some(service)] => {
                kubernetes(inner, &service, kubeconfig).map(Discover::Kubernetes)
            }
            _ => {
                inner.error(inner.line, "discover takes one of dns, file, kubernetes");
                None
            }
        }
    });
    if found.is_none() {
        table.note_unset("discover", "not used");
    }
    found.flatten()
}

/// `name:port`, or an SRV name such as `_http._tcp.vllm.svc`.
fn dns_name(table: &mut Table<'_, '_>, text: &Text, server: Option<Text>) -> Option<DnsName> {
    let read = match text.text.strip_prefix('_') {
        Some(_) => Some((text.text.as_str(), None)),
        None => text.text.rsplit_once(':').and_then(|(name, port)| {
            let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
            Some((name, Some(port)))
        }),
    };
    let read = read.filter(|(name, _)| is_host(name.trim_end_matches('.')));
    let Some((name, port)) = read else {
        let what = format!(
            "dns in discover must be such as \"vllm.llm.svc:8000\", or an SRV name such as \
             \"_http._tcp.vllm.llm.svc\", not {}",
            text.quoted()
        );
        table.error(text.origin.line(), what);
        return None;
    };
    let address = |text: &Text| {
        let parsed = text.text.parse().ok();
        if parsed.is_none() {
            let what = format!(
                "server in discover must be an IP address and a port such as \"10.0.0.10:53\", \
                 not {}",
                text.quoted()
            );
            table.error(text.origin.line(), what);
        }
        parsed
    };
    let server = server.as_ref().and_then(address);
    Some(DnsName { name: name.to_owned(), port, server })
}

/// `namespace/service` or `namespace/service:port`.
fn kubernetes(
    table: &mut Table<'_, '_>,
    text: &Text,
    kubeconfig: Option<Text>,
) -> Option<KubernetesService> {
    let label = |label: &str| is_host(label) && !label.contains('.');
    let read = text.text.split_once('/').and_then(|(namespace, service)| {
        let (service, port) = match service.split_once(':') {
            Some((service, port)) => (service, Some(port)),
            None => (service, None),
        };
        let fit = label(namespace) && label(service) && port.is_none_or(label);
        fit.then_some((namespace, service, port))
    });
    let Some((namespace, service, port)) = read else {
        let what = format!(
            "kubernetes in discover must be \"namespace/service\" or \"namespace/service:port\", \
             not {}",
            text.quoted()
        );
        table.error(text.origin.line(), what);
        return None;
    };
    Some(KubernetesService {
        namespace: namespace.to_owned(),
        service: service.to_owned(),
        port: port.map(str::to_owned),
        kubeconfig: kubeconfig.map(|text| text.text),
    })
}

fn kv_events(table: &mut Table<'_, '_>) -> Option<String> {
    let text = table.opt_text("kv_events", "what the engine tells, or our own dispatches")?;
    if !text.text.starts_with("tcp://") {
        let what = format!(
            "kv_events in [[pool]] must be such as \"tcp://{{host}}:5557\", not {}",
            text.quoted()
        );
        table.error(text.origin.line(), what);
    }
    Some(text.text)
}

fn slo(table: &mut Table<'_, '_>) -> Slo {
    let found = table.inline("slo", |inner| Slo {
        ttft_ms: inner.opt_float("ttft_ms", 0.001..=3_600_000.0, "milliseconds", "none"),
        tpot_ms: inner.opt_float("tpot_ms", 0.001..=60_000.0, "milliseconds", "none"),
    });
    if found.is_none() {
        table.note_unset("slo", "none");
    }
    found.unwrap_or_default()
}

fn price(table: &mut Table<'_, '_>) -> Option<Price> {
    const UNIT: &str = "money per million tokens";
    let found = table.inline("price", |inner| {
        let input = inner.opt_float("input", 0.0..=1e6, UNIT, "missing");
        let cached = inner.opt_float("cached", 0.0..=1e6, UNIT, "as input");
        let output = inner.opt_float("output", 0.0..=1e6, UNIT, "missing");
        if let (Some(input), Some(output)) = (input, output) {
            return Some(Price { input, cached: cached.unwrap_or(input), output });
        }
        inner.error(inner.line, "price in [[pool]] needs input and output");
        None
    });
    if found.is_none() {
        table.note_unset("price", "no cost in usage records");
    }
    found.flatten()
}

/// The entry of a pool made from the command line.
pub(super) fn flag_entry(key: &str, value: Value) -> Entry {
    let items = vec![Origin::Flag; value.as_array().map_or(0, Vec::len)];
    let key = key.to_owned();
    Entry { key, value, origin: Origin::Flag, items, unset: "", changed: true }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    #[test]
    fn an_id_is_a_segment_of_a_path() {
        let file = |id: &str| {
            let replica = format!("{{ url = \"http://q:1\", id = \"{id}\" }}");
            let text = format!("[[pool]]\nname = \"q\"\nreplicas = [{replica}]\n");
            Config::from_text("gw.toml", &text).map(drop).map_err(|errors| errors.to_string())
        };
        for id in ["r", "a/b", "%2e", "...", "a?b#c"] {
            assert_eq!(file(id), Ok(()), "{id}");
        }
        for id in [".", "..", "", "a b", "a\\nb", "a\\u0000b"] {
            let told = file(id).expect_err("it cannot be deleted");
            assert!(told.starts_with("gw.toml:3: "), "{id}: {told}");
        }
    }
}
