//! The files of `scripts/deploy` against the program: what `scripts/check-deploy` checks besides
//! needs other programs, and so do the last tests here, which it runs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, mpsc};

use expedite::config::{Config, Discover};
use serde_json::Value;

use crate::common::engine::{After, DONE, Engine, LAST_CHUNK, STREAM_HEAD, chunk, event};
use crate::common::gateway::{AUTH, Bed};
use crate::common::{Client, ask, eventually, get, post_with};
use crate::text;

/// The file in the gateway's `ConfigMap`.
fn gateway_toml() -> String {
    let manifest = text("scripts/deploy/kubernetes/gateway.yaml");
    let (_, file) = manifest.split_once("  gateway.toml: |\n").expect("the file");
    let lines = file.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    lines.map(|line| line.strip_prefix("    ").unwrap_or("").to_owned() + "\n").collect()
}

#[test]
fn the_configuration_of_the_manifests_is_valid_and_finds_their_replicas() {
    let manifest = text("scripts/deploy/kubernetes/gateway.yaml");
    assert!(manifest.contains("- name: ADMIN_SECRET\n"), "the pod has what the file asks for");
    let secret = "credentials: { name: expedite-admin, key: secret }";
    assert!(manifest.contains(secret), "Prometheus has it too");
    let file = gateway_toml().replace("${ADMIN_SECRET}", "sixteen-bytes-of-it");
    let config = Config::from_text("gateway.toml", &file).unwrap();
    assert!(config.server.admin_secret.is_some());
    let absent: Vec<_> = config.warnings.iter().filter(|w| w.contains("not in this")).collect();
    assert!(absent.is_empty(), "{absent:?}");
    let Some(Discover::Kubernetes(found)) = &config.pools[0].discover else {
        panic!("no Kubernetes source");
    };
    let fleet = text("scripts/deploy/kubernetes/vllm.yaml");
    for line in [
        format!("  name: {}\n", found.service),
        format!("  namespace: {}\n", found.namespace),
        format!("- name: {}\n", found.port.as_deref().expect("a port")),
    ] {
        assert!(fleet.contains(&line), "{line}");
    }
}

#[test]
fn every_probe_is_answered() {
    let engine = Engine::always(STREAM_HEAD);
    let bed = Bed::of(&[engine.addr]);
    let manifest = text("scripts/deploy/kubernetes/gateway.yaml");
    let mut asked: Vec<_> = manifest.split("path: /").skip(1).collect();
    asked.retain(|rest| !rest.starts_with("etc") && !rest.starts_with("var"));
    assert_eq!(asked.len(), 4, "three probes and the metrics");
    for rest in asked {
        let path = format!("/{}", rest.split([',', ' ', '\n', '}']).next().unwrap());
        assert_eq!(ask(bed.admin, &get(&path)).status(), 200, "{path}");
    }
}

#[test]
fn the_seccomp_profile_lets_the_ring_through() {
    let profile: Value = serde_json::from_str(&text("scripts/deploy/seccomp.json")).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let groups = profile["syscalls"].as_array().unwrap();
    let allowed = groups.iter().filter(|group| group["action"] == "SCMP_ACT_ALLOW");
    let names: Vec<_> = allowed.flat_map(|group| group["names"].as_array().unwrap()).collect();
    for name in ["io_uring_setup", "io_uring_enter", "io_uring_register"] {
        assert!(names.iter().any(|one| *one == name), "{name}");
    }
    for name in ["ptrace", "mount", "bpf", "kexec_load", "init_module", "setns", "unshare"] {
        assert!(!names.iter().any(|one| *one == name), "{name}");
    }
}

/// A proxy in front of a gateway; ends with the test.
struct Front {
    child: Child,
    addr: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Front {
    /// Runs a file of `scripts/deploy` with these addresses in place of its own.
    fn start(file: &str, bed: &Bed, command: impl Fn(&Path) -> Command) -> Front {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut config = text(&format!("scripts/deploy/{file}"));
        for (own, other) in [
            ("listen 80;", format!("listen {free};")),
            ("bind :80", format!("bind {free}")),
            ("127.0.0.1:8080", bed.addr.to_string()),
            ("port 9090", format!("port {}", bed.admin.port())),
        ] {
            config = config.replace(own, &other);
        }
        assert!(config.contains(&free.to_string()) && config.contains(&bed.addr.to_string()));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(file);
        std::fs::write(&path, config).unwrap();
        let mut command = command(&path);
        let child = command.stdout(Stdio::null()).spawn().expect("the proxy is installed");
        let front = Front { child, addr: free, _folder: folder };
        eventually("the proxy listens", || TcpStream::connect(front.addr).is_ok());
        front
    }

    fn nginx(bed: &Bed) -> Front {
        Front::start("nginx.conf", bed, |path| {
            let folder = path.parent().unwrap();
            let own = format!(
                "daemon off; master_process off; pid {0}/pid; error_log {0}/error.log;",
                folder.display()
            );
            let mut command = Command::new("nginx");
            command.arg("-p").arg(folder).arg("-e").arg(folder.join("error.log"));
            command.arg("-c").arg(path).arg("-g").arg(own);
            command
        })
    }

    fn haproxy(bed: &Bed) -> Front {
        Front::start("haproxy.cfg", bed, |path| {
            let mut command = Command::new("haproxy");
            command.arg("-db").arg("-q").arg("-f").arg(path);
            command
        })
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An engine that sends its next event when it is told to, and tells when its client has gone.
fn stepped() -> (Engine, mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (go, gone_on) = mpsc::channel::<()>();
    let (left, leaving) = mpsc::channel::<()>();
    let (gone_on, left) = (Mutex::new(gone_on), Mutex::new(left));
    let engine = Engine::start(move |_, wire| {
        wire.write_all(STREAM_HEAD)?;
        let gone_on = gone_on.lock().unwrap();
        for n in 0.. {
            if gone_on.recv().is_err() {
                break;
            }
            match n {
                3 => {
                    wire.write_all(&chunk(DONE))?;
                    return wire.write_all(LAST_CHUNK).map(|()| After::Keep);
                }
                n => wire.write_all(&chunk(&event(&format!("word-{n}"))))?,
            }
        }
        // The test has let go of its end: what is left to see is the client's.
        while wire.read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
        let _ = left.lock().unwrap().send(());
        Ok(After::Close)
    });
    (engine, go, leaving)
}

fn stream(addr: SocketAddr) -> Client {
    let json = "{\"model\":\"m\",\"stream\":true,\
                \"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    let mut client = Client::connect(addr);
    client.send(&post_with("/v1/chat/completions", AUTH, json));
    client
}

/// Reads until `what` has come; fails when nothing comes any more.
fn until(client: &mut Client, what: &str) {
    let (mut got, mut piece) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&got).contains(what) {
        let n = client.read(&mut piece).unwrap_or_else(|e| panic!("{what} is held back: {e}"));
        assert!(n > 0, "ended before {what}: {}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&piece[..n]);
    }
}

/// Each event must arrive before the next is sent, and a client that leaves must be missed.
fn passes_events_and_cancels(front: fn(&Bed) -> Front) {
    let (engine, go, _leaving) = stepped();
    let bed = Bed::of(&[engine.addr]);
    let proxy = front(&bed);
    eventually("the proxy finds the gateway", || ask(proxy.addr, &get("/health")).status() == 200);
    let mut client = stream(proxy.addr);
    for n in 0..3 {
        go.send(()).unwrap();
        until(&mut client, &format!("word-{n}"));
    }
    go.send(()).unwrap();
    until(&mut client, "data: [DONE]");
    drop((proxy, bed, engine));

    let (engine, go, leaving) = stepped();
    let bed = Bed::of(&[engine.addr]);
    let proxy = front(&bed);
    eventually("the proxy finds the gateway", || ask(proxy.addr, &get("/health")).status() == 200);
    let mut client = stream(proxy.addr);
    go.send(()).unwrap();
    until(&mut client, "word-0");
    drop(client);
    drop(go);
    leaving.recv_timeout(std::time::Duration::from_secs(20)).expect("the engine sees it go");
    assert_eq!(bed.records(1)[0]["outcome"], "client_cancelled");
}

#[test]
#[ignore = "needs scripts/check-deploy"]
fn nginx_passes_each_event_on_and_cancels() {
    passes_events_and_cancels(Front::nginx);
}

#[test]
#[ignore = "needs scripts/check-deploy"]
fn haproxy_passes_each_event_on_and_cancels() {
    passes_events_and_cancels(Front::haproxy);
}
