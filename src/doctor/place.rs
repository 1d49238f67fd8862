//! Where a configuration would run: its ports, files and the addresses of its replicas.
//!
//! Binds each port for a moment, creates and removes one file beside the usage log, asks the
//! system's resolver, and connects to replicas without sending anything.

use std::fs::OpenOptions;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use super::{Certificate, Finding, Findings};
use crate::config::{Config, Discover, Replica};
use crate::net::Standing;
use crate::runtime::clock::unix_ms;

/// A replica that does not answer a connect within this is told as such.
const CONNECT: Duration = Duration::from_secs(1);
/// Replicas asked at once.
const ASKED_AT_ONCE: usize = 32;
/// What a tokenizer folder has one of.
const TOKENIZERS: [&str; 2] = ["tokenizer.json", "tekken.json"];

pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut found = Findings::of("place");
    for addr in &config.server.listen {
        port(&format!("listen {addr}"), *addr, &mut found);
    }
    if let Some(addr) = config.server.admin {
        port(&format!("admin {addr}"), addr, &mut found);
    }
    for pool in &config.pools {
        let files = [pool.tokenizer.as_deref(), pool.chat_template.as_deref()];
        for file in files.into_iter().flatten() {
            readable(&format!("tokenizer {}", pool.name), Path::new(file), &mut found);
        }
        if let Some(Discover::File(file)) = &pool.discover {
            readable(&format!("members {}", pool.name), Path::new(file), &mut found);
        }
    }
    usage(&config.usage.path, &mut found);
    let replicas: Vec<_> = config.pools.iter().flat_map(|pool| &pool.replicas).collect();
    for batch in replicas.chunks(ASKED_AT_ONCE) {
        let answers: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> =
                batch.iter().map(|replica| scope.spawn(|| reach(replica))).collect();
            asked.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        for (replica, answer) in batch.iter().zip(answers) {
            told(replica, answer.ok(), &mut found);
        }
    }
    found.all
}

/// Will clients accept the certificate?
pub(super) fn certificate(shown: &Certificate) -> Vec<Finding> {
    let name = "tls";
    let mut found = Findings::of("place");
    let renew = "renew it, then: systemctl reload expedite   (SIGHUP, or POST /reload)";
    match shown.as_ref().map(|validity| validity.map(|it| it.at(unix_ms() / 1000))) {
        Err(error) => {
            found.fail(
                name,
                format!("{error}; serve would not start"),
                "expedite check --config FILE",
            );
        }
        Ok(None) => found.unknown(name, "when the certificate holds cannot be read"),
        Ok(Some(Standing::Good(words))) => found.ok(name, format!("the certificate is {words}")),
        Ok(Some(Standing::Ending(words))) => {
            found.warn(name, format!("the certificate: {words}"), renew);
        }
        Ok(Some(Standing::Refused(words))) => {
            found.fail(name, format!("the certificate: {words}; clients go away"), renew);
        }
    }
    found.all
}

/// Can the address be bound?
fn port(name: &str, addr: SocketAddr, found: &mut Findings) {
    let port = addr.port();
    match TcpListener::bind(addr) {
        Ok(_) => found.ok(name, "free"),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => found.fail(
            name,
            "taken, by a gateway that runs already or by another program",
            format!("ss -ltnp 'sport = :{port}'   tells by which"),
        ),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.fail(
            name,
            error.to_string(),
            "AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit, or a port from 1024 up",
        ),
        Err(error) => found.fail(name, error.to_string(), "ip address   shows this host's own"),
    }
}

/// Can the file be read, or of a folder its tokenizer?
fn readable(name: &str, path: &Path, found: &mut Findings) {
    let opened = match path.is_dir() {
        true => {
            TOKENIZERS.iter().map(|file| std::fs::File::open(path.join(file))).reduce(Result::or)
        }
        false => Some(std::fs::File::open(path)),
    };
    let shown = path.display();
    match opened {
        Some(Ok(_)) => found.ok(name, format!("{shown} can be read")),
        Some(Err(error)) => found.fail(
            name,
            format!("{shown}: {error}; serve would not start"),
            format!("ls -l {shown}   as the gateway's user"),
        ),
        None => {}
    }
}

/// Can records be written?
fn usage(path: &str, found: &mut Findings) {
    let name = "usage";
    if path == "none" || path == "-" {
        found.ok(name, format!("usage.path is \"{path}\": no file"));
        return;
    }
    let file = Path::new(path);
    let tried = match file.exists() {
        true => OpenOptions::new().append(true).open(file).map(|_| ()),
        false => beside(file),
    };
    match tried {
        Ok(()) => found.ok(name, format!("{path} can be written")),
        Err(error) => {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).display();
            let says = format!("{path}: {error}; serve would not start");
            found.fail(name, says, format!("mkdir -p {folder} && chown USER {folder}"));
        }
    }
}

/// Makes a file where `file` would be made, and removes it.
fn beside(file: &Path) -> io::Result<()> {
    let name = format!(".expedite-doctor-{}", std::process::id());
    let trial = file.with_file_name(name);
    OpenOptions::new().write(true).create_new(true).open(&trial)?;
    std::fs::remove_file(trial)
}

/// What became of looking a replica up and connecting to it.
#[derive(Debug, PartialEq, Eq)]
enum Reached {
    Answers(SocketAddr),
    Silent(SocketAddr, String),
    Unknown(String),
}

fn reach(replica: &Replica) -> Reached {
    let found = (replica.host.as_str(), replica.port).to_socket_addrs();
    let addr = match found.map(|mut all| all.next()) {
        Ok(Some(addr)) => addr,
        Ok(None) => return Reached::Unknown("the name has no address".to_owned()),
        Err(error) => return Reached::Unknown(error.to_string()),
    };
    match TcpStream::connect_timeout(&addr, CONNECT) {
        Ok(_) => Reached::Answers(addr),
        Err(error) => Reached::Silent(addr, error.to_string()),
    }
}

fn told(replica: &Replica, reached: Option<Reached>, found: &mut Findings) {
    let (name, host) = (format!("replica {}", replica.id), &replica.host);
    match reached {
        Some(Reached::Answers(addr)) => found.ok(&name, format!("{addr} accepts connections")),
        Some(Reached::Silent(addr, why)) => found.warn(
            &name,
            format!("{addr}: {why}; it may come up later"),
            format!("curl {}/health", replica.url),
        ),
        Some(Reached::Unknown(why)) => {
            found.warn(&name, format!("{host}: {why}"), format!("getent hosts {host}"));
        }
        None => found.unknown(&name, "it was not asked"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn one(run: impl FnOnce(&mut Findings)) -> Finding {
        let mut found = Findings::of("place");
        run(&mut found);
        found.all.remove(0)
    }

    #[test]
    fn a_port_is_free_or_taken() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = holder.local_addr().unwrap();
        assert_eq!(one(|found| port("a", addr, found)).level, Level::Fail);
        assert_eq!(one(|found| port("a", ([127, 0, 0, 1], 0).into(), found)).level, Level::Ok);
        let foreign = "192.0.2.1:1".parse().unwrap();
        assert_eq!(one(|found| port("a", foreign, found)).level, Level::Fail);
    }

    #[test]
    fn a_folder_is_readable_when_its_tokenizer_is() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(one(|found| readable("t", folder.path(), found)).level, Level::Fail);
        std::fs::write(folder.path().join("tekken.json"), "{}").unwrap();
        assert_eq!(one(|found| readable("t", folder.path(), found)).level, Level::Ok);
        let gone = folder.path().join("gone");
        assert_eq!(one(|found| readable("t", &gone, found)).level, Level::Fail);
    }

    #[test]
    fn the_usage_log_is_tried_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        assert_eq!(one(|found| usage(&at("usage.jsonl"), found)).level, Level::Ok);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        std::fs::write(at("there"), "line\n").unwrap();
        assert_eq!(one(|found| usage(&at("there"), found)).level, Level::Ok);
        assert_eq!(std::fs::read_to_string(at("there")).unwrap(), "line\n");
        assert_eq!(one(|found| usage(&at("no/such/usage.jsonl"), found)).level, Level::Fail);
        assert_eq!(one(|found| usage("none", found)).level, Level::Ok);
    }

    #[test]
    fn a_replica_answers_is_silent_or_has_no_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let replica = Replica::parse(&format!("http://{addr}")).unwrap();
        assert_eq!(reach(&replica), Reached::Answers(addr));
        drop(listener);
        assert!(matches!(reach(&replica), Reached::Silent(..)));
        let unknown = Reached::Unknown("no such name".to_owned());
        let finding = one(|found| told(&replica, Some(unknown), found));
        assert!(finding.level == Level::Warn && finding.mend.is_some());
    }
}
