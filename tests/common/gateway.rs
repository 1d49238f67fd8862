//! A gateway in this process, on ephemeral ports, with its usage log in a folder that vanishes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use expedite::config::{Config, KeyDigest};
use expedite::gateway::Gateway;
use serde_json::Value;

use super::{ask, eventually, get};

/// The key of the one tenant, `acme`.
pub(crate) const KEY: &str = "sk-test";

/// The field line that carries it.
pub(crate) const AUTH: &str = "Authorization: Bearer sk-test\r\n";

/// What differs from the usual bed.
pub(crate) struct Settings {
    pub(crate) driver: &'static str,
    /// The value of `cores`: one of them unless a test is about several.
    pub(crate) cores: &'static str,
    /// Of the engines' URLs.
    pub(crate) scheme: &'static str,
    /// Lines for `[server]`.
    pub(crate) server: String,
    /// Lines for `[[pool]]`.
    pub(crate) pool: String,
    /// Lines of `[usage]`, in place of a log in a folder that vanishes.
    pub(crate) usage: Option<String>,
    /// Lines of `[log]`.
    pub(crate) log: String,
    /// Lines for `[[tenant]]`.
    pub(crate) tenant: String,
    /// Whole further sections.
    pub(crate) more: String,
}

impl Default for Settings {
    fn default() -> Settings {
        let [server, pool, tenant, more] = std::array::from_fn(|_| String::new());
        let log = "level = \"off\"".to_owned();
        let (driver, cores, scheme) = ("auto", "[0]", "http");
        Settings { driver, cores, scheme, server, pool, tenant, usage: None, log, more }
    }
}

/// A running gateway with one pool `p` (model `base`, alias `m`), by default on one core.
pub(crate) struct Bed {
    pub(crate) addr: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) gateway: Gateway,
    usage: PathBuf,
    text: Arc<Mutex<String>>,
    _dir: tempfile::TempDir,
}

impl Bed {
    /// In front of these engines, with the defaults.
    pub(crate) fn of(engines: &[SocketAddr]) -> Bed {
        Bed::start(engines, Settings::default())
    }

    /// Returns once the gateway has learned what each engine of [`super::engine`] lists.
    pub(crate) fn start(engines: &[SocketAddr], settings: Settings) -> Bed {
        let bed = Bed::unready(engines, settings);
        let list = format!("GET /v1/models HTTP/1.1\r\nHost: gw.test\r\n{AUTH}\r\n");
        eventually("the engines' models are known", || {
            let listed = ask(bed.addr, list.as_bytes()).text();
            engines.iter().all(|addr| listed.contains(&super::engine::adapter(*addr)))
        });
        bed
    }

    /// As [`Bed::start`], without the wait: for engines that answer no probe.
    pub(crate) fn unready(engines: &[SocketAddr], settings: Settings) -> Bed {
        let dir = tempfile::tempdir().expect("folder");
        let log = dir.path().join("usage.jsonl");
        let Settings { driver, cores, scheme, server, pool, tenant, usage, log: lines, more } =
            settings;
        let usage = usage.unwrap_or_else(|| format!("path = \"{}\"", log.display()));
        let replicas: Vec<_> =
            engines.iter().map(|addr| format!("\"{scheme}://{addr}\"")).collect();
        let text = format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\ncores = {cores}\n\
             driver = \"{driver}\"\n{server}\n\
             [[pool]]\nname = \"p\"\nmodel = \"base\"\naliases = [\"m\"]\n\
             replicas = [{}]\n{pool}\n\
             [usage]\n{usage}\n[log]\n{lines}\n\
             [[tenant]]\nid = \"acme\"\nkeys = [\"{}\"]\n{tenant}\n{more}\n",
            replicas.join(", "),
            KeyDigest::of(KEY.as_bytes()).to_text(),
        );
        let text = Arc::new(Mutex::new(text));
        let again = Arc::clone(&text);
        let open = move || Config::from_text("test.toml", &again.lock().expect("text"));
        let config = open().expect("configuration");
        let gateway = Gateway::start_reloadable(config, Some(Arc::new(open))).expect("gateway");
        let admin = gateway.admin.expect("admin");
        Bed { addr: gateway.addrs[0], admin, gateway, usage: log, text, _dir: dir }
    }

    /// Rewrites the configuration and has it reloaded: status and what was answered.
    pub(crate) fn reload(&self, rewrite: impl FnOnce(&str) -> String) -> (u16, Value) {
        let mut text = self.text.lock().expect("text");
        *text = rewrite(&text);
        drop(text);
        let answer = ask(self.admin, &super::post("/reload", ""));
        (answer.status(), answer.json())
    }

    /// Waits for the first `n` usage records; more than `n` fail.
    pub(crate) fn records(&self, n: usize) -> Vec<Value> {
        let read = || std::fs::read_to_string(&self.usage).unwrap_or_default();
        eventually("the usage records are written", || read().matches('\n').count() >= n);
        let text = read();
        let records: Vec<_> =
            text.lines().map(|line| serde_json::from_str(line).expect("record")).collect();
        assert_eq!(records.len(), n, "usage records: {text}");
        records
    }

    /// What the status tells of each tenant.
    pub(crate) fn tenants(&self) -> Vec<Value> {
        let status = ask(self.admin, &get("/status.json")).json();
        status["tenants"].as_array().expect("tenants").clone()
    }

    /// Sum of a metric's series whose labels contain `labels`.
    pub(crate) fn metric(&self, name: &str, labels: &str) -> f64 {
        let text = ask(self.admin, &get("/metrics")).text();
        let series = text.lines().filter_map(|line| line.strip_prefix(name));
        series
            .filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
            .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }
}
