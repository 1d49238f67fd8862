//! A whole gateway in this process: cores, control thread, usage writer.
//!
//! The control thread is an ordinary tokio runtime: it keeps the registry of replicas, publishes
//! the fleet, serves the admin listener, and carries out the drain.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::bodies::Bodies;
use super::core;
use super::decisions::Decisions;
use super::drain;
use super::entry::Entry;
use super::explain;
use super::identity;
use super::models::Loaded;
use super::reload::{self, Reloaded, Reloader, Reloads, Reopen};
use super::shared::{Published, Shared};
use super::side::Side;
use super::supervise::Cores;
use super::watchdog;
use crate::admin::{Flags, Recent, Shard, View};
use crate::config::{self, Config, Cores as CoreList};
use crate::net::{Driver, DriverChoice, Identity};
use crate::prompt::segments::SegmentCache;
use crate::replicas::adapters::{self, Wants};
use crate::replicas::registry::{self, Handle, Registry};
use crate::replicas::share::{self, Share, Stats};
use crate::replicas::{Fleet, Tone, Upkeep};
use crate::runtime::affinity;
use crate::runtime::clock;
use crate::runtime::descriptors;
use crate::runtime::log::{Level, Log};
use crate::runtime::memory;
use crate::runtime::nodes;
use crate::runtime::snapshot::Snapshot;
use crate::runtime::tree::Tree;
use crate::telemetry::{AccessLog, AccessWriter, Exporter, Traces};
use crate::tenants::quota;
use crate::usage::{UsageSink, UsageWriter};

/// Between two looks at the prefix indexes.
const UPKEEP_EVERY: Duration = Duration::from_secs(1);

/// At the end the usage writer gets this long to write what is left.
const WRITER_PATIENCE: Duration = Duration::from_secs(5);

/// And the collector to take what it has not seen yet.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A running gateway.
pub struct Gateway {
    /// Where clients connect.
    pub addrs: Vec<SocketAddr>,
    /// Where metrics and status are, if anywhere.
    pub admin: Option<SocketAddr>,
    /// Clients speak TLS.
    pub tls: bool,
    /// Number of cores.
    pub cores: usize,
    /// What they run on.
    pub driver: Driver,
    flags: Arc<Flags>,
    told_to_drain: AtomicBool,
    usage: UsageSink,
    access: Option<AccessLog>,
    reloader: Reloader,
    stopped: mpsc::Receiver<()>,
    control: Option<JoinHandle<()>>,
    supervisor: Option<JoinHandle<()>>,
    writer: Option<UsageWriter>,
    access_writer: Option<AccessWriter>,
}

impl Gateway {
    /// Starts a gateway; returns when its listeners are bound.
    ///
    /// # Errors
    /// What cannot be had, in words for the operator.
    pub fn start(config: Config) -> Result<Gateway, String> {
        Gateway::start_reloadable(config, None)
    }

    /// The same; a reload reads the configuration by `reopen`.
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub fn start_reloadable(config: Config, reopen: Option<Reopen>) -> Result<Gateway, String> {
        let config = Arc::new(config);
        let log = log(&config);
        let driver = driver(&config, &log)?;
        let cpus = cpus(&config, &log)?;
        let traces = config.otel.as_ref().map(|otel| Arc::new(Traces::new(otel)));
        let (usage, writer) = usage_log(&config, &log, traces.as_ref())?;
        let (access, access_writer) = access_log(&config)?.unzip();
        let (sink, lines) = (usage.clone(), access.clone());
        let stats = Arc::default();
        let share = sharing(&config, &log, &stats)?;
        let mut loaded = Loaded::default();
        let fleet = Arc::new(fleet(&config, cpus.len(), &mut loaded, &log)?);
        let side = Side::start(cpus.len(), || SegmentCache::new(core::SEGMENT_BYTES_MAX))
            .map_err(no_thread)?;
        let readers = Side::start(cpus.len(), || ()).map_err(no_thread)?;
        let identity = shown(&config, &log)?;
        let flags = Arc::new(Flags::default());
        let (loader, wants) = adapters::channel();
        let shared = Arc::new(Shared {
            published: Arc::new(Snapshot::new(Published::new(Arc::clone(&config), fleet, None))),
            identity: identity.map(|identity| Arc::new(Snapshot::new(identity))),
            driver,
            decisions: cpus.iter().map(|_| Decisions::default()).collect(),
            shards: cpus.iter().map(|_| Arc::new(Shard::default())).collect(),
            usage,
            access,
            traces,
            side,
            readers,
            share: stats,
            addresses: Arc::default(),
            bodies: bodies(),
            poisons: Default::default(),
            reloads: Arc::default(),
            quota: budgets(&config, cpus.len(), &log)?,
            loader,
            log,
            flags: Arc::clone(&flags),
        });
        let cores = cpus.len();
        let entry = Entry::open(&config, &shared)?;
        let (doors, admin) = (Arc::clone(&entry.doors), entry.admin_addr());
        let started = Cores::start(Arc::clone(&shared), cpus, Arc::clone(&doors), core::run);
        let started = started.map_err(no_thread)?;
        let (supervisor, stopped) = supervise(started)?;
        let (open_tx, open) = mpsc::channel();
        let (reloader, reloads) = reload::channel();
        let parts = Parts { share, wants, reloader: reloader.clone(), reloads, reopen, loaded };
        let control = thread("control", move || control_thread(&shared, parts, entry, open_tx))?;
        let gateway = Gateway {
            addrs: doors.addrs().to_vec(),
            admin,
            tls: config.server.tls.is_some(),
            cores,
            driver,
            flags,
            told_to_drain: AtomicBool::new(false),
            usage: sink,
            access: lines,
            reloader,
            stopped,
            control: Some(control),
            supervisor: Some(supervisor),
            writer: Some(writer),
            access_writer,
        };
        // Dropped when it does not open: nothing is left of it, and a gateway before goes on.
        open.recv().map_err(|_| "the control thread ended")?.map(|()| gateway)
    }

    /// Has the usage log and the access log opened anew, as after somebody renamed them.
    pub fn reopen_logs(&self) {
        self.usage.reopen();
        self.access.iter().for_each(AccessLog::reopen);
    }

    /// Begins a drain: not ready any more, then no new connections, open requests finish. A second
    /// call ends them. One that goes on already, by the admin listener or since a hand-over, is no
    /// such call: a pod's `preStop` hook asks for it there, and its SIGTERM comes next.
    pub fn drain(&self) {
        self.flags.draining.store(true, Relaxed);
        if self.told_to_drain.swap(true, Relaxed) {
            self.flags.stop_now.store(true, Relaxed);
        }
    }

    /// A successor is about to take over, or has.
    #[must_use]
    pub fn hands_over(&self) -> bool {
        self.flags.handing_over.load(Relaxed) || self.flags.handed_over_ms.load(Relaxed) != 0
    }

    /// Reads the configuration again and goes on by it; waits for what comes of it. Not for a
    /// thread of a runtime.
    ///
    /// # Errors
    /// Why nothing has changed, in words for the operator.
    pub fn reload(&self) -> Reloaded {
        let answered = self.reloader.ask().blocking_recv();
        answered.unwrap_or_else(|_| Err("too many reloads at once, or the end".to_owned()))
    }

    /// The same without waiting; the log tells what comes of it.
    pub fn ask_for_reload(&self) {
        drop(self.reloader.ask());
    }

    /// Waits until every core has ended after a drain, at most `patience`. True: they have.
    #[must_use]
    pub fn wait(&self, patience: Duration) -> bool {
        self.stopped.recv_timeout(patience) != Err(mpsc::RecvTimeoutError::Timeout)
    }

    /// Ends everything: waits for what is under way no longer than the grace time.
    pub fn stop(mut self) {
        self.flags.draining.store(true, Relaxed);
        self.flags.listeners_closed.store(true, Relaxed);
        self.end();
    }

    fn end(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            let _ = supervisor.join();
        }
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
        // After the cores: their last records are in the ring.
        if let Some(writer) = self.writer.take() {
            let _ = writer.stop(WRITER_PATIENCE);
        }
        if let Some(writer) = self.access_writer.take() {
            let _ = writer.stop(WRITER_PATIENCE);
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.flags.draining.store(true, Relaxed);
        self.flags.stop_now.store(true, Relaxed);
        self.end();
    }
}

fn log(config: &Config) -> Arc<Log> {
    let level = match config.log.level {
        config::LogLevel::Off => Level::Off,
        config::LogLevel::Error => Level::Error,
        config::LogLevel::Warn => Level::Warn,
        config::LogLevel::Info => Level::Info,
        config::LogLevel::Debug | config::LogLevel::Trace => Level::Debug,
    };
    let log = Arc::new(Log::new(level, config.log.format == config::LogFormat::Json));
    config.warnings.iter().for_each(|warning| log.warn(warning));
    tell_limit(&log);
    log
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, String> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(no_thread)
}

/// Watches the cores; what it returns says when the last of them has ended.
fn supervise(cores: Cores) -> Result<(JoinHandle<()>, mpsc::Receiver<()>), String> {
    let (ended, stopped) = mpsc::channel();
    let supervisor = thread("supervisor", move || {
        cores.watch();
        let _ = ended.send(());
    })?;
    Ok((supervisor, stopped))
}

fn no_thread(error: std::io::Error) -> String {
    format!("cannot start a thread: {error}")
}

fn bodies() -> Arc<Bodies> {
    Arc::new(Bodies::within(memory::limit_bytes(&Tree::at("/"))))
}

/// The fleet of the configuration, with what the files hold that its pools name.
fn fleet(config: &Config, cores: usize, loaded: &mut Loaded, log: &Log) -> Result<Fleet, String> {
    Ok(Fleet::new(config, cores, &loaded.files(config, log)?, clock::now_ms()))
}

fn driver(config: &Config, log: &Log) -> Result<Driver, String> {
    let choice = match config.server.driver {
        config::Driver::Auto => DriverChoice::Auto,
        config::Driver::IoUring => DriverChoice::IoUring,
        config::Driver::Epoll => DriverChoice::Epoll,
    };
    let (driver, fell_back) = choice.resolve().map_err(|e| e.to_string())?;
    if let Some(why) = fell_back {
        log.warn(&format!("running on epoll: {why}"));
    }
    Ok(driver)
}

/// How many requests there is room for, where that is too little for a busy gateway.
fn tell_limit(log: &Log) {
    let limit = descriptors::limit();
    if limit < descriptors::ENOUGH {
        log.info(&format!(
            "at most {limit} open files, two for each request under way: `expedite doctor` says \
             how to have more"
        ));
    }
}

/// What TLS clients are shown, with a word if that is no longer of use to them.
fn shown(config: &Config, log: &Log) -> Result<Option<Identity>, String> {
    let identity = identity::load(config).map_err(|error| error.to_string())?;
    let remark = identity.as_ref().and_then(|identity| identity::remark(config, identity));
    remark.iter().for_each(|remark| log.warn(remark));
    Ok(identity)
}

fn access_log(config: &Config) -> Result<Option<(AccessLog, AccessWriter)>, String> {
    let Some(access) = &config.log.access else { return Ok(None) };
    let started = AccessWriter::start(access);
    started.map(Some).map_err(|e| format!("cannot open the access log {}: {e}", access.path))
}

fn usage_log(
    config: &Config,
    log: &Arc<Log>,
    traces: Option<&Arc<Traces>>,
) -> Result<(UsageSink, UsageWriter), String> {
    let copy = traces.filter(|_| config.usage.otlp).map(Traces::copy);
    let said = Arc::clone(log);
    let say = move |bad: bool, line: &str| if bad { said.error(line) } else { said.info(line) };
    let started = UsageWriter::start_telling(&config.usage, copy, Box::new(say))
        .map_err(|e| format!("cannot open the usage log {}: {e}", config.usage.path))?;
    started.1.notes().iter().for_each(|note| log.warn(note));
    if config.usage.path == "none" {
        log.warn("usage.path is \"none\": no usage records are kept");
    }
    Ok(started)
}

/// What tells other gateways, and whose word is heard; `None`: this gateway is alone.
fn sharing(config: &Config, log: &Log, stats: &Arc<Stats>) -> Result<Option<Share>, String> {
    let Some(url) = config.share_store() else {
        log.info("no routing.share: load and prefixes of other gateways are not known here");
        return Ok(None);
    };
    let share = Share::new(url.expose(), config.share.every_ms, Arc::clone(stats));
    share.map(Some).map_err(|e| format!("cannot use routing.share: {e}"))
}

/// The store of budgets that other gateways ask too; `None`: this process has its own.
fn budgets(
    config: &Config,
    cores: usize,
    log: &Arc<Log>,
) -> Result<Option<Arc<quota::store::Shared>>, String> {
    let log = Arc::clone(log);
    let say = move |bad: bool, line: &str| if bad { log.warn(line) } else { log.info(line) };
    let shared = quota::store::Shared::new(&config.quota, cores, Box::new(say));
    Ok(shared.map_err(|e| format!("cannot use store in [quota]: {e}"))?.map(Arc::new))
}

/// The CPUs of the cores.
fn cpus(config: &Config, log: &Log) -> Result<Vec<usize>, String> {
    let CoreList::List(list) = &config.server.cores else {
        let allowed = affinity::allowed().map_err(|e| format!("cannot list the CPUs: {e}"))?;
        let auto = nodes::auto(&Tree::at("/"), &allowed);
        auto.why.iter().for_each(|why| log.info(why));
        return Ok(auto.cpus);
    };
    Ok(list.clone())
}

/// What the control thread takes over.
struct Parts {
    share: Option<Share>,
    wants: Wants,
    reloader: Reloader,
    reloads: Reloads,
    reopen: Option<Reopen>,
    loaded: Loaded,
}

fn control_thread(
    shared: &Arc<Shared>,
    parts: Parts,
    entry: Entry,
    open: mpsc::Sender<Result<(), String>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = open.send(Err(format!("cannot start the control thread: {error}")));
            return;
        }
    };
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let config = Arc::clone(&shared.published.load().config);
        let (handle, orders) = registry::channel();
        let Parts { share, wants, reloader, reloads, reopen, loaded } = parts;
        let members = registry(shared, &config);
        tokio::task::spawn_local(members.run(handle.clone(), orders, wants));
        let serving = (reloads, reopen);
        tokio::task::spawn_local(reload::serve(
            Arc::clone(shared),
            handle.clone(),
            serving,
            loaded,
        ));
        tokio::task::spawn_local(keep_indexes(Arc::clone(shared)));
        tokio::task::spawn_local(watchdog::watch(Arc::clone(shared)));
        if let Some(share) = share {
            let shared = Arc::clone(shared);
            tokio::task::spawn_local(async move {
                share::run(share, &shared.log, || Arc::clone(&shared.published.load().fleet)).await;
            });
        }
        if let Some(store) = shared.quota.clone() {
            tokio::task::spawn_local(async move { quota::store::find_servers(&store).await });
        }
        let doors = Arc::clone(&entry.doors);
        let admin = entry.admin.is_some().then(|| Arc::new(view(shared, handle, reloader)));
        tokio::task::spawn_local(entry.open_up(Arc::clone(shared), admin, open));
        let exporting = exporter(shared, &config).map(tokio::task::spawn_local);
        drain::when_asked(&shared.flags, &doors).await;
        if let Some(exporting) = exporting {
            let _ = tokio::time::timeout(LAST_WORDS, exporting).await;
        }
    });
}

/// What sends to the collector, if there is one, until the cores have ended and every record is
/// written.
fn exporter(shared: &Arc<Shared>, config: &Config) -> Option<impl Future<Output = ()> + use<>> {
    let (otel, traces) = (config.otel.clone()?, shared.traces.clone()?);
    let (said, ending) = (Arc::clone(shared), Arc::clone(shared));
    let say = move |bad: bool, line: &str| match bad {
        true => said.log.warn(line),
        false => said.log.info(line),
    };
    let instance = format!("{:016x}", getrandom::u64().unwrap_or_default());
    let exporter = Exporter::new(otel, &instance, traces, Box::new(say));
    Some(
        exporter
            .run(move || ending.flags.cores_ended.load(Relaxed) && ending.usage.outstanding() == 0),
    )
}

fn view(shared: &Arc<Shared>, registry: Handle, reloader: Reloader) -> View {
    let [published, charged, guarded] = std::array::from_fn(|_| Arc::clone(&shared.published));
    let flags = Arc::clone(&shared.flags);
    let [asked, decided, shown, shows, held] = std::array::from_fn(|_| Arc::clone(shared));
    View {
        shards: shared.shards.clone(),
        fleet: Box::new(move || Arc::clone(&published.load().fleet)),
        accounts: Box::new(move || Arc::clone(&charged.load().accounts)),
        secret: Box::new(move || guarded.load().config.server.admin_secret.clone()),
        usage: shared.usage.clone(),
        access: shared.access.clone(),
        traces: shared.traces.clone(),
        share: Arc::clone(&shared.share),
        quota: shared.quota.clone(),
        flags: Arc::clone(&shared.flags),
        driver: shared.driver.name(),
        reload: Box::new(move || reloader.ask()),
        certificate_ends_s: Box::new(move || {
            Some(shows.identity.as_ref()?.load().validity()?.ends_s)
        }),
        bodies_held: Box::new(move || held.bodies.held()),
        reloads: Arc::clone(&shared.reloads),
        drain: Box::new(move || flags.draining.store(true, Relaxed)),
        explain: Box::new(move |meant, body| explain::call(&asked, meant, body)),
        decisions: Box::new(move |last| explain::decisions(&decided, last)),
        recent: Recent::default(),
        snapshot: Box::new(move || explain::snapshot(&shown)),
        body_bytes_max: shared.published.load().body_bytes_max,
        registry,
    }
}

/// The registry, and where it publishes.
fn registry(shared: &Arc<Shared>, config: &Arc<Config>) -> Registry {
    let fleet = Arc::clone(&shared.published.load().fleet);
    let (publishing, logging) = (Arc::clone(shared), Arc::clone(shared));
    let publish = move |of: &Arc<Config>, fleet| {
        let old = publishing.published.load();
        let published = Published::new(Arc::clone(of), fleet, Some(&old));
        publishing.published.publish(published);
    };
    let log = move |tone, line: &str| match tone {
        Tone::Info => logging.log.info(line),
        Tone::Warn => logging.log.warn(line),
    };
    Registry::new(Arc::clone(config), fleet, Box::new(publish), Box::new(log))
}

/// Keeps the prefix index of each pool in step with its replicas, as long as the task lives.
async fn keep_indexes(shared: Arc<Shared>) {
    let mut by_pool: HashMap<Arc<str>, Upkeep> = HashMap::new();
    loop {
        let fleet = Arc::clone(&shared.published.load().fleet);
        for pool in &fleet.pools {
            by_pool.entry(Arc::clone(&pool.name)).or_default().run(pool, clock::now_ms());
        }
        tokio::time::sleep(UPKEEP_EVERY).await;
    }
}
