//! Replicas behind https: whom the gateway believes, what it proves itself by, and that what passes
//! is the same. A second gateway with TLS, in front of an engine, is the replica.

use std::net::SocketAddr;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, SanType};

use crate::common::engine::{Engine, event, json};
use crate::common::faults::{
    at_rest, chat_for_acme, hello, role_event, states, stream_for_acme, whole_stream,
};
use crate::common::gateway::{AUTH, Bed, KEY, Settings};
use crate::common::{Client, Response, ask, eventually, post_with};
use crate::secure::{Authority, Files, Pair};

/// An engine, a gateway behind TLS that stands for a replica, and the files of both sides.
struct Replica {
    engine: Engine,
    inner: Bed,
    files: Files,
}

impl Replica {
    fn start(engine: Engine, pair: &Pair, more: &str) -> Replica {
        let files = Files::new(pair);
        let server = files.line(more);
        let inner = Bed::unready(&[engine.addr], Settings { server, ..Settings::default() });
        Replica { engine, inner, files }
    }

    /// A gateway in front of it with this `tls` in its pool; `files` stand for the folder.
    fn behind(&self, driver: &'static str, tls: &str) -> Bed {
        gateway(self.inner.addr, driver, &tls.replace("FILES", &self.folder()))
    }

    fn folder(&self) -> String {
        self.files.folder().display().to_string()
    }
}

fn gateway(addr: SocketAddr, driver: &'static str, tls: &str) -> Bed {
    let pool = format!("api_key = \"{KEY}\"\n{tls}");
    Bed::unready(&[addr], Settings { driver, pool, scheme: "https", ..Settings::default() })
}

fn is_served(bed: &Bed) {
    eventually("the replica is up", || states(bed) == ["up"]);
    let answer = ask(bed.addr, &stream_for_acme());
    assert_eq!((answer.status(), answer.words()), (200, "hello".to_owned()), "{}", answer.text());
}

fn is_down(bed: &Bed) {
    eventually("the replica is down", || states(bed) == ["down"]);
    assert_eq!(ask(bed.addr, &stream_for_acme()).status(), 503);
}

#[test]
fn what_passes_is_the_same_in_both_directions() {
    let long = "x".repeat(400_000);
    let events: Vec<_> =
        (0..2_000).map(|n| event(&format!("{n} {}", "y".repeat(n % 700)))).collect();
    let stream = whole_stream(&[vec![role_event()], events].concat());
    for driver in ["io_uring", "epoll"] {
        let authority = Authority::new();
        let of_all = stream.clone();
        let engine = Engine::start(move |received, wire| {
            use std::io::Write;
            let streamed = received.body.windows(13).any(|at| at == b"\"stream\":true");
            let whole = json(
                200,
                "{\"choices\":[{\"message\":{\"content\":\"w\"}}],\
                                   \"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}",
            );
            wire.write_all(if streamed { &of_all } else { &whole })?;
            Ok(crate::common::engine::After::Keep)
        });
        let replica = Replica::start(engine, &authority.sign(), "");
        replica.files.write("ca.pem", &authority.pem);
        let bed = replica.behind(driver, "tls = { ca = \"FILES/ca.pem\" }");
        eventually("the replica is up", || states(&bed) == ["up"]);
        let body = format!(
            "{{\"model\":\"m\",\"messages\":[{{\"content\":\"{long}\"}}],\"stream\":true}}"
        );
        let mut client = Client::connect(bed.addr);
        for _ in 0..3 {
            client.send(&post_with("/v1/chat/completions", AUTH, &body));
            let answer = client.response();
            assert_eq!((answer.status(), answer.complete), (200, true), "{driver}");
            assert!(answer.body() == Response::parse(&stream).body(), "another stream");
            client.send(&chat_for_acme(""));
            let whole = client.response();
            assert_eq!((whole.status(), whole.complete), (200, true), "{}", whole.text());
        }
        drop(client);
        let requests = replica.engine.requests();
        let carried = requests
            .iter()
            .filter(|r| std::str::from_utf8(&r.body).is_ok_and(|text| text.contains(&long)));
        assert_eq!(carried.count(), 3);
        let records = bed.records(6);
        assert!(records.iter().all(|record| record["outcome"] == "ok"), "{records:?}");
        at_rest(&bed);
        // Its connections go with it, kept ones too.
        drop(bed);
        at_rest(&replica.inner);
    }
}

#[test]
fn only_who_is_vouched_for_under_its_name_is_believed() {
    let (ours, strangers) = (Authority::new(), Authority::new());
    let replica = Replica::start(Engine::always(hello()), &ours.sign(), "");
    replica.files.write("ours.pem", &ours.pem);
    replica.files.write("strangers.pem", &strangers.pem);
    is_served(&replica.behind("auto", "tls = { ca = \"FILES/ours.pem\" }"));
    is_down(&replica.behind("auto", "tls = { ca = \"FILES/strangers.pem\" }"));
    let named = |name: &str| {
        let tls = format!("tls = {{ ca = \"FILES/ours.pem\", server_name = \"{name}\" }}");
        replica.behind("auto", &tls)
    };
    is_served(&named("localhost"));
    is_down(&named("other.test"));

    let elsewhere = ours.sign_with(|params| {
        let name = "gpu-1.test".try_into().expect("name");
        params.subject_alt_names = vec![SanType::DnsName(name)];
    });
    let replica = Replica::start(Engine::always(hello()), &elsewhere, "");
    replica.files.write("ca.pem", &ours.pem);
    is_down(&replica.behind("auto", "tls = { ca = \"FILES/ca.pem\" }"));
    let tls = "tls = { ca = \"FILES/ca.pem\", server_name = \"gpu-1.test\" }";
    is_served(&replica.behind("auto", tls));
}

/// What `openssl req -x509` makes is root and leaf at once, and has no name of the host.
#[test]
fn a_certificate_that_was_named_itself_is_believed() {
    let mut params = CertificateParams::new(vec!["anything.test".to_owned()]).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("key");
    let cert = params.self_signed(&key).expect("certificate").pem();
    let pair = Pair { cert, key: key.serialize_pem() };
    let replica = Replica::start(Engine::always(hello()), &pair, "");
    is_served(&replica.behind("auto", "tls = { ca = \"FILES/cert.pem\" }"));

    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let cert = params.self_signed(&key).expect("certificate").pem();
    let pair = Pair { cert, key: key.serialize_pem() };
    let replica = Replica::start(Engine::always(hello()), &pair, "");
    is_down(&replica.behind("auto", "tls = { ca = \"FILES/cert.pem\" }"));
}

#[test]
fn the_gateway_shows_its_own_certificate_where_one_is_wanted() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let files = Files::new(&clients.sign());
    let roots = files.write("clients.pem", &clients.pem);
    let wanted = format!(", client_ca = \"{}\"", roots.display());
    let replica = Replica::start(Engine::always(hello()), &servers.sign(), &wanted);
    replica.files.write("ca.pem", &servers.pem);
    let own = files.folder().display();
    let tls = format!(
        "tls = {{ ca = \"FILES/ca.pem\", cert = \"{own}/cert.pem\", key = \"{own}/key.pem\" }}"
    );
    is_served(&replica.behind("auto", &tls));
    is_down(&replica.behind("auto", "tls = { ca = \"FILES/ca.pem\" }"));
}

#[test]
fn who_speaks_no_tls_is_down() {
    let (authority, engine) = (Authority::new(), Engine::always(hello()));
    let files = Files::new(&authority.sign());
    let roots = files.write("ca.pem", &authority.pem);
    let bed = gateway(engine.addr, "auto", &format!("tls = {{ ca = \"{}\" }}", roots.display()));
    is_down(&bed);
    at_rest(&bed);
}

#[test]
fn a_reload_reads_the_roots_again() {
    let (ours, strangers) = (Authority::new(), Authority::new());
    let replica = Replica::start(Engine::always(hello()), &ours.sign(), "");
    replica.files.write("ca.pem", &strangers.pem);
    let bed = replica.behind("auto", "tls = { ca = \"FILES/ca.pem\" }");
    is_down(&bed);
    replica.files.write("ca.pem", "no certificate");
    let (status, told) = bed.reload(str::to_owned);
    assert_eq!(status, 400, "{told}");
    assert!(told.to_string().contains("tls.ca"), "{told}");
    replica.files.write("ca.pem", &ours.pem);
    assert_eq!(bed.reload(str::to_owned).0, 200);
    is_served(&bed);
    // Another name of the replica's certificate, and back.
    let named = |text: &str| text.replace("ca.pem\" }", "ca.pem\", server_name = \"x.test\" }");
    assert_eq!(bed.reload(named).0, 200);
    eventually("a new connection is refused", || states(&bed) == ["down"]);
}
