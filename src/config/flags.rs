//! Values from the command line, which win over the file's.

use super::effective::Section;
use super::error::{ConfigError, ConfigErrors};
use super::pool::{flag_entry, parse_replica, show_replica};
use super::sections::{parse_address, parse_cores};
use super::types::*;
use super::{absent, check, pool, sorted};

/// The options of `serve` that are configuration; what is empty or `None` changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--replica URL`, any number. They replace the replicas of the file's only pool; without a
    /// pool they become the pool "default".
    pub replicas: Vec<String>,
    /// `--listen ADDR`, any number.
    pub listen: Vec<String>,
    /// `--admin ADDR`, or "none".
    pub admin: Option<String>,
    /// `--cores LIST`: "auto", "2,3" or "0-3".
    pub cores: Option<String>,
}

impl Config {
    /// Lays flags over a configuration, and checks the whole again.
    ///
    /// # Errors
    /// Malformed flags, and what they clash with; the configuration is then of no use.
    pub fn apply_flags(&mut self, flags: &Flags) -> Result<(), ConfigErrors> {
        let mut errors = self.apply(flags);
        errors.extend(check::check(self));
        let mut warnings = absent::judge(&self.effective);
        warnings.extend(check::risks(self));
        self.warnings = warnings;
        if errors.is_empty() { Ok(()) } else { Err(sorted(errors)) }
    }

    pub(super) fn apply(&mut self, flags: &Flags) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        self.apply_replicas(&flags.replicas, &mut errors);
        if !flags.listen.is_empty() {
            let address = |text: &String| {
                let parsed = parse_address(text);
                if parsed.is_none() {
                    errors.push(mistake(format!("--listen {text}: {ADDRESS}")));
                }
                parsed
            };
            self.server.listen = flags.listen.iter().filter_map(address).collect();
            self.effective.set_flag("server", "listen", flags.listen.clone().into());
        }
        if let Some(text) = &flags.admin {
            self.server.admin = parse_address(text);
            if self.server.admin.is_none() && text != "none" {
                errors.push(mistake(format!("--admin {text}: {ADDRESS}, or \"none\"")));
            }
            self.effective.set_flag("server", "admin", text.as_str().into());
        }
        if let Some(text) = &flags.cores {
            match parse_cores(text) {
                Some(cores) => self.server.cores = cores,
                None => errors.push(mistake(format!(
                    "--cores {text}: must be \"auto\" or CPU numbers such as 2,3 or 0-3"
                ))),
            }
            let shown = match &self.server.cores {
                Cores::Auto => "auto".into(),
                Cores::List(cpus) => cpus.clone().into(),
            };
            self.effective.set_flag("server", "cores", shown);
        }
        errors
    }

    fn apply_replicas(&mut self, urls: &[String], errors: &mut Vec<ConfigError>) {
        if urls.is_empty() {
            return;
        }
        let mut replicas = Vec::new();
        for url in urls {
            match parse_replica(url) {
                Ok(replica) => replicas.push(replica),
                Err(what) if url.contains('@') => errors.push(mistake(format!("--replica {what}"))),
                Err(what) => errors.push(mistake(format!("--replica {url}: {what}"))),
            }
        }
        let shown: Vec<_> = replicas.iter().map(show_replica).collect();
        match self.pools.as_mut_slice() {
            [] => {
                self.pools.push(Pool::of("default", replicas));
                let entries = vec![
                    flag_entry("name", "default".into()),
                    flag_entry("replicas", shown.into()),
                ];
                let header = "[[pool]]".to_owned();
                // After [server], where the file's pools stand too.
                self.effective.sections.insert(1, Section { kind: "pool", header, entries });
            }
            [only] => {
                only.replicas = replicas;
                self.effective.set_flag("pool", "replicas", shown.into());
            }
            _ => errors.push(mistake(
                "--replica cannot tell which of the file's pools it belongs to".to_owned(),
            )),
        }
    }
}

impl Pool {
    /// A pool with nothing set but its replicas.
    pub fn of(name: &str, replicas: Vec<Replica>) -> Pool {
        Pool {
            name: name.to_owned(),
            model: None,
            aliases: Vec::new(),
            replicas,
            api_key: None,
            tls: None,
            discover: None,
            tokenizer: None,
            chat_template: None,
            context_tokens: None,
            block_size: None,
            sequences_max: None,
            kv_events: None,
            adapters: Adapters::Auto,
            role: Role::Both,
            pair: None,
            prefill_tokens_min: None,
            media_hosts: None,
            slo: Slo::default(),
            engine: EngineKind::A100_8b,
            price: None,
        }
    }
}

impl Replica {
    /// A replica from its URL, with everything else by default.
    ///
    /// # Errors
    /// What is wrong with the URL, without repeating it.
    pub fn from_url(url: &str) -> Result<Replica, &'static str> {
        pool::parse_replica(url)
    }
}

const ADDRESS: &str = "must be an IP address and a port such as 0.0.0.0:8080";

fn mistake(what: String) -> ConfigError {
    ConfigError { file: String::new(), line: 0, what }
}
