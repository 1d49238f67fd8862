//! What no single key shows: clashes, doubles, and names that must exist elsewhere in the file.

use std::collections::HashMap;

use super::error::{ConfigError, did_you_mean};
use super::types::*;

/// All mistakes between sections. Called again after the command line has changed values.
pub(super) fn check(config: &Config) -> Vec<ConfigError> {
    let mut found = Found { config, errors: Vec::new() };
    found.listeners();
    found.pool_names();
    found.pairs();
    found.replicas();
    found.tenants();
    found.stream();
    found.collector();
    found.access();
    found.errors
}

/// Risks that are allowed, and said.
pub(super) fn risks(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let open = config.server.admin.filter(|_| config.server.admin_secret.is_none());
    if let Some(admin) = open.filter(|admin| !admin.ip().is_loopback()) {
        warnings.push(format!(
            "the admin listener {admin} is not on loopback and has no admin_secret: whoever \
             reaches it can reload and drain"
        ));
    }
    let clustered = matches!(config.quota.store, QuotaStore::Redis(_));
    if clustered && config.share.store == ShareStore::Quota && config.share_store().is_none() {
        warnings.push(
            "routing.share needs a redis:// URL of its own, since store in [quota] is a cluster's \
             or sentinel's: each gateway routes by its own view"
                .to_owned(),
        );
    }
    for tenant in config.tenants.iter().filter(|tenant| tenant.keys.is_empty()) {
        warnings.push(format!("tenant \"{}\" has no keys: nobody can be it", tenant.id));
    }
    warnings
}

struct Found<'c> {
    config: &'c Config,
    errors: Vec<ConfigError>,
}

impl Found<'_> {
    fn error(&mut self, at: (&str, usize, &str, Option<usize>), what: String) {
        let effective = &self.config.effective;
        let line = effective.line(at.0, at.1, at.2, at.3);
        let file = if line == 0 { String::new() } else { effective.file.clone() };
        self.errors.push(ConfigError { file, line, what });
    }

    fn listeners(&mut self) {
        let server = &self.config.server;
        for (n, address) in server.listen.iter().enumerate() {
            // Port 0 asks the kernel for a free one, so that two of them differ.
            let fixed = address.port() != 0;
            if fixed && server.listen[..n].contains(address) {
                self.error(("server", 0, "listen", Some(n)), format!("{address} is listed twice"));
            }
            if fixed && server.admin == Some(*address) {
                let what = format!("admin must not be one of listen: {address}");
                // A default has no line: then the clash is made by the line of `listen`.
                let by_default = self.config.effective.line("server", 0, "admin", None) == 0;
                let (key, item) = if by_default { ("listen", Some(n)) } else { ("admin", None) };
                self.error(("server", 0, key, item), what);
            }
        }
        if server.listen.is_empty() {
            self.error(("server", 0, "listen", None), "listen in [server] is empty".to_owned());
        }
    }

    /// A request asks for a pool by its name, its model or an alias: one space of names.
    fn pool_names(&mut self) {
        let config = self.config;
        let mut owners: HashMap<&str, usize> = HashMap::new();
        for (n, pool) in config.pools.iter().enumerate() {
            let name = [(pool.name.as_str(), "name", None)];
            // Nobody asks for a prefill pool by its model: that is the name of its pair.
            let model = pool.model.iter().filter(|_| pool.role != Role::Prefill);
            let model = model.map(|model| (model.as_str(), "model", None));
            let aliases =
                pool.aliases.iter().enumerate().map(|(i, a)| (a.as_str(), "aliases", Some(i)));
            for (asked, key, item) in name.into_iter().chain(model).chain(aliases) {
                let owner = *owners.entry(asked).or_insert(n);
                if owner != n && !asked.is_empty() {
                    let first = &config.pools[owner].name;
                    let what = format!("\"{asked}\" already means pool \"{first}\"");
                    self.error(("pool", n, key, item), what);
                }
            }
        }
    }

    /// Two pools that name each other, one for each part of the work.
    fn pairs(&mut self) {
        let config = self.config;
        let paired = |pool: &Pool| pool.role != Role::Both;
        for (n, pool) in config.pools.iter().enumerate().filter(|(_, pool)| paired(pool)) {
            let Some(pair) = &pool.pair else {
                let what = "role in [[pool]] goes with a pair: no pool names this one as its own";
                self.error(("pool", n, "role", None), what.to_owned());
                continue;
            };
            let what = match config.pools.iter().find(|other| other.name == *pair) {
                None => {
                    let names = config.pools.iter().map(|pool| pool.name.as_str());
                    format!("there is no pool {pair:?}{}", did_you_mean(pair, names))
                }
                Some(other) if other.role == pool.role || other.role == Role::Both => {
                    let wanted = if pool.role == Role::Decode { "prefill" } else { "decode" };
                    format!("pool {pair:?} is no pair of {:?}: its role is not {wanted}", pool.name)
                }
                Some(other) if other.pair.as_ref() != Some(&pool.name) => {
                    format!("pool {pair:?} names another pair than {:?}", pool.name)
                }
                Some(_) => continue,
            };
            self.error(("pool", n, "pair", None), what);
        }
    }

    fn replicas(&mut self) {
        let config = self.config;
        let (mut urls, mut ids) = (HashMap::new(), HashMap::new());
        for (n, pool) in config.pools.iter().enumerate() {
            for (i, replica) in pool.replicas.iter().enumerate() {
                let at = ("pool", n, "replicas", Some(i));
                if let Some(first) = urls.insert(replica.url.as_str(), &pool.name) {
                    let what = format!("replica {} is already in pool \"{first}\"", replica.url);
                    self.error(at, what);
                } else if let Some(first) = ids.insert(replica.id.as_str(), &pool.name) {
                    let what =
                        format!("replica id \"{}\" is already in pool \"{first}\"", replica.id);
                    self.error(at, what);
                }
            }
            if pool.replicas.is_empty() && pool.discover.is_none() {
                let what = format!("pool \"{}\" has no replicas", pool.name);
                self.error(("pool", n, "name", None), what);
            }
        }
        if config.pools.is_empty() {
            let file = config.effective.file.clone();
            let what = "no [[pool]] and no --replica: nothing to serve".to_owned();
            self.errors.push(ConfigError { file, line: 0, what });
        }
    }

    fn stream(&mut self) {
        let stream = self.config.usage.stream.as_ref();
        if stream.is_some_and(|stream| stream.store.expose().is_empty()) {
            let what = "stream in [usage] needs a server: stream_store = \"redis://HOST:PORT/DB\", \
                        or a redis:// store in [quota]";
            self.error(("usage", 0, "stream", None), what.to_owned());
        }
    }

    fn collector(&mut self) {
        if self.config.usage.otlp && self.config.otel.is_none() {
            let what =
                "otlp in [usage] needs a collector: endpoint = \"http://HOST:4318\" in [otel]";
            self.error(("usage", 0, "otlp", None), what.to_owned());
        }
    }

    /// Two threads that append to one file, one of which rotates it, would tear each other's lines.
    fn access(&mut self) {
        let usage = &self.config.usage.path;
        let access = self.config.log.access.as_ref().filter(|access| access.path == *usage);
        if access.is_some_and(|access| access.path != "-") {
            let what = "access_path in [log] must not be the usage log, path in [usage]";
            self.error(("log", 0, "access_path", None), what.to_owned());
        }
    }

    fn tenants(&mut self) {
        let config = self.config;
        let (mut ids, mut digests) = (HashMap::new(), HashMap::new());
        let tiers = || config.tiers.iter().map(|tier| tier.name.as_str());
        let pools = || config.pools.iter().map(|pool| pool.name.as_str());
        for (n, tenant) in config.tenants.iter().enumerate() {
            let id = tenant.id.as_str();
            if ids.insert(id, n).is_some() && !id.is_empty() {
                self.error(("tenant", n, "id", None), format!("tenant \"{id}\" is there twice"));
            }
            for (i, digest) in tenant.keys.iter().enumerate() {
                if let Some(first) = digests.insert(*digest, id) {
                    let (key_id, at) = (digest.key_id(), ("tenant", n, "keys", Some(i)));
                    let what = format!("key {key_id:?} already belongs to tenant \"{first}\"");
                    self.error(at, what);
                }
            }
            if !tiers().any(|tier| tier == tenant.tier) {
                let (tier, near) = (&tenant.tier, did_you_mean(&tenant.tier, tiers()));
                let what = format!("there is no [tier.{tier}]{near}");
                self.error(("tenant", n, "tier", None), what);
            }
            for (i, pool) in tenant.pools.iter().enumerate() {
                if pool != "*" && !pools().any(|name| name == pool) {
                    let near = did_you_mean(pool, pools());
                    let what = format!("there is no pool {pool:?}{near}");
                    self.error(("tenant", n, "pools", Some(i)), what);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    const PREFILL: &str = "[[pool]]\nname = \"p\"\nreplicas = [\"http://p:1\"]\nmodel = \"m\"\n";
    const DECODE: &str = "[[pool]]\nname = \"d\"\nreplicas = [\"http://d:1\"]\nmodel = \"m\"\n";

    fn said(prefill: &str, decode: &str) -> String {
        let text = format!("{PREFILL}{prefill}\n{DECODE}{decode}\n");
        let built = Config::from_text("gw.toml", &text);
        built.err().map(|errors| errors.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_pair_is_two_pools_that_name_each_other() {
        let (prefill, decode) =
            ("role = \"prefill\"\npair = \"d\"", "role = \"decode\"\npair = \"p\"");
        assert_eq!(said(prefill, decode), "");
        // One of them is enough.
        assert_eq!(said("role = \"prefill\"", decode), "");
        assert_eq!(said(prefill, "role = \"decode\""), "");
        for (prefill, decode, line, what) in [
            ("role = \"prefill\"", "role = \"decode\"", 5, "no pool names this one"),
            ("pair = \"d\"", decode, 5, "goes with a role"),
            (prefill, "role = \"decode\"\npair = \"q\"", 12, "there is no pool \"q\""),
            (prefill, "role = \"prefill\"\npair = \"p\"", 6, "its role is not decode"),
            ("", decode, 11, "its role is not prefill"),
            (prefill, "role = \"decode\"\npair = \"d\"", 6, "names another pair than \"p\""),
            ("prefill_tokens_min = 1", "", 5, "goes with role = \"decode\""),
            (&format!("{prefill}\naliases = [\"a\"]"), decode, 7, "names for clients"),
        ] {
            let said = said(prefill, decode);
            let found = said
                .lines()
                .any(|it| it.starts_with(&format!("gw.toml:{line}:")) && it.contains(what));
            assert!(found, "{line} {what}: {said}");
        }
    }
}
