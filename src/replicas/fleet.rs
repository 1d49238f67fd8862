//! The shape of the fleet: pools, replicas, and which of them serve a name. Immutable once built.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;

use super::health::Health;
use super::ledger::Ledger;
use crate::config;
use crate::openai::models::Entry;
use crate::prompt::model::Model;
use crate::prompt::standing::Standing;

/// One vLLM server.
pub struct Replica {
    /// A number of its own within this process, for what a core keeps by replica.
    pub key: usize,
    /// Stable name, unique over all pools.
    pub id: Arc<str>,
    /// `host:port` for the `Host` field.
    pub authority: String,
    /// Host to resolve.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Share relative to the pool's other replicas.
    pub weight: f64,
    /// Where to connect; `None` until its name is resolved. The control thread writes it.
    pub addr: ArcSwapOption<SocketAddr>,
    /// May it be sent work?
    pub health: Health,
    /// What we have in flight there.
    pub ledger: Arc<Ledger>,
    /// Its `/v1/models`, as last learned; `None` until it answered once.
    pub models: ArcSwapOption<Vec<Entry>>,
    /// Tokens in a block of its KV cache, as its metrics tell; 0 = not learned.
    pub block_tokens: AtomicU32,
}

impl Replica {
    fn new(from: &config::Replica, cores: usize) -> Replica {
        let ip = from.host.parse().ok().map(|ip| Arc::new(SocketAddr::new(ip, from.port)));
        static KEYS: AtomicUsize = AtomicUsize::new(0);
        Replica {
            key: KEYS.fetch_add(1, Ordering::Relaxed),
            id: from.id.as_str().into(),
            authority: from.authority().to_owned(),
            host: from.host.clone(),
            port: from.port,
            weight: from.weight,
            addr: ArcSwapOption::from(ip),
            health: Health::default(),
            ledger: Arc::new(Ledger::new(cores)),
            models: ArcSwapOption::empty(),
            block_tokens: AtomicU32::new(0),
        }
    }
}

/// Replicas that serve the same base model.
pub struct Pool {
    /// Its name.
    pub name: Arc<str>,
    /// Its replicas; an index here is an index everywhere.
    pub replicas: Vec<Arc<Replica>>,
    /// Configured key for its replicas.
    pub api_key: Option<config::Secret>,
    /// Prices for usage records.
    pub price: Option<config::Price>,
    /// How far counts of its prompts can be trusted.
    pub prompts: Standing,
    /// Tokenizer and template, when configured.
    model: Option<Arc<Model>>,
    /// Configured tokens in a block of the KV cache.
    block_tokens: Option<u32>,
}

impl Pool {
    /// How its prompts are counted: `exact`, `estimate`, or `fell_back` to estimates.
    #[must_use]
    pub fn prompt_mode(&self) -> &'static str {
        match &self.model {
            None => "estimate",
            Some(_) if self.prompts.fell_back() => "fell_back",
            Some(_) => "exact",
        }
    }

    /// What turns its prompts into the engine's tokens, as long as its counts can be trusted.
    #[must_use]
    pub fn model(&self) -> Option<&Arc<Model>> {
        self.model.as_ref().filter(|_| !self.prompts.fell_back())
    }

    /// A hash of its chat template, for logs; 0 without one.
    #[must_use]
    pub fn template_digest(&self) -> u64 {
        self.model.as_ref().map_or(0, |model| model.template_digest())
    }

    /// Bytes of its tokenizer's tables, shared with pools that name the same; 0 without one.
    #[must_use]
    pub fn tokenizer_bytes(&self) -> usize {
        self.model.as_ref().map_or(0, |model| model.tokenizer().bytes())
    }

    /// Tokens in a block of its replicas' KV cache, as configured or learned; 0 = not known, or
    /// the replicas differ, so that no block of one is a block of another.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        if let Some(configured) = self.block_tokens {
            return configured;
        }
        let learned = self.replicas.iter().map(|r| r.block_tokens.load(Ordering::Relaxed));
        let mut learned = learned.filter(|tokens| *tokens != 0);
        let first = learned.next().unwrap_or(0);
        if learned.all(|tokens| tokens == first) { first } else { 0 }
    }
}

/// What a requested name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Index of the pool.
    pub pool: usize,
    /// The name that its replicas know.
    pub upstream: Arc<str>,
    /// The adapter, when the name is one.
    pub adapter: Option<Arc<str>>,
    /// Which replicas of the pool serve it; `None` = all.
    pub holders: Option<Vec<bool>>,
    /// Tokens that prompt and answer may have together: as configured, or the least that a
    /// replica tells; `None` = not known.
    pub context_tokens: Option<u64>,
}

impl Served {
    /// Does replica `index` of the pool serve it?
    #[must_use]
    pub fn holds(&self, index: usize) -> bool {
        self.holders.as_ref().is_none_or(|h| h.get(index).copied().unwrap_or(false))
    }
}

/// Why a name stands for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// Nobody serves it.
    Unknown,
    /// Some replica has never answered, so it may yet turn out to serve it.
    NotLearned,
    /// No name was given and there is more than one pool.
    NoName,
}

/// The fleet as one core sees it during a request.
pub struct Fleet {
    /// All pools in the order of the file.
    pub pools: Vec<Arc<Pool>>,
    served: HashMap<Box<str>, Served>,
    all_learned: bool,
    /// The merged list as entries, in order.
    pub entries: Vec<Entry>,
}

impl Fleet {
    /// Builds the fleet of `config` with `models` by pool name, taking over the replicas of `old`
    /// by pool and id.
    #[must_use]
    pub fn new(
        config: &config::Config,
        cores: usize,
        models: &HashMap<String, Arc<Model>>,
        old: Option<&Fleet>,
    ) -> Fleet {
        let kept = |pool: &str, replica: &config::Replica| {
            let pool = old?.pools.iter().find(|p| &*p.name == pool)?;
            pool.replicas
                .iter()
                .find(|r| *r.id == *replica.id && r.authority == replica.authority())
                .filter(|r| (r.weight - replica.weight).abs() < f64::EPSILON)
                .map(Arc::clone)
        };
        let pools: Vec<_> = config
            .pools
            .iter()
            .map(|pool| {
                let replicas = pool.replicas.iter().map(|r| {
                    kept(&pool.name, r).unwrap_or_else(|| Arc::new(Replica::new(r, cores)))
                });
                Arc::new(Pool {
                    name: pool.name.as_str().into(),
                    replicas: replicas.collect(),
                    api_key: pool.api_key.clone(),
                    price: pool.price,
                    prompts: Standing::default(),
                    model: models.get(&pool.name).map(Arc::clone),
                    block_tokens: pool.block_size.and_then(|tokens| tokens.try_into().ok()),
                })
            })
            .collect();
        Fleet::with_names(pools, config)
    }

    fn with_names(pools: Vec<Arc<Pool>>, config: &config::Config) -> Fleet {
        let mut names = Names::default();
        let mut all_learned = true;
        for (index, (pool, settings)) in pools.iter().zip(&config.pools).enumerate() {
            all_learned &= pool.replicas.iter().all(|r| r.models.load().is_some());
            names.pool(index, pool, settings);
        }
        Fleet { pools, served: names.served, all_learned, entries: names.entries }
    }

    /// The same pools with the names as learned by now.
    #[must_use]
    pub fn relearned(&self, config: &config::Config) -> Fleet {
        Fleet::with_names(self.pools.clone(), config)
    }

    /// What `name` stands for.
    ///
    /// # Errors
    /// It stands for nothing.
    pub fn resolve(&self, name: Option<&str>) -> Result<&Served, Unresolved> {
        let Some(name) = name else {
            return match self.pools.as_slice() {
                [one] => self.served.get(&*one.name).ok_or(Unresolved::NotLearned),
                _ => Err(Unresolved::NoName),
            };
        };
        let missing = if self.all_learned { Unresolved::Unknown } else { Unresolved::NotLearned };
        self.served.get(name).ok_or(missing)
    }

    /// Is there a pool with an eligible replica?
    #[must_use]
    pub fn any_eligible(&self, now_ms: u64) -> bool {
        let mut replicas = self.pools.iter().flat_map(|p| &p.replicas);
        replicas.any(|r| r.health.eligible(now_ms))
    }
}

/// Collects names; the first to claim one keeps it.
#[derive(Default)]
struct Names {
    served: HashMap<Box<str>, Served>,
    entries: Vec<Entry>,
}

impl Names {
    fn pool(&mut self, index: usize, pool: &Pool, settings: &config::Pool) {
        let learned: Vec<_> = pool.replicas.iter().map(|r| r.models.load_full()).collect();
        let lists = || learned.iter().flatten().flat_map(|list| list.iter());
        let base = lists().find(|e| e.parent.is_none());
        let model = settings.model.clone().or_else(|| base.map(|e| e.id.clone()));
        // A name that the replicas list is served by those that list it: adapters, and in a pool
        // without a configured model also base models, may differ from replica to replica.
        let holders = |id: &str| {
            let holds = |list: &Option<Arc<Vec<Entry>>>| {
                list.as_ref().is_some_and(|l| l.iter().any(|e| e.id == id))
            };
            learned.iter().map(holds).collect::<Vec<_>>()
        };
        let context = |id: &str| {
            let told = lists().filter(|e| e.id == id).filter_map(|e| e.max_model_len).min();
            settings.context_tokens.or(told)
        };
        let own = model.as_ref().map(|model| Served {
            pool: index,
            upstream: model.as_str().into(),
            adapter: None,
            holders: settings.model.is_none().then(|| holders(model)),
            context_tokens: context(model),
        });
        if let Some(own) = own {
            let entry = lists().find(|e| *e.id == *own.upstream);
            let names = [settings.name.as_str(), &own.upstream];
            for name in names.into_iter().chain(settings.aliases.iter().map(String::as_str)) {
                self.claim(name, own.clone());
            }
            let shown = std::iter::once(&*own.upstream)
                .chain(settings.aliases.iter().map(String::as_str))
                .collect::<Vec<_>>();
            for name in shown {
                self.show(entry.map_or_else(|| Entry::plain(name), |e| e.renamed(name)));
            }
        }
        for entry in lists() {
            let served = Served {
                pool: index,
                upstream: entry.id.as_str().into(),
                adapter: entry.parent.is_some().then(|| entry.id.as_str().into()),
                holders: Some(holders(&entry.id)),
                // vLLM tells none for an adapter, whose context is its base model's.
                context_tokens: context(&entry.id)
                    .or_else(|| entry.parent.as_deref().and_then(context)),
            };
            self.claim(&entry.id, served);
            self.show(entry.clone());
        }
    }

    fn claim(&mut self, name: &str, served: Served) {
        self.served.entry(name.into()).or_insert(served);
    }

    fn show(&mut self, entry: Entry) {
        if !self.entries.iter().any(|e| e.id == entry.id) {
            self.entries.push(entry);
        }
    }
}
