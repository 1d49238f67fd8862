//! The checked values of the configuration, as the other modules read them.
//!
//! Plain data: every string is substituted, every number in its range, every name known. Owned by
//! whoever holds the [`Config`]; immutable once published. Units are in the names.

use std::net::SocketAddr;

use super::effective::Effective;
use super::secret::{KeyDigest, Secret};
use super::telemetry::{Log, Otel};

/// The whole configuration. Made by [`Config::open`], [`Config::load`], [`Config::from_text`] or
/// [`Config::zero`]; there is no unchecked one.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[server]`: listeners, cores, limits of the client side.
    pub server: Server,
    /// `[[pool]]`: at least one.
    pub pools: Vec<Pool>,
    /// `[routing]`.
    pub routing: Routing,
    /// `[routing]` `share` and `share_every_ms`; see [`Config::share_store`].
    pub share: Share,
    /// `routing.cache_salt_secret`: keeps tenants from learning each other's prompts by timing.
    pub cache_salt_secret: Option<Secret>,
    /// `[admission]`.
    pub admission: Admission,
    /// `[timeouts]`.
    pub timeouts: Timeouts,
    /// `[retry]`.
    pub retry: Retry,
    /// `[quota]`.
    pub quota: Quota,
    /// `[[tenant]]`: empty means that every caller is the one open tenant.
    pub tenants: Vec<Tenant>,
    /// `[tier.NAME]`: always has "default".
    pub tiers: Vec<Tier>,
    /// `[usage]`.
    pub usage: UsageConfig,
    /// `[log]`.
    pub log: Log,
    /// Where traces go; `None`: nowhere.
    pub otel: Option<Otel>,
    /// What the operator should know: features that are not in this version, risky choices.
    pub warnings: Vec<String>,
    pub(super) effective: Effective,
}

/// `[server]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Client listeners; at least one, all different. Default `0.0.0.0:8080`.
    pub listen: Vec<SocketAddr>,
    /// The admin listener, never one of `listen`; `None` for "none". Default `127.0.0.1:9090`.
    pub admin: Option<SocketAddr>,
    /// What callers of the admin listener prove themselves by; `None`: whoever reaches it may.
    pub admin_secret: Option<Secret>,
    /// Unix socket by which a new process takes over from a running one; `None`: it cannot.
    pub handover: Option<String>,
    /// Which CPUs run a core thread.
    pub cores: Cores,
    /// Which kernel interface the cores use.
    pub driver: Driver,
    /// The files of TLS; `None`: plain HTTP.
    pub tls: Option<TlsFiles>,
    /// HTTP/2 by prior knowledge; not in this version.
    pub h2c: bool,
    /// Largest request body in bytes. Default 8 MiB.
    pub body_bytes_max: usize,
    /// Longest answer that is no stream, in bytes. Default 1 GiB.
    pub answer_bytes_max: u64,
    /// Most bytes of bodies that are held at once; `None`: a quarter of the memory.
    pub bodies_bytes_max: Option<u64>,
    /// Most connections of one client's address at a time; 0 = any. Default 0.
    pub connections_per_address_max: u32,
    /// What a client's half-close means.
    pub half_close: HalfClose,
}

/// `server.tls`: PEM files, each read at the start and at every reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and what is between it and its root.
    pub cert: String,
    /// Its private key.
    pub key: String,
    /// The roots of clients' certificates; `None`: clients need none.
    pub client_ca: Option<String>,
}

/// `server.cores`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// Every CPU that this process may run on; of several NUMA nodes those of one
    /// ([`nodes::auto`](crate::runtime::nodes::auto)).
    Auto,
    /// These CPU numbers, all different, at least one.
    List(Vec<usize>),
}

/// `server.driver`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// io_uring, or epoll with a warning where io_uring is denied.
    Auto,
    /// io_uring or no start.
    IoUring,
    /// epoll.
    Epoll,
}

/// `server.half_close`: what a FIN from a client with a request under way means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfClose {
    /// The client is gone: its request is cancelled (as hyper's default does).
    Gone,
    /// The client still reads: serve it to the end.
    Allow,
}

/// `[[pool]]`: replicas that serve the same base model.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Name of the pool, unique; also a name by which requests may ask for it.
    pub name: String,
    /// Model name sent upstream; `None`: learned from `/v1/models`.
    pub model: Option<String>,
    /// Further names by which requests may ask for this pool.
    pub aliases: Vec<String>,
    /// At least one, unless they are discovered.
    pub replicas: Vec<Replica>,
    /// Sent upstream as `Authorization: Bearer`; a tenant's key never is.
    pub api_key: Option<Secret>,
    /// How replicas behind `https://` are spoken to; `None`: by what the system trusts.
    pub tls: Option<UpstreamTls>,
    /// Where further replicas are found.
    pub discover: Option<Discover>,
    /// Folder of the tokenizer.
    pub tokenizer: Option<String>,
    /// File of a chat template that stands in for the folder's own (the engine's
    /// `--chat-template`).
    pub chat_template: Option<String>,
    /// Context window in tokens; `None`: learned from `max_model_len`.
    pub context_tokens: Option<u64>,
    /// KV block size in tokens; `None`: learned from `vllm:cache_config_info`.
    pub block_size: Option<u64>,
    /// Sequences that an engine runs at once, its `--max-num-seqs`; `None`: learned.
    pub sequences_max: Option<u64>,
    /// KV event source, `{host}` standing for a replica's host; `None`: what the engine tells.
    pub kv_events: Option<String>,
    /// How LoRA adapters are treated.
    pub adapters: Adapters,
    /// The part of the work that the pool does.
    pub role: Role,
    /// The other pool of a disaggregated pair.
    pub pair: Option<String>,
    /// Of a decode pool: prompt tokens that must be left to compute for the pair to do it; `None`:
    /// [`PREFILL_TOKENS_MIN`].
    pub prefill_tokens_min: Option<u64>,
    /// Hosts from which the engines may fetch what messages name; `None`: any public one.
    pub media_hosts: Option<Vec<String>>,
    /// Service level objective.
    pub slo: Slo,
    /// The kind of engine whose step times predictions start from.
    pub engine: EngineKind,
    /// Prices for usage records.
    pub price: Option<Price>,
}

/// One vLLM server.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// `http://host:port` or `https://host:port`, in lower case, without a path.
    pub url: String,
    /// Host name or address; an IPv6 address without its brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Unique over all pools; default `host:port`.
    pub id: String,
    /// Failure zone, if told.
    pub zone: Option<String>,
    /// Share relative to the pool's other replicas. Default 1.
    pub weight: f64,
    /// The name in its certificate where its source tells one; `None`: the pool's, or its host.
    pub server_name: Option<String>,
}

/// `pool.tls`: PEM files, each read at the start and at every reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Roots of the replicas' certificates, or these themselves; `None`: what the system trusts.
    pub ca: Option<String>,
    /// What the gateway proves itself by where replicas ask for it.
    pub cert: Option<String>,
    /// Its private key.
    pub key: Option<String>,
    /// The name in the replicas' certificates; `None`: each one's host.
    pub server_name: Option<String>,
}

impl Replica {
    /// Reads `http://host:port` or `https://host[:port]`, with an optional final slash.
    ///
    /// # Errors
    /// What is wrong with it, without repeating it.
    pub fn parse(url: &str) -> Result<Replica, &'static str> {
        super::pool::parse_replica(url)
    }

    /// The authority for a `Host` field: `host:port`, IPv6 in brackets.
    pub fn authority(&self) -> &str {
        self.url.split_once("://").map_or(&self.url, |(_, authority)| authority)
    }

    /// Does it speak TLS?
    pub fn is_secure(&self) -> bool {
        self.url.starts_with("https://")
    }

    /// The same one behind TLS, with this name in its certificate.
    pub fn secured(self, name: &str) -> Replica {
        let url = format!("https://{}", self.authority());
        Replica { url, server_name: Some(name.to_owned()), ..self }
    }
}

/// `pool.discover`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discover {
    /// The addresses of a DNS name.
    Dns(DnsName),
    /// The path of a file with one replica a line.
    File(String),
    /// The endpoints of a Kubernetes service.
    Kubernetes(KubernetesService),
}

/// `pool.discover.dns`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsName {
    /// The name.
    pub name: String,
    /// Port of its addresses; `None`: the name is one of SRV records, which have ports.
    pub port: Option<u16>,
    /// The name server to ask; `None`: the system's.
    pub server: Option<SocketAddr>,
}

/// `pool.discover.kubernetes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesService {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub service: String,
    /// Number or name of the endpoints' port; `None`: `http`, or the first.
    pub port: Option<String>,
    /// Path of a kubeconfig; `None`: the pod's service account, or the user's own.
    pub kubeconfig: Option<String>,
}

/// `pool.adapters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapters {
    /// Learn which are resident.
    Auto,
    /// Load on demand too.
    Load,
}

/// Fewer tokens than this a decode pool computes itself: a quarter of a step of vLLM's 2,048
/// tokens, which lengthens one step of the sequences that decode there by less than a hand-over
/// costs the request in round trips.
pub const PREFILL_TOKENS_MIN: u64 = 512;

/// `pool.role`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Prefill and decode.
    Both,
    /// Prefill for its pair; no client asks for it by name.
    Prefill,
    /// Decode; serves clients, whose long prompts its pair prefills.
    Decode,
}

/// `pool.engine`: a published profile of step times. What a pool observes scales it, so that the
/// shape matters more than the speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// An 8B model on one A100.
    A100_8b,
    /// A 70B model on two.
    A100_70bTp2,
    /// An 8B model with LoRA adapters.
    A100_8bLora,
}

/// `pool.slo`: what counts as a good answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slo {
    /// Time to the first token, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// Time per output token after the first, in milliseconds.
    pub tpot_ms: Option<f64>,
}

/// `pool.price`: money per million tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Input tokens that were computed.
    pub input: f64,
    /// Input tokens that came from the prefix cache; default: as `input`.
    pub cached: f64,
    /// Output tokens.
    pub output: f64,
}

/// `[routing]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// How a pool chooses a replica.
    pub policy: Policy,
    /// Any caller may choose a policy for a request by the field `x-gateway-policy`; otherwise only
    /// tenants that [may](Tenant::may_choose_policy).
    pub policy_header: bool,
}

/// `routing.policy`. The names are those of `routing::Policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The least predicted cost in time.
    Cost,
    /// Each in turn.
    RoundRobin,
    /// Fewest requests in flight.
    LeastRequests,
    /// The less loaded of two random ones.
    P2c,
    /// The replica that had the prefix last, up to a threshold of requests.
    PrefixAffinity,
    /// Uncached prefill times requests.
    Lmetric,
    /// Most cached, or the shortest queue when imbalanced, as SMG's and sglang's router.
    CacheAware,
    /// As Preble's E2.
    Preble,
    /// As Dynamo's KV router.
    Dynamo,
    /// As llm-d's scorers.
    LlmD,
}

impl Policy {
    /// All, the default first.
    pub const ALL: [Policy; 10] = [
        Policy::Cost,
        Policy::RoundRobin,
        Policy::LeastRequests,
        Policy::P2c,
        Policy::PrefixAffinity,
        Policy::Lmetric,
        Policy::CacheAware,
        Policy::Preble,
        Policy::Dynamo,
        Policy::LlmD,
    ];

    /// As the file spells it.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Cost => "cost",
            Policy::RoundRobin => "round_robin",
            Policy::LeastRequests => "least_requests",
            Policy::P2c => "p2c",
            Policy::PrefixAffinity => "prefix_affinity",
            Policy::Lmetric => "lmetric",
            Policy::CacheAware => "cache_aware",
            Policy::Preble => "preble",
            Policy::Dynamo => "dynamo",
            Policy::LlmD => "llm_d",
        }
    }
}

/// What several gateways in front of one fleet tell each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Through which store.
    pub store: ShareStore,
    /// Time between two batches, 50 to 1,000 ms.
    pub every_ms: u64,
}

/// `routing.share`.
#[derive(Clone, Debug, PartialEq)]
pub enum ShareStore {
    /// The one of `[quota]`, when that is a `redis://` URL.
    Quota,
    /// None: each gateway routes by its own view.
    None,
    /// A Redis URL, which may hold a password.
    Redis(Secret),
}

/// `[admission]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Admission {
    /// Share of KV space kept free, 0 to 0.9.
    pub headroom_ratio: f64,
    /// Age past which a scraped signal is not believed.
    pub stale_ms: u64,
    /// Longest wait in the queue; 0: nobody waits.
    pub queue_ms_max: u64,
    /// Most requests in the queue of one pool; 0: nobody waits.
    pub queue_requests_max: u64,
}

/// `[timeouts]`, in milliseconds; 0 = none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP connect to a replica.
    pub connect_ms: u64,
    /// From the request sent to the first content event.
    pub first_token_ms: u64,
    /// Between two events after the first.
    pub next_token_ms: u64,
    /// From a connection's first byte of a head to its last.
    pub client_head_ms: u64,
    /// A kept-alive client connection without a request.
    pub client_idle_ms: u64,
    /// Comment lines while a stream is silent.
    pub sse_keepalive_ms: u64,
}

/// `[retry]`: before the first content event only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    /// Attempts of one request, the first included; 1 to 10.
    pub attempts_max: u32,
    /// Retries allowed per request over the recent past of a core, all its pools together; 0 to 1,
    /// 0 = none. What found a closed port costs nothing and is tried elsewhere all the same.
    pub budget_ratio: f64,
}

/// `[quota]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// Where the counters live.
    pub store: QuotaStore,
    /// What happens while the store is away.
    pub on_store_down: OnStoreDown,
    /// Longest wait for a store's decision, in milliseconds.
    pub timeout_ms: u64,
    /// After this time without a sign of life a gateway's requests no longer count as in flight.
    pub lease_ms: u64,
    /// The limit on its answer that a request without one gets, in tokens, when its tenant's
    /// tokens are limited.
    pub output_tokens_default: u64,
}

/// `quota.store`.
#[derive(Clone, Debug, PartialEq)]
pub enum QuotaStore {
    /// This process.
    Memory,
    /// A Redis URL, which may hold a password.
    Redis(Secret),
}

/// `quota.on_store_down`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreDown {
    /// Go on with local limits.
    Local,
    /// Refuse requests.
    Refuse,
}

/// `[[tenant]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tenant {
    /// Unique.
    pub id: String,
    /// Digests of its keys; several during a rotation.
    pub keys: Vec<KeyDigest>,
    /// Name of one of [`Config::tiers`].
    pub tier: String,
    /// What all its keys together may spend.
    pub limits: TenantLimits,
    /// Keys that have limits of their own besides.
    pub key_limits: Vec<(KeyDigest, TenantLimits)>,
    /// Names of pools that it may use; `["*"]`: all.
    pub pools: Vec<String>,
    /// It may choose a routing policy for a request by the field `x-gateway-policy`.
    pub may_choose_policy: bool,
    /// Tenants of one group share cached prefixes where [`Config::cache_salt_secret`] is set;
    /// `None`: it shares them with nobody.
    pub trust_group: Option<String>,
}

/// What a tenant or a key may spend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// Refill rate of its token bucket; `None`: unlimited.
    pub tokens_per_second: Option<u64>,
    /// Size of its token bucket; `None`: ten seconds' refill.
    pub burst_tokens: Option<u64>,
    /// Most sequences at once; `None`: unlimited.
    pub in_flight_max: Option<u64>,
}

impl Tenant {
    /// May this tenant use the pool of that name?
    pub fn may_use(&self, pool: &str) -> bool {
        self.pools.iter().any(|allowed| allowed == "*" || allowed == pool)
    }
}

/// `[tier.NAME]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// The NAME.
    pub name: String,
    /// Share of the queue relative to other tiers.
    pub weight: f64,
    /// Lower is served first, 0 to 100.
    pub priority: u64,
    /// Base deadline of a request; 0 = none.
    pub deadline_ms: u64,
}

/// `[usage]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageConfig {
    /// A file's path, "-" for stdout, "none" for no records.
    pub path: String,
    /// What happens while records cannot be written.
    pub on_full: OnFull,
    /// Where requests are listed that a killed process left open.
    pub open: OpenList,
    /// The file is renamed and begun anew once it has so many bytes; 0 = never.
    pub rotate_bytes: u64,
    /// Or when so many hours, counted from 1970 in UTC, are over; 0 = never.
    pub rotate_hours: u64,
    /// So many rotated files are kept; 0 = all.
    pub keep: u64,
    /// The stream that gets a copy of each record.
    pub stream: Option<UsageStream>,
    /// Each record also goes to the collector of `[otel]`, as a log record.
    pub otlp: bool,
}

/// `usage.open`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenList {
    /// `usage.open.jsonl` for the path `usage.jsonl`; nowhere for stdout, a pipe or a device.
    Beside,
    /// This file.
    File(String),
    /// Nowhere: requests that are open at a kill leave no trace.
    None,
}

/// `usage.stream` and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageStream {
    /// Key of the stream.
    pub name: String,
    /// `redis://` URL of its server, which may hold a password.
    pub store: Secret,
    /// About so many entries are kept.
    pub length_max: u64,
}

/// `usage.on_full`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// New requests get 503 until a write succeeds again.
    Refuse,
    /// Records are dropped and counted.
    Drop,
}
