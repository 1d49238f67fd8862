//! The configuration: one TOML file and the command line become checked values, each with its
//! origin.
//!
//! `reader` reads a table and notes every value, `sections`, `pool` and `tenant` say which keys
//! there are, `check` compares sections with each other, `absent` lists what this version lacks,
//! `effective` shows the result. Runs once at start and at each reload, on the calling thread,
//! never on a core. It never opens a socket, and never shows the value of a secret: not in an
//! error, not in `Debug`, not in the effective configuration. Grammar: TOML 1.0.

mod absent;
mod check;
mod effective;
mod error;
mod flags;
mod pool;
mod reader;
mod secret;
mod sections;
mod telemetry;
mod tenant;
#[cfg(test)]
mod tests;
mod types;

use std::path::Path;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

pub use error::{ConfigError, ConfigErrors};
pub use flags::Flags;
pub use pool::{REPLICAS_MAX, is_name};
pub use secret::{KeyDigest, KeyId, Secret};
pub use telemetry::{Access, AccessFormat, Log, LogFormat, LogLevel, Otel};
pub use types::*;

use effective::Effective;
use reader::{Env, Reader, Table, spans};
use tenant::DEFAULT_TIER;

/// A configuration file is a few kilobytes; more is a mistaken path.
const FILE_BYTES_MAX: u64 = 16 << 20;

impl Config {
    /// What `serve` runs with: the file, if any, changed by the command line.
    ///
    /// # Errors
    /// Every mistake of the file and of the flags.
    pub fn open(file: Option<&Path>, flags: &Flags) -> Result<Config, ConfigErrors> {
        let (name, text) = match file {
            Some(path) => (path.display().to_string(), read_file(path)?),
            None => (String::new(), String::new()),
        };
        Config::build(&name, &text, flags, &|variable| std::env::var(variable).ok())
    }

    /// The file alone.
    ///
    /// # Errors
    /// As [`Config::open`].
    pub fn load(path: impl AsRef<Path>) -> Result<Config, ConfigErrors> {
        Config::open(Some(path.as_ref()), &Flags::default())
    }

    /// A text in place of a file; `name` is for the messages.
    ///
    /// # Errors
    /// As [`Config::open`].
    pub fn from_text(name: &str, text: &str) -> Result<Config, ConfigErrors> {
        let env = |variable: &str| std::env::var(variable).ok();
        Config::build(name, text, &Flags::default(), &env)
    }

    /// No file: one pool "default" of the flags' replicas, models learned, one open tenant.
    ///
    /// # Errors
    /// A malformed flag, or no replica.
    pub fn zero(flags: &Flags) -> Result<Config, ConfigErrors> {
        Config::open(None, flags)
    }

    /// The effective configuration as TOML, each value with its origin behind it. Can be loaded
    /// again, but for the secrets, which are `***`.
    pub fn effective(&self) -> String {
        self.effective.to_toml()
    }

    /// Through which store gateways tell each other what they do; `None`: this one is alone.
    pub fn share_store(&self) -> Option<&Secret> {
        let plain = |url: &&Secret| url.expose().starts_with("redis://");
        match (&self.share.store, &self.quota.store) {
            (ShareStore::Redis(url), _) => Some(url),
            (ShareStore::Quota, QuotaStore::Redis(url)) => Some(url).filter(plain),
            (ShareStore::Quota | ShareStore::None, _) => None,
        }
    }

    /// What is wrong with the value of `key` in the `n`-th section of a kind, found out by someone
    /// who used it.
    pub fn error_at(&self, kind: &str, n: usize, key: &str, what: String) -> ConfigError {
        let line = self.effective.line(kind, n, key, None);
        ConfigError { file: self.effective.file.clone(), line, what }
    }

    /// The effective configuration: `{"server": {"listen": {"value": .., "origin": ".."}}, ..}`.
    pub fn effective_json(&self) -> Value {
        self.effective.to_json()
    }

    fn build(name: &str, text: &str, flags: &Flags, env: Env<'_>) -> Result<Config, ConfigErrors> {
        let mut config = read(name, text, env)?;
        let mut errors = config.apply(flags);
        errors.extend(check::check(&config));
        if !errors.is_empty() {
            return Err(sorted(errors));
        }
        let mut warnings = absent::judge(&config.effective);
        warnings.extend(check::risks(&config));
        config.warnings = warnings;
        Ok(config)
    }
}

fn sorted(mut errors: Vec<ConfigError>) -> ConfigErrors {
    errors.sort_by_key(|error| error.line);
    ConfigErrors(errors)
}

fn read_file(path: &Path) -> Result<String, ConfigErrors> {
    let file = path.display().to_string();
    let fail = |what: String| ConfigErrors(vec![ConfigError { file, line: 0, what }]);
    match std::fs::metadata(path) {
        Ok(meta) if meta.len() > FILE_BYTES_MAX => {
            return Err(fail(format!("larger than {FILE_BYTES_MAX} bytes")));
        }
        Ok(_) => {}
        Err(error) => return Err(fail(error.to_string())),
    }
    std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))
}

/// Reads all sections. Mistakes of a single key end here; those between sections are `check`'s.
fn read(name: &str, text: &str, env: Env<'_>) -> Result<Config, ConfigErrors> {
    let (document, broken) = DeTable::parse_recoverable(text);
    let mut reader = Reader::new(name, text, env);
    if !broken.is_empty() {
        for error in broken {
            let line = error.span().map_or(0, |span| reader.line_at(span.start));
            reader.error(line, error.message().replace('\n', ", "));
        }
        return Err(sorted(reader.errors));
    }
    let mut root = Root { reader, table: document.get_ref() };
    // In the order in which they are shown.
    let server = sections::server(root.one("server"));
    let mut pools = root.many("pool", pool::pool);
    pool::pair(&mut pools);
    let (routing, share, cache_salt_secret) = sections::routing(root.one("routing"));
    let mut config = Config {
        server,
        pools,
        routing,
        share,
        cache_salt_secret,
        admission: sections::admission(root.one("admission")),
        timeouts: sections::timeouts(root.one("timeouts")),
        retry: sections::retry(root.one("retry")),
        quota: sections::quota(root.one("quota")),
        tenants: root.many("tenant", tenant::tenant),
        tiers: root.tiers(),
        usage: sections::usage(root.one("usage")),
        log: telemetry::log(root.one("log")),
        otel: telemetry::otel(root.one("otel")),
        warnings: Vec::new(),
        effective: Effective::default(),
    };
    root.unknown();
    let Reader { errors, effective, .. } = root.reader;
    config.effective = effective;
    let plain = |url: &&Secret| url.expose().starts_with("redis://");
    if let (Some(stream), QuotaStore::Redis(url)) = (&mut config.usage.stream, &config.quota.store)
        && let Some(url) = Some(url).filter(plain)
        && stream.store.expose().is_empty()
    {
        stream.store = url.clone();
    }
    if errors.is_empty() { Ok(config) } else { Err(sorted(errors)) }
}

/// The top level of a file.
struct Root<'a> {
    reader: Reader<'a>,
    table: &'a DeTable<'a>,
}

const SECTIONS: [&str; 12] = [
    "server",
    "pool",
    "routing",
    "admission",
    "timeouts",
    "retry",
    "quota",
    "tenant",
    "tier",
    "usage",
    "log",
    "otel",
];

impl<'a> Root<'a> {
    fn get(&self, kind: &str) -> Option<(&'a DeValue<'a>, u32)> {
        let (_, value) = self.table.iter().find(|(name, _)| name.get_ref() == kind)?;
        Some((value.get_ref(), self.reader.line_at(value.span().start)))
    }

    /// `[kind]`, or nothing but defaults.
    fn one(&mut self, kind: &'static str) -> Table<'_, 'a> {
        let header = format!("[{kind}]");
        let (table, line) = match self.get(kind) {
            Some((DeValue::Table(table), line)) => (Some(table), line),
            Some((_, line)) => {
                self.reader.error(line, format!("{kind} must be a table: {header}"));
                (None, line)
            }
            None => (None, 0),
        };
        self.reader.section(kind, header, line, table)
    }

    /// Each `[[kind]]`.
    fn many<T>(&mut self, kind: &'static str, read: fn(Table<'_, 'a>) -> T) -> Vec<T> {
        let Some((raw, line)) = self.get(kind) else { return Vec::new() };
        if !raw.is_array() {
            self.reader.error(line, format!("{kind} must be a list of tables: [[{kind}]]"));
        }
        let mut values = Vec::new();
        for item in spans(raw) {
            let line = self.reader.line_at(item.span().start);
            match item.get_ref() {
                DeValue::Table(table) => {
                    let header = format!("[[{kind}]]");
                    values.push(read(self.reader.section(kind, header, line, Some(table))));
                }
                _ => self.reader.error(line, format!("each {kind} must be a table: [[{kind}]]")),
            }
        }
        values
    }

    /// Each `[tier.NAME]`, and `[tier.default]` in any case.
    fn tiers(&mut self) -> Vec<Tier> {
        let mut tiers = Vec::new();
        let tables = match self.get("tier") {
            Some((DeValue::Table(tables), _)) => Some(tables),
            Some((_, line)) => {
                self.reader.error(line, "tier must hold tables: [tier.NAME]");
                None
            }
            None => None,
        };
        for (name, value) in tables.into_iter().flat_map(|tables| tables.iter()) {
            let line = self.reader.line_at(name.span().start);
            let bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            let DeValue::Table(table) = value.get_ref() else {
                self.reader.error(line, "tier must hold tables: [tier.NAME]");
                continue;
            };
            if name.get_ref().is_empty() || !name.get_ref().chars().all(bare) {
                self.reader.error(line, "a tier's name has letters, digits, - and _ only");
                continue;
            }
            let header = format!("[tier.{}]", name.get_ref());
            let table = self.reader.section("tier", header, line, Some(table));
            tiers.push(tenant::tier(name.get_ref(), table));
        }
        if !tiers.iter().any(|tier| tier.name == DEFAULT_TIER) {
            let header = format!("[tier.{DEFAULT_TIER}]");
            tiers.push(tenant::tier(DEFAULT_TIER, self.reader.section("tier", header, 0, None)));
        }
        tiers
    }

    fn unknown(&mut self) {
        for (name, _) in self.table.iter() {
            if !SECTIONS.contains(&name.get_ref().as_ref()) {
                let near = error::did_you_mean(name.get_ref(), SECTIONS);
                let what = format!("unknown section {:?}{near}", name.get_ref());
                let line = self.reader.line_at(name.span().start);
                self.reader.error(line, what);
            }
        }
    }
}
