//! The tables that occur once: `[server]`, `[routing]`, `[admission]`, `[timeouts]`, `[retry]`,
//! `[quota]`, `[usage]`. Each function is the documentation of its keys, defaults, ranges.

use std::net::SocketAddr;

use super::effective::Origin;
use super::error::did_you_mean;
use super::reader::{Table, Text};
use super::secret::Secret;
use super::types::*;

/// A day: longer than any wait that makes sense.
const MS_MAX: u64 = 86_400_000;
/// 8 MiB: a million-token prompt of text is about half of it.
const BODY_BYTES_DEFAULT: u64 = 8 << 20;
const ANSWER_BYTES_DEFAULT: u64 = 1 << 30;
const BODY_BYTES_MAX: u64 = 1 << 30;
/// Linux allows 8,192 CPUs.
const CPU_MAX: usize = 8191;

pub(super) fn server(mut table: Table<'_, '_>) -> Server {
    let listen = table.texts_or("listen", &["0.0.0.0:8080"]);
    let admin = table.text_or("admin", "127.0.0.1:9090");
    let server = Server {
        listen: listen.iter().filter_map(|text| address(&mut table, "listen", text)).collect(),
        admin: match admin.text.as_str() {
            "none" => None,
            _ => address(&mut table, "admin", &admin),
        },
        admin_secret: admin_secret(&mut table),
        handover: handover(&mut table),
        cores: cores(&mut table),
        driver: table.choice(
            "driver",
            &[("auto", Driver::Auto), ("io_uring", Driver::IoUring), ("epoll", Driver::Epoll)],
        ),
        tls: None,
        h2c: table.flag("h2c", false),
        body_bytes_max: table.number(
            "body_bytes_max",
            BODY_BYTES_DEFAULT,
            1024..=BODY_BYTES_MAX,
            "bytes",
        ) as usize,
        answer_bytes_max: table.number(
            "answer_bytes_max",
            ANSWER_BYTES_DEFAULT,
            1 << 20..=1 << 50,
            "bytes",
        ),
        bodies_bytes_max: table.opt_number(
            "bodies_bytes_max",
            BODY_BYTES_DEFAULT..=1 << 50,
            "bytes",
            "a quarter of the memory",
        ),
        connections_per_address_max: table.number(
            "connections_per_address_max",
            0,
            0..=1 << 20,
            "connections",
        ) as u32,
        half_close: table
            .choice("half_close", &[("gone", HalfClose::Gone), ("allow", HalfClose::Allow)]),
    };
    let server = Server { tls: tls(&mut table), ..server };
    table.finish();
    server
}

/// A shorter secret could be found by trying.
const ADMIN_SECRET_BYTES_MIN: usize = 16;

/// Visible ASCII: it travels in a field line.
fn admin_secret(table: &mut Table<'_, '_>) -> Option<Secret> {
    let Some(Text { text, origin }) = table.text("admin_secret") else {
        table.note_unset("admin_secret", "whoever reaches the admin listener may use it");
        return None;
    };
    let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
    if text.len() < ADMIN_SECRET_BYTES_MIN || !visible {
        let what = format!(
            "admin_secret in [server] must have {ADMIN_SECRET_BYTES_MIN} bytes or more, all of \
             them visible ASCII, such as `openssl rand -hex 32` prints"
        );
        table.error(origin.line(), what);
    }
    table.note_value("admin_secret", "***".into(), origin, true);
    Some(Secret::new(text))
}

/// What the kernel takes as a socket's path, less what stands beside it while it is made.
const HANDOVER_BYTES_MAX: usize = 90;

/// A path that both processes name alike, wherever they were started.
fn handover(table: &mut Table<'_, '_>) -> Option<String> {
    let Text { text, origin } = table.opt_text("handover", "a new process cannot take over")?;
    if !text.starts_with('/') || text.ends_with('/') || text.len() > HANDOVER_BYTES_MAX {
        let what = format!(
            "handover in [server] must be the absolute path of a socket, of {HANDOVER_BYTES_MAX} \
             bytes at most, such as \"/run/expedite/handover.sock\""
        );
        table.error(origin.line(), what);
    }
    Some(text)
}

/// An address to listen on: an IP address and a port.
pub(super) fn parse_address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => Some(SocketAddr::from(([127, 0, 0, 1], port.parse().ok()?))),
        None => text.parse().ok(),
    }
}

fn address(table: &mut Table<'_, '_>, key: &str, text: &Text) -> Option<SocketAddr> {
    let parsed = parse_address(&text.text);
    if parsed.is_none() {
        let given = text.quoted();
        let what = format!(
            "{key} in [server] must be an IP address and a port such as \"0.0.0.0:8080\", \
             not {given}"
        );
        table.error(text.origin.line(), what);
    }
    parsed
}

fn cores(table: &mut Table<'_, '_>) -> Cores {
    use toml::de::DeValue;
    const WANT: &str = "cores in [server] must be \"auto\" or a list of CPU numbers such as [2, 3]";
    let mut read = (Cores::Auto, Origin::Default);
    match table.get("cores") {
        None => {}
        Some((DeValue::String(text), line)) => match parse_cores(text) {
            Some(cores) => read = (cores, Origin::File(line)),
            None => table.error(line, WANT),
        },
        Some((DeValue::Array(items), line)) => {
            let cpu = |item: &toml::Spanned<DeValue<'_>>| {
                item.get_ref().as_integer().and_then(|number| number.as_str().parse().ok())
            };
            let cpus: Option<Vec<usize>> = items.iter().map(cpu).collect();
            match cpus.and_then(checked_cpus) {
                Some(cores) => read = (cores, Origin::File(line)),
                None => table.error(line, format!("{WANT}, each CPU once")),
            }
        }
        Some((_, line)) => table.error(line, WANT),
    }
    let shown = match &read.0 {
        Cores::Auto => "auto".into(),
        Cores::List(cpus) => cpus.clone().into(),
    };
    let changed = read.0 != Cores::Auto;
    table.note_value("cores", shown, read.1, changed);
    read.0
}

/// `auto`, or CPU numbers and ranges: `2,3` or `0-3,8`.
pub(super) fn parse_cores(text: &str) -> Option<Cores> {
    if text == "auto" {
        return Some(Cores::Auto);
    }
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > CPU_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    checked_cpus(cpus)
}

fn checked_cpus(cpus: Vec<usize>) -> Option<Cores> {
    let mut sorted = cpus.clone();
    sorted.sort_unstable();
    sorted.dedup();
    let valid = !cpus.is_empty() && sorted.len() == cpus.len();
    (valid && cpus.iter().all(|&cpu| cpu <= CPU_MAX)).then_some(Cores::List(cpus))
}

/// Read for its mistakes and its origin; `absent` then refuses it, since plain HTTP in place of
/// TLS would be unsafe.
fn tls(table: &mut Table<'_, '_>) -> Option<TlsFiles> {
    let given = table.inline("tls", |tls| {
        let [cert, key] = ["cert", "key"].map(|key| {
            let path = tls.opt_text(key, "missing").map(|given| given.text);
            if path.is_none() {
                tls.error(tls.line, format!("tls in [server] needs {key}"));
            }
            path
        });
        let client_ca = tls.opt_text("client_ca", "any client may connect");
        let client_ca = client_ca.map(|given| given.text);
        Some(TlsFiles { cert: cert?, key: key?, client_ca })
    });
    if given.is_none() {
        table.note_unset("tls", "plain HTTP");
    }
    given.flatten()
}

pub(super) fn routing(mut table: Table<'_, '_>) -> (Routing, Share, Option<Secret>) {
    let routing = Routing {
        policy: table.choice("policy", &Policy::ALL.map(|policy| (policy.name(), policy))),
        policy_header: table.flag("policy_header", false),
    };
    let share = Share {
        store: share_store(&mut table),
        every_ms: table.number("share_every_ms", 100, 50..=1000, "milliseconds"),
    };
    let salt_secret = salt_secret(&mut table);
    table.finish();
    (routing, share, salt_secret)
}

/// A shorter secret could be found by trying.
const SALT_SECRET_BYTES_MIN: usize = 16;

fn salt_secret(table: &mut Table<'_, '_>) -> Option<Secret> {
    let Some(Text { text, origin }) = table.text("cache_salt_secret") else {
        table.note_unset("cache_salt_secret", "tenants share cached prefixes");
        return None;
    };
    if text.len() < SALT_SECRET_BYTES_MIN {
        let what = format!(
            "cache_salt_secret in [routing] must have {SALT_SECRET_BYTES_MIN} bytes or more, \
             such as `openssl rand -hex 32` prints"
        );
        table.error(origin.line(), what);
    }
    table.note_value("cache_salt_secret", "***".into(), origin, true);
    Some(Secret::new(text))
}

fn share_store(table: &mut Table<'_, '_>) -> ShareStore {
    const WANT: &str = "share in [routing] must be \"none\" or a URL redis://HOST:PORT/DB";
    let Some(Text { text, origin }) = table.text("share") else {
        table.note_unset("share", "the store of [quota], if that is redis://");
        return ShareStore::Quota;
    };
    if text == "none" {
        table.note_value("share", "none".into(), origin, true);
        return ShareStore::None;
    }
    // A password in the URL must not show, so that the message does not quote it.
    if text.strip_prefix("redis://").is_none_or(|rest| rest.is_empty()) {
        table.error(origin.line(), WANT);
    }
    table.note_value("share", "***".into(), origin, true);
    ShareStore::Redis(Secret::new(text))
}

pub(super) fn admission(mut table: Table<'_, '_>) -> Admission {
    let admission = Admission {
        headroom_ratio: table.float("headroom_ratio", 0.15, 0.0..=0.9, "a share"),
        stale_ms: table.number("stale_ms", 5000, 1..=MS_MAX, "milliseconds"),
        queue_ms_max: table.number("queue_ms_max", 2000, 0..=MS_MAX, "milliseconds"),
        queue_requests_max: table.number("queue_requests_max", 10_000, 0..=1_000_000, "requests"),
    };
    table.finish();
    admission
}

pub(super) fn timeouts(mut table: Table<'_, '_>) -> Timeouts {
    let mut ms = |key, default| table.number(key, default, 0..=MS_MAX, "milliseconds (0 = none)");
    let timeouts = Timeouts {
        connect_ms: ms("connect_ms", 1000),
        first_token_ms: ms("first_token_ms", 120_000),
        next_token_ms: ms("next_token_ms", 60_000),
        client_head_ms: ms("client_head_ms", 10_000),
        client_idle_ms: ms("client_idle_ms", 60_000),
        sse_keepalive_ms: ms("sse_keepalive_ms", 0),
    };
    table.finish();
    timeouts
}

pub(super) fn retry(mut table: Table<'_, '_>) -> Retry {
    let retry = Retry {
        attempts_max: table.number("attempts_max", 3, 1..=10, "attempts") as u32,
        budget_ratio: table.float("budget_ratio", 0.1, 0.0..=1.0, "retries per request"),
    };
    table.finish();
    retry
}

pub(super) fn quota(mut table: Table<'_, '_>) -> Quota {
    let given = table.text("store").filter(|given| given.text != "memory");
    let store = match &given {
        None => QuotaStore::Memory,
        Some(Text { text, origin }) => {
            let schemes = ["redis", "redis+cluster", "redis+sentinel"];
            let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
            if !schemes.contains(&scheme) {
                let near = did_you_mean(scheme, schemes);
                let what = format!(
                    "store in [quota] must be \"memory\" or a redis://, redis+cluster:// or \
                     redis+sentinel:// URL{near}"
                );
                table.error(origin.line(), what);
            }
            QuotaStore::Redis(Secret::new(text.clone()))
        }
    };
    // The URL may hold a password, so that it is not shown.
    match given {
        Some(given) => table.note_value("store", "***".into(), given.origin, true),
        None => table.note_value("store", "memory".into(), Origin::Default, false),
    }
    let on_store_down = table
        .choice("on_store_down", &[("local", OnStoreDown::Local), ("refuse", OnStoreDown::Refuse)]);
    let timeout_ms = table.number("timeout_ms", 100, 1..=10_000, "milliseconds");
    let lease_ms = table.number("lease_ms", 10_000, 1_000..=600_000, "milliseconds");
    let output_tokens_default =
        table.number("output_tokens_default", 4096, 1..=1_000_000_000, "tokens");
    table.finish();
    Quota { store, on_store_down, timeout_ms, lease_ms, output_tokens_default }
}

pub(super) fn usage(mut table: Table<'_, '_>) -> UsageConfig {
    let path = table.text_or("path", "usage.jsonl");
    if path.text.is_empty() || path.text.starts_with("redis-stream:") {
        let what = "path in [usage] must be a file, \"-\" (stdout) or \"none\"; a stream stands \
                    beside it: stream = \"redis-stream:NAME\"";
        table.error(path.origin.line(), what);
    }
    let on_full = table.choice("on_full", &[("refuse", OnFull::Refuse), ("drop", OnFull::Drop)]);
    let open = table.opt_text("open", "beside path, as usage.open.jsonl");
    let config = UsageConfig {
        path: path.text,
        on_full,
        open: match open.map(|open| open.text) {
            None => OpenList::Beside,
            Some(text) if text == "none" => OpenList::None,
            Some(text) => OpenList::File(text),
        },
        rotate_bytes: table.number("rotate_bytes", 0, 0..=1 << 50, "bytes (0 = never)"),
        rotate_hours: table.number("rotate_hours", 0, 0..=24 * 366, "hours (0 = never)"),
        keep: table.number("keep", 0, 0..=1_000_000, "files (0 = all)"),
        stream: usage_stream(&mut table),
        otlp: table.flag("otlp", false),
    };
    table.finish();
    config
}

fn usage_stream(table: &mut Table<'_, '_>) -> Option<UsageStream> {
    let name = table.opt_text("stream", "none");
    let store = table.text("stream_store");
    let length_max =
        table.number("stream_length_max", 1_000_000, 1..=1 << 40, "entries of the stream");
    match &store {
        None => table.note_unset("stream_store", "the store of [quota], if that is redis://"),
        Some(Text { text, origin }) => {
            // The URL may hold a password, so that the message does not quote it.
            if text.strip_prefix("redis://").is_none_or(str::is_empty) {
                let what = "stream_store in [usage] must be a URL redis://HOST:PORT/DB";
                table.error(origin.line(), what);
            }
            table.note_value("stream_store", "***".into(), origin.clone(), true);
        }
    }
    let name = name?;
    let stream = name.text.strip_prefix("redis-stream:").filter(|name| !name.is_empty());
    let Some(stream) = stream else {
        let what =
            format!("stream in [usage] must be \"redis-stream:NAME\", not {}", name.quoted());
        table.error(name.origin.line(), what);
        return None;
    };
    // `read` puts the quota's store in when there is none of its own.
    let store = Secret::new(store.map(|store| store.text).unwrap_or_default());
    Some(UsageStream { name: stream.to_owned(), store, length_max })
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn the_path_to_hand_over_by_is_absolute_and_short() {
        let with = |path: &str| {
            let text = format!("[server]\nhandover = \"{path}\"\n[[pool]]\nname = \"p\"\n");
            Config::from_text("gw.toml", &(text + "replicas = [\"http://h:1\"]\n"))
        };
        let config = with("/run/expedite.sock").unwrap();
        assert_eq!(config.server.handover.as_deref(), Some("/run/expedite.sock"));
        for bad in ["", "expedite.sock", "/run/", &format!("/{}", "x".repeat(90))] {
            let said = with(bad).unwrap_err().to_string();
            assert!(said.contains("gw.toml:2: handover in [server] must be"), "{said}");
        }
    }
}
