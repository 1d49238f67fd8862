//! Clients speak TLS: versions, certificates of both sides, files that change, what is no TLS.

use std::io::{ErrorKind, Read, Write};
use std::process::Command;
use std::sync::mpsc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::version::{TLS12, TLS13};

use crate::answers::Answers;
use crate::command::expedite;
use crate::common::engine::{After, DONE, Engine, LAST_CHUNK, chunk, event, json};
use crate::common::faults::{
    at_rest, cut_stream, hello, role_event, stream_for_acme, whole_stream,
};
use crate::common::gateway::{AUTH, Bed, Settings};
use crate::common::{Client, Ended, Response, ask, eventually, find, get, post_with};
use crate::inputs;
use crate::secure::{Authority, Files, Pair, Secure, TlsClient, config};

const DRIVERS: [&str; 2] = ["io_uring", "epoll"];

#[test]
fn streams_and_long_bodies_pass_as_they_are_by_both_versions() {
    let long = "x".repeat(400_000);
    let events: Vec<_> =
        (0..2_000).map(|n| event(&format!("{n} {}", "y".repeat(n % 700)))).collect();
    let stream = whole_stream(&[vec![role_event()], events].concat());
    let body =
        format!("{{\"model\":\"m\",\"messages\":[{{\"content\":\"{long}\"}}],\"stream\":true}}");
    for driver in DRIVERS {
        let engine = Engine::always(stream.clone());
        let secure = Secure::start(engine, driver, "");
        for version in [&TLS12, &TLS13] {
            let config = config(&secure.authority.pem, None, &[version]);
            let mut client = TlsClient::connect(secure.bed.addr, config);
            for _ in 0..2 {
                client.send(&post_with("/v1/chat/completions", AUTH, &body));
                let answer = client.response();
                assert_eq!((answer.status(), answer.complete), (200, true));
                assert!(answer.body() == Response::parse(&stream).body(), "another stream");
            }
            assert_eq!(client.0.conn.protocol_version(), Some(version.version));
            assert_eq!(client.0.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        }
        let arrived = body.replace("\"m\"", "\"base\"");
        for received in secure.engine.requests() {
            let got = String::from_utf8(received.body).expect("text");
            assert!(got.contains(&long) && got.len() >= arrived.len(), "{} bytes", got.len());
        }
        at_rest(&secure.bed);
    }
}

#[test]
fn curl_trusts_it_by_its_authority_and_not_without() {
    let secure = Secure::start(Engine::always(hello()), "auto", "");
    let roots = secure.files.write("ca.pem", &secure.authority.pem);
    let url = format!("https://localhost:{}/health", secure.bed.addr.port());
    let curl = |more: &[&str]| {
        let run =
            Command::new("curl").args(["-sS", "-w", "%{http_code}", &url]).args(more).output();
        run.expect("curl is installed")
    };
    let trusted = curl(&["--cacert", roots.to_str().expect("path")]);
    assert!(trusted.stdout.ends_with(b"200"), "{}", String::from_utf8_lossy(&trusted.stderr));
    assert!(!curl(&[]).status.success(), "an unknown authority");
}

#[test]
fn a_client_must_show_a_certificate_where_roots_are_named() {
    let (clients, strangers, own) = (Authority::new(), Authority::new(), Authority::new());
    let files = Files::new(&own.sign());
    let roots = files.write("clients.pem", &clients.pem);
    let server = files.line(&format!(", client_ca = \"{}\"", roots.display()));
    let engine = Engine::always(hello());
    let bed = Bed::unready(&[engine.addr], Settings { server, ..Settings::default() });
    let health = |pair: Option<&Pair>, version| {
        let mut client = TlsClient::connect(bed.addr, config(&own.pem, pair, &[version]));
        let sent = client.0.write_all(&get("/health")).and_then(|()| client.0.flush());
        let mut answer = [0; 12];
        sent.and_then(|()| client.0.read_exact(&mut answer)).map(|()| answer)
    };
    let (known, strange) = (clients.sign(), strangers.sign());
    for version in [&TLS12, &TLS13] {
        assert_eq!(&health(Some(&known), version).expect("let in"), b"HTTP/1.1 200");
        assert!(health(None, version).is_err(), "without one");
        assert!(health(Some(&strange), version).is_err(), "of somebody else's");
    }
    assert_eq!(bed.metric("expedite_refused_handshakes_total", ""), 4.0);
    assert_eq!(bed.metric("expedite_panics_total", ""), 0.0);
}

#[test]
fn http_without_tls_is_told_so_and_noise_is_closed() {
    let secure = Secure::start(Engine::always(hello()), "auto", "");
    let told = ask(secure.bed.addr, &stream_for_acme());
    assert_eq!((told.status(), told.field("connection")), (400, Some("close")));
    let message = told.json()["error"]["message"].as_str().expect("text").to_owned();
    assert!(message.contains("https://"), "{message}");

    for noise in [&b"\x16\x03\x01\xff\xff\x01"[..], &[0x80; 64], b"\x15\x03\x03\x00\x02\x02\x28"] {
        let mut client = Client::connect(secure.bed.addr);
        client.send(noise);
        let _ = client.0.shutdown(std::net::Shutdown::Write);
        let (bytes, _) = client.rest();
        assert!(find(&bytes, b"HTTP").is_none(), "{noise:?} got {}", bytes.escape_ascii());
    }
    at_rest(&secure.bed);
}

#[test]
fn a_handshake_that_does_not_go_on_is_ended() {
    let secure =
        Secure::start(Engine::always(hello()), "auto", "[timeouts]\nclient_head_ms = 300\n");
    let mut silent = Client::connect(secure.bed.addr);
    let mut half = Client::connect(secure.bed.addr);
    half.send(b"\x16\x03\x01\x02\x00\x01\x00");
    assert_eq!(silent.rest(), (Vec::new(), Ended::Fin));
    assert!(half.rest().0.is_empty());
    at_rest(&secure.bed);
}

#[test]
fn a_reload_shows_new_files_to_new_clients_and_cuts_no_stream() {
    let (open, opened) = mpsc::channel::<()>();
    let opened = std::sync::Mutex::new(opened);
    let engine = Engine::start(move |_, wire| {
        wire.write_all(&cut_stream(&[role_event(), event("one")]))?;
        let _ = opened.lock().expect("lock").recv();
        wire.write_all(&[&chunk(DONE)[..], LAST_CHUNK].concat())?;
        Ok(After::Keep)
    });
    let secure = Secure::start(engine, "auto", "");
    let mut stream = secure.client();
    stream.send(&stream_for_acme());
    let mut begun = Vec::new();
    while find(&begun, b"one").is_none() {
        let mut piece = [0; 4096];
        let n = stream.read(&mut piece).expect("read");
        begun.extend_from_slice(&piece[..n]);
    }
    let before = stream.shown();

    let renewed = secure.authority.sign();
    secure.files.put(&renewed);
    assert_eq!(secure.bed.reload(str::to_owned).0, 200);
    let shown = CertificateDer::from_pem_slice(renewed.cert.as_bytes()).expect("PEM").to_vec();
    let shows = || {
        let mut client = secure.client();
        client.send(&get("/health"));
        assert_eq!(client.response().status(), 200);
        client.shown()
    };
    assert!(before != shown);
    eventually("new clients see the new certificate", || shows() == shown);

    // A key that belongs to another certificate changes nothing.
    secure.files.write("key.pem", &secure.authority.sign().key);
    let (status, said) = secure.bed.reload(str::to_owned);
    let why = said["error"].as_str().unwrap_or_default();
    assert!(status == 400 && why.contains("not the key of the certificate"), "{said}");
    assert!(shows() == shown);

    open.send(()).expect("engine");
    begun.extend(read_to(&mut stream, LAST_CHUNK));
    assert!(Response::parse(&begun).complete, "the open stream came to its end");

    // Whether it speaks TLS at all is settled when it starts.
    secure.files.put(&renewed);
    let line = secure.files.line("");
    let (status, said) = secure.bed.reload(|text| text.replace(&line, ""));
    assert_eq!((status, &said["next_start"][0]), (200, &"tls in [server]".into()));
    assert!(shows() == shown);
}

fn read_to(client: &mut TlsClient, end: &[u8]) -> Vec<u8> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    while !bytes.ends_with(end) {
        let n = client.read(&mut piece).expect("read");
        assert!(n > 0, "an end after {}", bytes.escape_ascii());
        bytes.extend_from_slice(&piece[..n]);
    }
    bytes
}

#[test]
fn check_holds_key_and_certificate_together() {
    let authority = Authority::new();
    let (pair, other) = (authority.sign(), authority.sign());
    let files = Files::new(&pair);
    let file = |server: &str| {
        let text = format!("[server]\n{server}\n[[pool]]\nreplicas = [\"http://127.0.0.1:1\"]\n");
        files.write("gateway.toml", &text.replace("[[pool]]", "[[pool]]\nname = \"p\""));
        let said = expedite(files.folder(), &["check", "--config", "gateway.toml"], "");
        (said.status.code(), String::from_utf8_lossy(&said.stderr).into_owned())
    };
    assert_eq!(file(&files.line("")), (Some(0), String::new()));
    let cases = [
        ("key.pem", &*other.key, "gateway.toml:2: tls.key: ", "not the key of the certificate"),
        ("key.pem", "", "gateway.toml:2: tls.key: ", "no private key in PEM"),
        ("cert.pem", "nothing", "gateway.toml:2: tls.cert: ", "no certificate in PEM"),
        ("cert.pem", &*pair.key, "gateway.toml:2: tls.cert: ", "no certificate in PEM"),
    ];
    for (name, text, place, why) in cases {
        files.put(&pair);
        files.write(name, text);
        let (code, said) = file(&files.line(""));
        assert!(code == Some(2) && said.contains(place) && said.contains(why), "{name}: {said}");
        assert!(!said.contains("PRIVATE"), "{said}");
    }
    files.put(&pair);
    let roots =
        files.write("roots.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let (code, said) = file(&files.line(&format!(", client_ca = \"{}\"", roots.display())));
    assert!(code == Some(2) && said.contains("tls.client_ca: "), "{said}");
    let (code, said) = file("tls = { cert = \"absent.pem\", key = \"absent.pem\" }");
    assert!(code == Some(0) && said.contains("serve would not start"), "{said}");
}

#[test]
fn a_certificate_that_is_over_or_not_yet_begun_is_told_of() {
    let authority = Authority::new();
    let day = rcgen::date_time_ymd;
    let of = |from, until| {
        authority.sign_with(|params| (params.not_before, params.not_after) = (from, until))
    };
    let (over, early) =
        (of(day(2020, 1, 1), day(2021, 2, 3)), of(day(2090, 5, 6), day(2091, 1, 1)));
    let good = of(day(2020, 1, 1), day(2090, 5, 6));
    let files = Files::new(&over);
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\n{}\n\
         [[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n",
        files.line("")
    );
    files.write("gateway.toml", &text);
    let run = |command: &str| {
        let said = expedite(files.folder(), &[command, "--config", "gateway.toml"], "");
        let text = [said.stdout, said.stderr].map(|out| String::from_utf8(out).expect("text"));
        (said.status.code(), text.concat())
    };
    for (pair, told) in [(&over, "it ended on 2021-02-03"), (&early, "it begins on 2090-05-06")] {
        files.put(pair);
        let (code, said) = run("check");
        assert!(code == Some(0) && said.contains("warning") && said.contains(told), "{said}");
        let (code, said) = run("doctor");
        assert!(code == Some(1) && said.contains(told), "{said}");
    }
    files.put(&good);
    assert!(!run("check").1.contains("warning: tls"), "{}", run("check").1);
    assert!(run("doctor").1.contains("until 2090-05-06"));

    // The gateway goes on, and says so in its log and its metrics.
    let secure = Secure::start(Engine::always(hello()), "auto", "");
    let ends = || secure.bed.metric("expedite_tls_certificate_expires_seconds", "");
    secure.files.put(&over);
    assert_eq!(secure.bed.reload(str::to_owned).0, 200);
    eventually("the metric follows", || ends() == 1_612_310_400.0);
}

/// Sends the input whole over TLS, and reads what it gets.
fn probe(secure: &Secure, input: &inputs::Input) -> Answers {
    let mut client = secure.client();
    // The gateway may close while we are still sending.
    let _ = client.0.write_all(&input.bytes);
    let _ = client.0.flush();
    let say_bye = |client: &mut TlsClient| {
        client.0.conn.send_close_notify();
        let _ = client.0.conn.write_tls(&mut client.0.sock);
        let _ = client.0.sock.shutdown(std::net::Shutdown::Write);
    };
    if input.fin {
        say_bye(&mut client);
    }
    let (mut bytes, mut piece, mut closed) = (Vec::new(), [0; 4096], true);
    loop {
        match client.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                break;
            }
            Err(e) => panic!("{}: {e} after {}", input.name, bytes.escape_ascii()),
        }
        if !input.closes && Answers::parse(&bytes).statuses.len() >= input.statuses.len() && closed
        {
            closed = false;
            say_bye(&mut client);
        }
    }
    Answers { closed, ..Answers::parse(&bytes) }
}

#[test]
fn hostile_requests_have_the_same_answers_over_tls() {
    let secure = Secure::start(Engine::always(json(200, "{\"choices\":[]}")), "auto", "");
    let mut faults = Vec::new();
    for input in inputs::all() {
        let got = probe(&secure, &input);
        let want = Answers {
            statuses: input.statuses.to_vec(),
            says_close: input.closes && !input.statuses.is_empty(),
            rest: Vec::new(),
            closed: input.closes,
        };
        if got != want {
            faults.push(format!("{}: got {got:?}", input.name));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(secure.bed.metric("expedite_panics_total", ""), 0.0);
}

#[test]
fn a_client_that_is_slow_over_tls_gets_everything() {
    let events: Vec<_> = (0..3_000).map(|n| event(&format!("{n} {}", "z".repeat(4_000)))).collect();
    let stream = whole_stream(&events);
    let secure = Secure::start(Engine::always(stream.clone()), "auto", "");
    let mut client = secure.client();
    client.send(&stream_for_acme());
    std::thread::sleep(std::time::Duration::from_millis(300));
    let bytes = read_to(&mut client, b"\r\n0\r\n\r\n");
    assert!(Response::parse(&bytes).body() == Response::parse(&stream).body(), "another stream");
}

/// A session that comes back by its ticket is a session with the files of now.
#[test]
fn a_ticket_of_before_a_reload_opens_nothing_after_it() {
    let (old, new, own) = (Authority::new(), Authority::new(), Authority::new());
    let files = Files::new(&own.sign());
    let roots = files.write("clients.pem", &old.pem);
    let server = files.line(&format!(", client_ca = \"{}\"", roots.display()));
    let engine = Engine::always(hello());
    let bed = Bed::unready(&[engine.addr], Settings { server, ..Settings::default() });
    // One configuration for all: it keeps the tickets.
    let config = config(&own.pem, Some(&old.sign()), &[&TLS13]);
    let health = || {
        let mut client = TlsClient::connect(bed.addr, config.clone());
        client.0.write_all(&get("/health"))?;
        client.0.flush()?;
        let mut answer = [0; 12];
        client.0.read_exact(&mut answer).map(|()| client.0.conn.handshake_kind())
    };
    assert_eq!(health().expect("let in"), Some(rustls::HandshakeKind::Full));
    assert_eq!(health().expect("let in"), Some(rustls::HandshakeKind::Resumed));
    files.write("clients.pem", &new.pem);
    assert_eq!(bed.reload(str::to_owned).0, 200);
    eventually("who is not trusted any more is not let in", || health().is_err());
}
