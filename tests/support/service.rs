//! A gateway as a service: the program, run and replaced as its operators do it.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use serde_json::Value;

/// A running process.
pub(crate) struct Process {
    pub(crate) child: Child,
    out: BufReader<ChildStdout>,
    log: PathBuf,
}

impl Process {
    /// The next line of its standard output; empty at its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("standard output");
        line
    }

    /// Waits until it serves: the address for clients.
    pub(crate) fn listening(&mut self) -> SocketAddr {
        let line = self.line();
        let Some((_, rest)) = line.split_once("http://") else {
            panic!("it does not serve: {line}{}", read(&self.log));
        };
        rest.split(' ').next().expect("address").parse().expect("address")
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("its end")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(sent.expect("kill").success(), "{name} to {pid}");
}

/// A folder with a configuration; what runs by it.
pub(crate) struct Service {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) admin: SocketAddr,
}

impl Service {
    /// In front of these replicas; `server` are lines for `[server]`, `more` whole sections.
    pub(crate) fn new(replicas: &[SocketAddr], server: &str, more: &str) -> Service {
        let folder = tempfile::tempdir().expect("folder");
        let free = TcpListener::bind("127.0.0.1:0").expect("port");
        let admin = free.local_addr().expect("address");
        let list: Vec<_> = replicas.iter().map(|addr| format!("\"http://{addr}\"")).collect();
        let text = format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"{admin}\"\nhandover = \"{}\"\n\
             {server}\n[[pool]]\nname = \"p\"\nreplicas = [{}]\n[usage]\npath = \"{}\"\n\
             [log]\nlevel = \"info\"\n{more}\n",
            folder.path().join("next").display(),
            list.join(", "),
            folder.path().join("usage.jsonl").display(),
        );
        std::fs::write(folder.path().join("gateway.toml"), text).expect("file");
        Service { folder, admin }
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("gateway.toml")
    }

    /// Where a successor asks.
    pub(crate) fn post(&self) -> PathBuf {
        self.folder.path().join("next")
    }

    /// Starts a process with further arguments; its log goes to a file.
    pub(crate) fn start(&self, args: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_expedite"));
        command.args(["serve", "--config"]).arg(self.config()).args(args);
        self.run(command)
    }

    pub(crate) fn run(&self, mut command: Command) -> Process {
        let log = self.folder.path().join("log");
        let file = OpenOptions::new().create(true).append(true).open(&log).expect("log");
        let mut child = command.stdout(Stdio::piped()).stderr(file).spawn().expect("expedite");
        let out = BufReader::new(child.stdout.take().expect("standard output"));
        Process { child, out, log }
    }

    /// What its processes have logged.
    pub(crate) fn log(&self) -> String {
        read(&self.folder.path().join("log"))
    }

    /// Every record, of the log and its rotated files; none is torn.
    pub(crate) fn records(&self) -> Vec<Value> {
        let entries = std::fs::read_dir(self.folder.path()).expect("folder");
        let paths = entries.map(|entry| entry.expect("entry").path());
        let is_log = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("usage.jsonl")
        };
        let mut records = Vec::new();
        for path in paths.filter(is_log) {
            let text = std::fs::read_to_string(&path).expect("records");
            assert!(text.is_empty() || text.ends_with('\n'), "torn: {}", path.display());
            let lines = text.lines();
            records.extend(lines.map(|l| serde_json::from_str::<Value>(l).expect("a record")));
        }
        records
    }

    /// Requests that are listed as open at a kill.
    pub(crate) fn listed(&self) -> usize {
        read(&self.folder.path().join("usage.open.jsonl")).lines().count()
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
