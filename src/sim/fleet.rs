//! The fleet: threads, ports, and the handle that tests, `demo` and the command line hold.
//!
//! Replica `i` lives on thread `i % threads` and is touched by no other. What others want of it
//! goes as a [`Command`] through that thread's mailbox, which a byte on a loopback connection
//! wakes; an idle fleet costs nothing.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::config::{OnTerm, SimConfig};
use super::door;
use super::exact::Exact;
use super::fault::Fault;
use super::kv_events::KvEvents;
use super::kv_transfer::Transfers;
use super::pace::Clock;
use super::replica::{DoorState, Replica};
use super::stats::Stats;
use crate::net::{self, Driver, DriverChoice};
use crate::prompt::model::Model;

/// From the end signal to the closed port; vLLM takes 0.1 to 1.4 s.
const TERM_TO_CLOSED: Duration = Duration::from_millis(200);

/// How long the handle waits for a thread that does not answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// What a thread can be asked.
pub(super) enum Command {
    /// Sets the fault of a replica (its place within the fleet) and says so.
    Fault(usize, Box<Fault>, Sender<()>),
    /// Sends a copy of a replica's counters.
    Stats(usize, Sender<Stats>),
    /// Behaves as on SIGTERM.
    Term(OnTerm),
    /// Ends the thread.
    Stop,
}

struct Mailbox {
    commands: Mutex<VecDeque<Command>>,
    bell: Mutex<TcpStream>,
}

/// What the threads of a fleet share.
pub(super) struct Shared {
    addrs: Vec<SocketAddr>,
    /// Of the KV events of each replica, where they are published.
    kv_addrs: Vec<(SocketAddr, SocketAddr)>,
    mailboxes: Vec<Mailbox>,
    /// Blocks that its replicas hold for each other.
    pub(super) transfers: Transfers,
}

impl Shared {
    /// Place of the replica on `port`.
    pub(super) fn find(&self, port: u16) -> Option<usize> {
        self.addrs.iter().position(|addr| addr.port() == port)
    }

    /// Asks the thread of a replica; it answers in its own time.
    pub(super) fn send(&self, replica: usize, command: Command) {
        self.send_thread(replica % self.mailboxes.len().max(1), command);
    }

    fn send_thread(&self, thread: usize, command: Command) {
        let Some(mailbox) = self.mailboxes.get(thread) else { return };
        let mut commands = mailbox.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.push_back(command);
        drop(commands);
        let mut bell = mailbox.bell.lock().unwrap_or_else(PoisonError::into_inner);
        // A full socket has enough wake-ups in it, a closed one has no thread behind it.
        let _ = bell.write(&[1]);
    }

    fn take(&self, thread: usize) -> VecDeque<Command> {
        let Some(mailbox) = self.mailboxes.get(thread) else { return VecDeque::new() };
        std::mem::take(&mut *mailbox.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts fleets.
pub struct Fleet;

impl Fleet {
    /// Loads the tokenizer if there is one, binds all ports, starts the threads and returns.
    ///
    /// # Errors
    /// A port is taken, the threads cannot be started, or the tokenizer cannot be loaded.
    pub fn start(config: SimConfig) -> io::Result<SimHandle> {
        let threads = config.threads.clamp(1, config.ports.len().max(1));
        let (driver, fallback) = DriverChoice::Auto.resolve().map_err(io::Error::other)?;
        let model = config.tokenizer.as_deref().map(|folder| Model::load(folder, None));
        let model = model.transpose().map_err(io::Error::other)?.map(Arc::new);
        let mut listeners = Vec::new();
        let mut kv_doors = Vec::new();
        for (i, &port) in config.ports.iter().enumerate() {
            listeners.push(door::bind(SocketAddr::new(config.host, port))?);
            if let Some(base) = config.kv_events_port {
                kv_doors.push(bind_kv(&config, base, i)?);
            }
        }
        let kv_addrs = kv_doors.iter().map(KvDoors::addrs).collect::<io::Result<Vec<_>>>()?;
        let addrs =
            listeners.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        let mut bells = Vec::new();
        let mut mailboxes = Vec::new();
        for _ in 0..threads {
            let (near, far) = socket_pair()?;
            near.set_nonblocking(true)?;
            mailboxes.push(Mailbox { commands: Mutex::default(), bell: Mutex::new(near) });
            bells.push(far);
        }
        let shared =
            Arc::new(Shared { addrs, kv_addrs, mailboxes, transfers: Transfers::default() });
        let config = Arc::new(config);
        let mut doors: Vec<Vec<Doors>> = (0..threads).map(|_| Vec::new()).collect();
        let mut kv_doors = kv_doors.into_iter();
        for (replica, listener) in listeners.into_iter().enumerate() {
            doors[replica % threads].push(Doors { replica, listener, kv: kv_doors.next() });
        }
        let mut joins = Vec::new();
        for (index, (doors, bell)) in doors.into_iter().zip(bells).enumerate() {
            let (config, shared) = (Arc::clone(&config), Arc::clone(&shared));
            let thread = Thread { index, config, shared, doors, bell, model: model.clone() };
            let name = format!("sim-{index}");
            joins.push(std::thread::Builder::new().name(name).spawn(move || thread.run(driver))?);
        }
        let fallback = fallback.map(|cause| cause.to_string());
        Ok(SimHandle { shared, joins, fallback })
    }
}

/// The sockets of one replica.
struct Doors {
    replica: usize,
    listener: TcpListener,
    kv: Option<KvDoors>,
}

/// Where its KV events are published and replayed.
struct KvDoors {
    events: TcpListener,
    replay: TcpListener,
}

impl KvDoors {
    fn addrs(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.events.local_addr()?, self.replay.local_addr()?))
    }
}

/// Binds both ports of a replica: two behind one another from `base` on, or any if that is 0.
fn bind_kv(config: &SimConfig, base: u16, replica: usize) -> io::Result<KvDoors> {
    let port = |more: usize| match base {
        0 => Ok(0),
        _ => u16::try_from(usize::from(base) + 2 * replica + more)
            .map_err(|_| io::Error::other("the ports of KV events go beyond 65535")),
    };
    let bind = |port: u16| door::bind(SocketAddr::new(config.host, port));
    Ok(KvDoors { events: bind(port(0)?)?, replay: bind(port(1)?)? })
}

/// Two ends of a loopback connection.
fn socket_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    loop {
        let (far, peer) = listener.accept()?;
        if peer == near.local_addr()? {
            return Ok((near, far));
        }
    }
}

/// A running fleet; dropping it stops it.
pub struct SimHandle {
    shared: Arc<Shared>,
    joins: Vec<JoinHandle<io::Result<()>>>,
    fallback: Option<String>,
}

impl SimHandle {
    /// Number of replicas.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.shared.addrs.len()
    }

    /// Address of a replica.
    ///
    /// # Panics
    /// There is no such replica.
    #[must_use]
    pub fn addr(&self, replica: usize) -> SocketAddr {
        self.shared.addrs[replica]
    }

    /// Addresses at which a replica publishes its KV events and replays them, if it does.
    #[must_use]
    pub fn kv_addrs(&self, replica: usize) -> Option<(SocketAddr, SocketAddr)> {
        self.shared.kv_addrs.get(replica).copied()
    }

    /// Why the fleet runs on epoll instead of io_uring, if it does.
    #[must_use]
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// The counters of a replica now.
    ///
    /// # Panics
    /// There is no such replica, or its thread is gone.
    #[must_use]
    pub fn stats(&self, replica: usize) -> Stats {
        assert!(replica < self.replicas(), "no replica {replica}");
        let (answer, receive) = channel();
        self.shared.send(replica, Command::Stats(replica, answer));
        wait(&receive)
    }

    /// Gives a replica a fault, or clears it with [`Kind::None`](super::Kind::None); in force on
    /// return, but for the port of `refuse` and `backlog`, which follows within a turn.
    ///
    /// # Panics
    /// There is no such replica, or its thread is gone.
    pub fn fault(&self, replica: usize, fault: Fault) {
        assert!(replica < self.replicas(), "no replica {replica}");
        let (answer, receive) = channel();
        self.shared.send(replica, Command::Fault(replica, Box::new(fault), answer));
        wait(&receive);
    }

    /// Behaves as on SIGTERM, but for the end of the process: new requests get 500, ports close.
    pub fn terminate(&self, on_term: OnTerm) {
        for thread in 0..self.shared.mailboxes.len() {
            self.shared.send_thread(thread, Command::Term(on_term));
        }
    }

    /// Ends all threads; every connection is closed.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        for thread in 0..self.shared.mailboxes.len() {
            self.shared.send_thread(thread, Command::Stop);
        }
        for join in self.joins.drain(..) {
            // A thread that failed has said so on standard error.
            let _ = join.join();
        }
    }
}

impl Drop for SimHandle {
    fn drop(&mut self) {
        self.end();
    }
}

fn wait<T>(receive: &Receiver<T>) -> T {
    receive.recv_timeout(ANSWER_WAIT).expect("the simulator's thread answers")
}

struct Thread {
    index: usize,
    config: Arc<SimConfig>,
    shared: Arc<Shared>,
    doors: Vec<Doors>,
    bell: TcpStream,
    model: Option<Arc<Model>>,
}

impl Thread {
    fn run(self, driver: Driver) -> io::Result<()> {
        let index = self.index;
        let ended = net::run(driver, self.serve()).and_then(|ended| ended);
        if let Err(e) = &ended {
            eprintln!("expedite sim: thread {index}: {e}");
        }
        ended
    }

    async fn serve(self) -> io::Result<()> {
        let clock = Clock::new();
        let exact = self.model.map(|model| {
            model.tokenizer().warm();
            Rc::new(Exact::new(model, self.config.model_len_max))
        });
        let mut replicas = Vec::new();
        for Doors { replica: i, listener, kv } in self.doors {
            let port = listener.local_addr()?.port();
            let (config, shared) = (Arc::clone(&self.config), Arc::clone(&self.shared));
            let kv_events = kv.map(|doors| KvEvents::open(doors.events, doors.replay, &config));
            let kv_events = kv_events.transpose()?;
            let exact = exact.clone();
            let replica = Rc::new(Replica::new(port, config, shared, clock, exact, kv_events));
            if let Some(engine) = &replica.engine {
                let told = Rc::clone(&replica);
                net::spawn(Rc::clone(engine).drive(move |engine| told.stepped(engine)));
            }
            net::spawn(door::keep(Rc::clone(&replica), listener));
            replicas.push((i, replica));
        }
        let mut bell = net::Stream::from_std(self.bell)?;
        let mut rings = [0; 64];
        loop {
            bell.recv(&mut rings).await?;
            for command in self.shared.take(self.index) {
                match command {
                    Command::Stop => return Ok(()),
                    Command::Fault(i, fault, answer) => {
                        for (_, replica) in replicas.iter().filter(|(at, _)| *at == i) {
                            replica.set_fault(*fault.clone());
                        }
                        // The asker may have given up.
                        let _ = answer.send(());
                    }
                    Command::Stats(i, answer) => {
                        for (_, replica) in replicas.iter().filter(|(at, _)| *at == i) {
                            let _ = answer.send(replica.stats());
                        }
                    }
                    Command::Term(on_term) => {
                        for (_, replica) in &replicas {
                            replica.terminating.set(Some(on_term));
                            net::spawn(close_soon(Rc::clone(replica)));
                        }
                    }
                }
            }
        }
    }
}

async fn close_soon(replica: Rc<Replica>) {
    net::sleep(TERM_TO_CLOSED).await;
    replica.door.set(DoorState::Refusing);
    replica.door_changed.ring();
}
