//! `[log]` and `[otel]`: what the gateway tells of itself, and to whom. Each function is the
//! documentation of its keys, defaults, ranges.

use super::reader::Table;

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Least severe level that is written.
    pub level: LogLevel,
    /// Shape of a line.
    pub format: LogFormat,
    /// The access log; `None`: there is none.
    pub access: Option<Access>,
}

/// `log.level`, ascending in detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What has failed.
    Error,
    /// What may fail soon, or works otherwise than configured.
    Warn,
    /// Starts, stops, replicas that come and go.
    Info,
    /// As `Info`: nothing is told at this level yet.
    Debug,
    /// As `Debug`.
    Trace,
}

/// `log.format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `log.access` and `log.access_path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Shape of a line.
    pub format: AccessFormat,
    /// A file's path, or "stderr", or "-" for stdout.
    pub path: String,
}

/// `log.access`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessFormat {
    /// For people and their tools: `key=value`.
    Text,
    /// One JSON object a line.
    Json,
}

/// `[otel]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Otel {
    /// The collector's host, as in its URL.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What stands before `/v1/traces`; often nothing.
    pub path: String,
    /// Share of the traces that begin here and are recorded; a caller's decision goes before it.
    pub sample_ratio: f64,
    /// `service.name` of what is told.
    pub service_name: String,
}

pub(super) fn log(mut table: Table<'_, '_>) -> Log {
    let level = table.choice(
        "level",
        &[
            ("info", LogLevel::Info),
            ("off", LogLevel::Off),
            ("error", LogLevel::Error),
            ("warn", LogLevel::Warn),
            ("debug", LogLevel::Debug),
            ("trace", LogLevel::Trace),
        ],
    );
    let format = table.choice("format", &[("text", LogFormat::Text), ("json", LogFormat::Json)]);
    let shapes =
        [("off", None), ("text", Some(AccessFormat::Text)), ("json", Some(AccessFormat::Json))];
    let access = table.choice("access", &shapes);
    let path = table.text_or("access_path", "stderr");
    if path.text.is_empty() {
        let what = "access_path in [log] must be a file, \"stderr\" or \"-\" (stdout)";
        table.error(path.origin.line(), what);
    }
    table.finish();
    Log { level, format, access: access.map(|format| Access { format, path: path.text }) }
}

/// The port of OTLP over HTTP.
const PORT: u16 = 4318;

pub(super) fn otel(mut table: Table<'_, '_>) -> Option<Otel> {
    let endpoint = table.opt_text("endpoint", "nothing is traced");
    let sample_ratio = table.float("sample_ratio", 1.0, 0.0..=1.0, "of the traces that begin here");
    let service_name = table.text_or("service_name", "expedite").text;
    let read = endpoint.and_then(|given| {
        let read = parse_endpoint(&given.text);
        if read.is_none() {
            let what = "endpoint in [otel] must be a URL http://HOST:PORT without user or query; \
                        a collector beside the gateway can go on by TLS";
            table.error(given.origin.line(), what);
        }
        read
    });
    table.finish();
    let (host, port, path) = read?;
    Some(Otel { host, port, path, sample_ratio, service_name })
}

/// Host, port and path of `http://host[:port][/path]`.
fn parse_endpoint(url: &str) -> Option<(String, u16, String)> {
    let rest = url.strip_prefix("http://")?;
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, PORT),
    };
    let is_plain = |c: char| c.is_ascii_graphic() && !"@?#\"\\<>".contains(c);
    let fit = !host.is_empty() && url.chars().all(is_plain) && port > 0;
    fit.then(|| (host.to_owned(), port, path.trim_end_matches('/').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn mistakes_are_told_by_their_line() {
        let said = |text: &str| {
            let text = format!("[[pool]]\nname = \"p\"\nreplicas = [\"http://r:1\"]\n{text}");
            Config::from_text("gw.toml", &text).expect_err("a mistake").to_string()
        };
        for (text, want) in [
            ("[usage]\notlp = true\n", "gw.toml:5: otlp in [usage] needs a collector"),
            ("[otel]\nendpoint = \"https://x\"\n", "gw.toml:5: endpoint in [otel] must be a URL"),
            ("[otel]\nsample_ratio = 2\n", "gw.toml:5: sample_ratio in [otel] must be"),
            ("[log]\naccess = \"yes\"\n", "gw.toml:5: access in [log] must be one of off, text"),
            (
                "[log]\naccess = \"json\"\naccess_path = \"usage.jsonl\"\n",
                "gw.toml:6: access_path in [log] must not be the usage log",
            ),
            ("[log]\naccess_path = \"\"\n", "gw.toml:5: access_path in [log] must be a file"),
        ] {
            let said = said(text);
            assert!(said.contains(want), "{text}: {said}");
        }
        let secret = said("[otel]\nendpoint = \"http://user:canary@x\"\n");
        assert!(!secret.contains("canary"), "{secret}");
    }

    #[test]
    fn nothing_is_told_unless_asked_for() {
        let pool = "[[pool]]\nname = \"p\"\nreplicas = [\"http://r:1\"]\n";
        let config = Config::from_text("gw.toml", pool).unwrap();
        assert_eq!((config.log.access, config.otel, config.usage.otlp), (None, None, false));
    }

    #[test]
    fn endpoints_are_plain_http() {
        let read =
            |url| parse_endpoint(url).map(|(host, port, path)| format!("{host} {port} {path}"));
        assert_eq!(read("http://otel:4318").as_deref(), Some("otel 4318 "));
        assert_eq!(read("http://otel/").as_deref(), Some("otel 4318 "));
        assert_eq!(read("http://[::1]:9/a/b/").as_deref(), Some("[::1] 9 /a/b"));
        assert_eq!(read("http://[::1]").as_deref(), Some("[::1] 4318 "));
        for bad in [
            "",
            "otel:4318",
            "https://otel:4318",
            "http://",
            "http://:4318",
            "http://user:canary@otel:4318",
            "http://otel:0",
            "http://otel:port",
            "http://otel/?key=canary",
            "http://ot el",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
