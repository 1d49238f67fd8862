//! The shape of the fleet: pools, replicas, and which of them serve a name. Immutable once built.

use std::collections::HashMap;
use std::sync::Arc;

use super::pool::{Pool, PoolState};
use crate::config;
use crate::net::Trust;
use crate::openai::models::Entry;
use crate::prompt::model::Model;

/// What a requested name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Index of the pool.
    pub pool: usize,
    /// The name that its replicas know.
    pub upstream: Arc<str>,
    /// The adapter, when the name is one.
    pub adapter: Option<Arc<str>>,
    /// Which replicas of the pool serve it, by their index in it; `None` = all.
    pub holders: Option<Vec<bool>>,
    /// The path from which any other replica can load it: an adapter of a pool with
    /// `adapters = "load"`.
    pub loads_from: Option<Arc<str>>,
    /// Tokens that prompt and answer may have together: as configured, or the least that a
    /// replica tells; `None` = not known.
    pub context_tokens: Option<u64>,
}

impl Served {
    /// Does the replica with this index in the pool ([`Lane::member`](super::Lane)) serve it?
    #[must_use]
    pub fn holds(&self, member: usize) -> bool {
        self.holders.as_ref().is_none_or(|h| h.get(member).copied().unwrap_or(false))
    }
}

/// Why a name stands for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// Nobody serves it.
    Unknown,
    /// Nobody of a pool that does not say what it serves has ever answered: it may be that.
    NotLearned,
    /// No name was given and there is more than one pool.
    NoName,
}

/// The fleet as one core sees it during a request.
pub struct Fleet {
    /// All pools in the order of the file.
    pub pools: Vec<Arc<Pool>>,
    served: HashMap<Box<str>, Served>,
    /// What each prefill pool serves, by its index; nobody asks for it by name.
    prefill: HashMap<usize, HashMap<Box<str>, Served>>,
    all_learned: bool,
    /// The merged list as entries, in order.
    pub entries: Vec<Entry>,
}

/// What the files hold that pools name, by the pool's name.
#[derive(Clone, Default)]
pub struct Files {
    /// Tokenizer and template.
    pub models: HashMap<String, Arc<Model>>,
    /// Whom it believes, and what it proves itself by, where replicas speak TLS.
    pub trusts: HashMap<String, Trust>,
}

impl Fleet {
    /// Builds the fleet of `config`, whose pools have named `files`, for `cores` cores.
    #[must_use]
    pub fn new(config: &config::Config, cores: usize, files: &Files, now_ms: u64) -> Fleet {
        let members = config.pools.iter().map(|pool| pool.replicas.clone()).collect::<Vec<_>>();
        Fleet::built(config, (cores, files), (&[], &members), now_ms)
    }

    /// The fleet of another configuration, with these members each in the order of its pools. A
    /// pool of the same name stays what it is, and so does whoever is in it under the same id and
    /// address.
    #[must_use]
    pub fn reconfigured(
        &self,
        config: &config::Config,
        files: &Files,
        members: &[Vec<config::Replica>],
        now_ms: u64,
    ) -> Fleet {
        let cores = self.pools.first().map_or(1, |pool| pool.state.cores());
        Fleet::built(config, (cores, files), (&self.pools, members), now_ms)
    }

    fn built(
        config: &config::Config,
        (cores, files): (usize, &Files),
        (former, members): (&[Arc<Pool>], &[Vec<config::Replica>]),
        now_ms: u64,
    ) -> Fleet {
        let pool = |(settings, members): (&config::Pool, &Vec<config::Replica>)| {
            let former = former.iter().find(|pool| *pool.name == *settings.name);
            let state = former.map(|pool| Arc::clone(&pool.state));
            // The prompts of a prefill pool are those of its pair, counted once for both.
            let pair = config.pools.iter().position(|it| settings.pair.as_ref() == Some(&it.name));
            let prompts = match pair.and_then(|at| config.pools.get(at)) {
                Some(pair) if settings.role == config::Role::Prefill => pair,
                _ => settings,
            };
            let pool = Pool {
                name: settings.name.as_str().into(),
                replicas: former.map(|pool| pool.replicas.clone()).unwrap_or_default(),
                lanes: Vec::new(),
                state: state.unwrap_or_else(|| Arc::new(PoolState::new(cores))),
                api_key: settings.api_key.clone(),
                price: settings.price,
                trust: files.trusts.get(&settings.name).cloned(),
                server_name: settings.tls.as_ref().and_then(|tls| tls.server_name.clone()),
                model: files.models.get(&prompts.name).map(Arc::clone),
                sequences_max: settings.sequences_max.unwrap_or(0),
                block_tokens: prompts.block_size.and_then(|tokens| tokens.try_into().ok()),
                prefills_at: pair.filter(|_| settings.role == config::Role::Decode),
            };
            Arc::new(pool.with_members(members, now_ms))
        };
        let pools = config.pools.iter().zip(members).map(pool);
        Fleet::with_names(pools.collect(), config)
    }

    /// The same pools with these members each, in the order of the pools. Whoever is in the old
    /// list under the same id and address stays who it is.
    #[must_use]
    pub fn with_members(
        &self,
        members: &[Vec<config::Replica>],
        config: &config::Config,
        now_ms: u64,
    ) -> Fleet {
        let pools = self.pools.iter().zip(members);
        let pools = pools.map(|(pool, members)| Arc::new(pool.with_members(members, now_ms)));
        Fleet::with_names(pools.collect(), config)
    }

    fn with_names(pools: Vec<Arc<Pool>>, config: &config::Config) -> Fleet {
        let mut names = Names::default();
        let mut prefill = HashMap::new();
        let mut all_learned = true;
        for (index, (pool, settings)) in pools.iter().zip(&config.pools).enumerate() {
            if settings.role == config::Role::Prefill {
                let mut apart = Names::default();
                apart.pool(index, pool, settings);
                prefill.insert(index, apart.served);
                continue;
            }
            let told = pool.replicas.iter().any(|replica| replica.models.load().is_some());
            let remembers = pool.replicas.is_empty() && pool.state.remembers();
            all_learned &= told || remembers || settings.model.is_some();
            names.pool(index, pool, settings);
        }
        Fleet { pools, served: names.served, prefill, all_learned, entries: names.entries }
    }

    /// What `name` stands for.
    ///
    /// # Errors
    /// It stands for nothing.
    pub fn resolve(&self, name: Option<&str>) -> Result<&Served, Unresolved> {
        let Some(name) = name else {
            let mut asked = self.asked();
            return match (asked.next(), asked.next()) {
                (Some(one), None) => self.served.get(&*one.name).ok_or(Unresolved::NotLearned),
                _ => Err(Unresolved::NoName),
            };
        };
        let missing = if self.all_learned { Unresolved::Unknown } else { Unresolved::NotLearned };
        self.served.get(name).ok_or(missing)
    }

    /// The pools that clients may ask for.
    fn asked(&self) -> impl Iterator<Item = &Arc<Pool>> {
        let pools = self.pools.iter().enumerate();
        pools.filter(|(at, _)| !self.prefill.contains_key(at)).map(|(_, pool)| pool)
    }

    /// What the prefill pool with this index calls what its pair is asked for; `None` when it does
    /// not serve that: an adapter that none of its replicas lists.
    #[must_use]
    pub fn prefill_of(&self, index: usize, asked: &Served) -> Option<&Served> {
        let served = self.prefill.get(&index)?;
        match &asked.adapter {
            Some(adapter) => served.get(&**adapter).filter(|found| found.adapter.is_some()),
            None => served.get(&*self.pools.get(index)?.name),
        }
    }

    /// Is there a pool with an eligible replica? One that only prefills serves nobody.
    #[must_use]
    pub fn any_eligible(&self, now_ms: u64) -> bool {
        let mut replicas = self.asked().flat_map(|p| &p.replicas);
        replicas.any(|r| r.eligible(now_ms))
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
        let loads = settings.adapters == config::Adapters::Load;
        // A pool that is scaled to nothing is still known by its names.
        let remembered = pool.state.remember(learned.iter().flatten());
        let remembered = remembered.iter().filter(|e| loads || e.parent.is_none());
        let remembered: Vec<_> = match learned.iter().flatten().next() {
            Some(_) if !loads => Vec::new(),
            _ => remembered.collect(),
        };
        let lists = || {
            let now = learned.iter().flatten().flat_map(|list| list.iter());
            now.chain(remembered.iter().copied())
        };
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
            loads_from: None,
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
                loads_from: entry
                    .root
                    .as_deref()
                    .filter(|_| loads && entry.parent.is_some())
                    .map(Into::into),
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
