//! A Redis server of a test's own: on a free port, without a disk, gone with the test.

#![allow(dead_code)]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

pub(crate) struct Redis {
    pub(crate) port: u16,
    child: Child,
}

impl Redis {
    pub(crate) fn start() -> Redis {
        Redis::with(&[])
    }

    /// With further options.
    pub(crate) fn with(options: &[&str]) -> Redis {
        // Somebody else may take the port in between: then the server ends, and another is tried.
        for _ in 0..10 {
            let free = TcpListener::bind("127.0.0.1:0").expect("port");
            let port = free.local_addr().expect("address").port();
            drop(free);
            if let Some(redis) = Redis::on(port, options) {
                return redis;
            }
        }
        panic!("redis-server does not start: scripts/test installs it");
    }

    fn on(port: u16, options: &[&str]) -> Option<Redis> {
        let mut child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server: scripts/test installs it");
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        for _ in 0..1000 {
            if TcpStream::connect(addr).is_ok() {
                return Some(Redis { port, child });
            }
            if child.try_wait().expect("child").is_some() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server does not listen on {addr}");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it anew on the same port.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let again = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            Redis::on(self.port, &[])
        });
        *self = again.expect("the port is free again");
    }

    /// Stops it without closing anything: it accepts and says nothing.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("pid");
        kill_process(pid, signal).expect("signal");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
