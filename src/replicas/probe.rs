//! The active side of what we know: resolves a replica's name, asks `/health`, `/metrics` and what
//! it serves, and looks whether it has gone silent.
//!
//! One watcher a replica on the control thread (tokio, hyper), in three loops, so that a blocked
//! metrics page delays no probe and a frozen engine no other. It writes the replica's atomics, and
//! reports when what it learned changes the shape of the fleet.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::client::Client;
use super::events::source;
use super::health::State;
use super::learn;
use super::pool::PoolState;
use super::replica::Replica;
use super::report::Report;
use super::scrape::{self, Reading, Scraper};
use crate::config::Secret;
use crate::openai::models::{self, Entry};
use crate::runtime::clock;
use crate::runtime::descriptors::Lack;

/// Between two probes, and between two scrapes, of one replica. vLLM answers them from its one
/// event loop: gently.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Between two readings of `/v1/models` while all is well: adapters come and go.
const MODELS_EVERY: u32 = 10;
/// Between two tries at a metrics page that is not there.
const METRICS_EVERY_IF_MISSING: u32 = 10;
/// A probe that takes longer has failed: a replica that is only busy answers in milliseconds, and
/// its requests prove it anyway.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two looks for a silence.
const LISTEN_EVERY: Duration = Duration::from_millis(500);
/// A suspect gets so long for one token.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Watches one replica.
pub(super) struct Watcher {
    pub replica: Arc<Replica>,
    pub state: Arc<PoolState>,
    pub api_key: Option<Secret>,
    pub report: Rc<Report>,
    /// Its last probe was good.
    up: Cell<bool>,
    /// It has come (back): what does not change while it runs is to be asked for.
    anew: Cell<bool>,
    kick: Notify,
}

impl Watcher {
    pub(super) fn new(
        replica: &Arc<Replica>,
        state: &Arc<PoolState>,
        api_key: Option<&Secret>,
        report: &Rc<Report>,
    ) -> Watcher {
        Watcher {
            replica: Arc::clone(replica),
            state: Arc::clone(state),
            api_key: api_key.cloned(),
            report: Rc::clone(report),
            up: Cell::new(false),
            anew: Cell::new(false),
            kick: Notify::new(),
        }
    }

    /// Watches until the task is dropped.
    pub(super) async fn run(self) {
        tokio::join!(self.probe(), self.scrape(), self.listen());
    }

    fn client(&self) -> Client {
        Client::new(&self.replica, self.api_key.as_ref())
    }

    fn addr(&self) -> Option<SocketAddr> {
        self.replica.addr.load_full().map(|addr| *addr)
    }

    /// `/health`, on a connection of its own each time: that shows whether the port accepts.
    async fn probe(&self) {
        let mut client = self.client();
        let (mut shown, mut fault) = (None, None);
        loop {
            resolve(&self.replica).await;
            client.hang_up();
            let ok = match self.addr() {
                Some(addr) => {
                    matches!(client.get(addr, "/health", PROBE_TIMEOUT).await, Some((200, _)))
                }
                None => false,
            };
            let now_ms = clock::now_ms();
            // A connection that we could not have says nothing of the replica. Of ports it may:
            // one whose address family is off has none, and must not be tried for ever.
            let starved = matches!(client.lack(), Some(Lack::Descriptors | Lack::Memory));
            if ok || !starved {
                self.replica.health.probed(ok, now_ms);
            }
            if ok && !self.up.replace(ok) {
                self.anew.set(true);
                self.kick.notify_one();
            }
            self.up.set(ok);
            let state = self.replica.state(now_ms);
            if shown.replace(state) != Some(state) {
                self.tell(state);
            }
            if fault.as_deref() != client.fault() {
                fault = client.fault().map(str::to_owned);
                fault.iter().for_each(|why| self.tell_fault(why));
            }
            pause().await;
        }
    }

    fn tell(&self, state: State) {
        let line = format!("replica {} is {}", self.replica.id, state.name());
        match state {
            State::Joining | State::Up | State::Draining | State::Sleeping => {
                self.report.info(&line);
            }
            State::Suspect | State::Ejected | State::Down => self.report.warn(&line),
        }
    }

    fn tell_fault(&self, why: &str) {
        self.report.warn(&format!("replica {}: no TLS with it: {why}", self.replica.id));
    }

    /// `/metrics` and what it serves, over one connection that is kept.
    async fn scrape(&self) {
        let mut client = self.client();
        let mut scraper = Scraper::default();
        let (mut round, mut known) = (0_u32, Reading::Good);
        loop {
            let serves = self.up.get() || self.replica.state(clock::now_ms()) == State::Up;
            if let Some(addr) = self.addr().filter(|_| serves) {
                if self.anew.take() {
                    self.facts(&mut client, addr).await;
                    round = 0;
                }
                let unknown = self.replica.models.load().is_none();
                if round.is_multiple_of(MODELS_EVERY) || unknown {
                    self.models(&mut client, addr).await;
                }
                let missing = known == Reading::Missing;
                if !missing || round.is_multiple_of(METRICS_EVERY_IF_MISSING) {
                    let reading = self.metrics(&mut client, addr, &mut scraper).await;
                    self.tell_reading(std::mem::replace(&mut known, reading), reading);
                }
                round = round.wrapping_add(1);
            }
            tokio::select! {
                () = self.kick.notified() => {}
                () = pause() => {}
            }
        }
    }

    fn tell_reading(&self, before: Reading, now: Reading) {
        let line = || format!("replica {}: {}", self.replica.id, now.text());
        match now {
            _ if before == now => {}
            Reading::Good => self.report.info(&line()),
            _ => self.report.warn(&format!("{}; routing goes by our own accounting", line())),
        }
    }

    async fn metrics(
        &self,
        client: &mut Client,
        addr: SocketAddr,
        scraper: &mut Scraper,
    ) -> Reading {
        let Some((200, page)) = client.get(addr, "/metrics", PROBE_TIMEOUT).await else {
            return Reading::Missing;
        };
        let now_ms = clock::now_ms();
        let entered = scraper.enter(&self.replica, &page, now_ms);
        if entered.restarted {
            self.report.info(&format!("replica {} has restarted", self.replica.id));
            self.replica.health.restarted(now_ms);
            self.anew.set(true);
            self.kick.notify_one();
        }
        if entered.shape || entered.restarted {
            self.report.changed();
        }
        entered.reading
    }

    async fn models(&self, client: &mut Client, addr: SocketAddr) {
        let answer = client.get(addr, "/v1/models", PROBE_TIMEOUT).await;
        if answer.is_some() {
            self.replica.set_repeats_ids(client.repeats_ids());
        }
        if let Some((200, body)) = answer
            && let Ok(list) = models::parse(&body)
            && self.replica.models.load_full().is_none_or(|known| !same(&known, &list))
        {
            self.replica.models.store(Some(Arc::new(list)));
            self.report.changed();
        }
    }

    /// What does not change while a replica runs, asked for when it has come (back).
    async fn facts(&self, client: &mut Client, addr: SocketAddr) {
        self.models(client, addr).await;
        let version = match client.get(addr, "/version", PROBE_TIMEOUT).await {
            Some((200, answer)) => scrape::version(&answer),
            _ => None,
        };
        // Not there before 0.30, and empty without KV events.
        let sources = match client.get(addr, "/kv_event_sources", PROBE_TIMEOUT).await {
            Some((200, answer)) => source::told(&answer, &self.replica.host),
            _ => Vec::new(),
        };
        let changed = scrape::update(&self.replica, |facts| {
            facts.version = version;
            facts.event_sources = sources;
        });
        if changed {
            self.report.changed();
        }
        // One sample of the vocabulary, so that the first prompts are not priced by a rule of
        // thumb.
        if self.state.prompts.has_learned() {
            return;
        }
        let asked = serde_json::json!({"prompt": learn::SAMPLE}).to_string();
        if let Some((200, answer)) = client.post(addr, "/tokenize", asked, PROBE_TIMEOUT).await
            && let Some(tokens) = learn::token_count(&answer)
        {
            self.state.prompts.learn(learn::SAMPLE.len() as u64, tokens);
        }
    }

    /// Looks for a silence, and asks a suspect for one token until it answers.
    async fn listen(&self) {
        let mut client = self.client();
        let Replica { id, health, silence, .. } = &*self.replica;
        loop {
            tokio::time::sleep(LISTEN_EVERY).await;
            if let Some(stall) = silence.stall(clock::now_ms())
                && health.set_suspect(true, clock::now_ms())
            {
                self.report.warn(&format!(
                    "replica {id} is suspect: {} requests wait, and nothing has come for {} ms",
                    stall.requests, stall.silent_ms
                ));
            }
            if !health.is_suspect() {
                continue;
            }
            let since_ms = health.suspect_ms();
            let speaks = silence.heard_ms() > since_ms || self.trial(&mut client).await;
            let now_ms = clock::now_ms();
            if speaks && health.set_suspect(false, now_ms) {
                health.restarted(now_ms);
                self.report.info(&format!("replica {id} answers again"));
            }
        }
    }

    /// Does it generate a token? An answer that is no success proves nothing of the engine.
    async fn trial(&self, client: &mut Client) -> bool {
        let models = self.replica.models.load_full();
        let base = models.iter().flat_map(|list| list.iter()).find(|entry| entry.parent.is_none());
        let (Some(base), Some(addr)) = (base, self.addr()) else { return false };
        let asked = serde_json::json!({"model": base.id, "prompt": "1", "max_tokens": 1});
        client.hang_up();
        let answer = client.post(addr, "/v1/completions", asked.to_string(), TRIAL_TIMEOUT).await;
        matches!(answer, Some((200, _)))
    }
}

/// Spread over the second, so that a large fleet is not asked in one burst.
async fn pause() {
    let jitter = Duration::from_millis(fastrand::u64(0..200));
    tokio::time::sleep(PROBE_EVERY.saturating_sub(Duration::from_millis(100)) + jitter).await;
}

/// Resolves a host name, keeping the last good address on failure.
async fn resolve(replica: &Replica) {
    if replica.host.parse::<std::net::IpAddr>().is_ok() {
        return;
    }
    let lookup = tokio::net::lookup_host((replica.host.as_str(), replica.port));
    let Ok(Ok(found)) = tokio::time::timeout(PROBE_TIMEOUT, lookup).await else { return };
    let found: Vec<SocketAddr> = found.collect();
    let current = replica.addr.load_full();
    if current.is_some_and(|addr| found.contains(&addr)) {
        return;
    }
    // IPv4 first: servers are commonly bound to 0.0.0.0, while `localhost` also names ::1.
    let addr = found.iter().find(|a| a.is_ipv4()).or(found.first());
    if let Some(addr) = addr {
        replica.addr.store(Some(Arc::new(*addr)));
    }
}

/// The same list, as far as it matters.
fn same(a: &[Entry], b: &[Entry]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b))
}
