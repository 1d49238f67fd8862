//! Who is in the fleet: lists that change under load, sources that fail, the operator's hand.

mod common;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::engine::{After, Engine, LAST_CHUNK, STREAM_HEAD, chunk, event};
use common::faults::{at_rest, chat_for_acme, finish_event, hello, states, stream_for_acme};
use common::gateway::{Bed, Settings};
use common::{Client, Response, ask, eventually, find, get};
use serde_json::Value;

/// An engine that says hello.
fn engine() -> Engine {
    Engine::always(hello())
}

/// A gateway whose pool lists these engines and follows `discover` (TOML).
fn bed(engines: &[SocketAddr], discover: &str) -> Bed {
    let pool = format!("discover = {discover}\n");
    let more = common::faults::IN_TURN.to_owned();
    Bed::unready(engines, Settings { pool, more, ..Settings::default() })
}

fn by_file(path: &Path) -> String {
    format!("{{ file = \"{}\" }}", path.display())
}

/// Replaces the file as a whole, as one should.
fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).expect("written");
    std::fs::rename(&new, path).expect("renamed");
}

fn lines(engines: &[&Engine]) -> String {
    engines.iter().map(|engine| format!("http://{}\n", engine.addr)).collect()
}

fn replicas(bed: &Bed) -> Vec<Value> {
    let status = ask(bed.admin, &get("/status.json")).json();
    status["pools"][0]["replicas"].as_array().expect("replicas").clone()
}

/// Waits until just these replicas are up.
fn up(bed: &Bed, engines: &[&Engine]) {
    let wanted: Vec<String> = engines.iter().map(|e| format!("http://{}", e.addr)).collect();
    eventually("these replicas are up, no others", || {
        let now = replicas(bed);
        let is = |url: &String| now.iter().any(|r| r["url"] == **url && r["state"] == "up");
        now.len() == wanted.len() && wanted.iter().all(is)
    });
}

fn chat(gateway: SocketAddr) -> Response {
    ask(gateway, &chat_for_acme(",\"stream\":true"))
}

#[test]
fn a_file_adds_and_removes_replicas_under_load_without_a_failed_request() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("fleet.txt");
    let engines = [engine(), engine(), engine()];
    let [one, two, three] = [&engines[0], &engines[1], &engines[2]];
    write(&path, &lines(&[one, two]));
    let bed = bed(&[], &by_file(&path));
    up(&bed, &[one, two]);
    let over = AtomicBool::new(false);
    let (served, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let gateway = bed.addr;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    let fine = chat(gateway).words() == "hello";
                    if fine { &served } else { &failed }.fetch_add(1, SeqCst);
                }
            });
        }
        write(&path, &format!("# grown\n{}", lines(&[one, two, three])));
        up(&bed, &[one, two, three]);
        eventually("the newcomer is asked", || three.count() > 5);
        write(&path, &lines(&[two, three]));
        up(&bed, &[two, three]);
        let before = one.count();
        let more = served.load(SeqCst) + 50;
        eventually("more is served", || served.load(SeqCst) > more);
        assert_eq!(one.count(), before, "it has left");
        over.store(true, SeqCst);
    });
    assert_eq!(failed.load(SeqCst), 0);
    at_rest(&bed);
}

#[test]
fn a_file_with_a_mistake_keeps_the_last_good_list() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("fleet.txt");
    let engines = [engine(), engine()];
    let bed = bed(&[], &by_file(&path));
    assert_eq!(chat(bed.addr).status(), 503, "no file yet: the gateway runs all the same");
    let is_well = |wanted: f64| {
        let up = "expedite_discovery_up";
        let page = ask(bed.admin, &get("/metrics")).text();
        page.contains(&format!("{up}{{pool=\"p\",source=\"file\"}}"))
            && bed.metric(up, "") == wanted
    };
    eventually("the source has listed nobody yet", || is_well(0.0));
    write(&path, &lines(&[&engines[0]]));
    up(&bed, &[&engines[0]]);
    eventually("the source is well", || is_well(1.0));
    let second = engines[1].addr;
    for bad in ["", "# nobody\n", "http://127.0.0.1:1\nnonsense\n", "[\"http://127.0.0.1:1\","] {
        write(&path, bad);
        std::thread::sleep(Duration::from_millis(1_300));
        assert_eq!(replicas(&bed).len(), 1, "{bad:?}");
        assert_eq!(chat(bed.addr).words(), "hello");
    }
    std::fs::remove_file(&path).expect("removed");
    std::thread::sleep(Duration::from_millis(1_300));
    assert_eq!(replicas(&bed).len(), 1, "no file");
    eventually("its last list stays, and the metric says why", || is_well(0.0));
    write(&path, &format!("[{{\"url\": \"http://{second}\", \"id\": \"r2\", \"zone\": \"b\"}}]"));
    up(&bed, &[&engines[1]]);
    let now = &replicas(&bed)[0];
    assert_eq!((&now["id"], &now["zone"]), (&"r2".into(), &"b".into()));
    assert_eq!(now["source"], "discovered");
}

#[test]
fn a_pool_scaled_to_nothing_answers_503_and_comes_back() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("fleet.json");
    let engine = engine();
    let list = format!("[\"http://{}\"]", engine.addr);
    write(&path, &list);
    let bed = bed(&[], &by_file(&path));
    up(&bed, &[&engine]);
    write(&path, "[]");
    up(&bed, &[]);
    let refused = chat(bed.addr);
    assert_eq!((refused.status(), refused.field("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["error"]["code"], "no_healthy_replica");
    eventually("not ready", || ask(bed.admin, &get("/ready")).status() == 503);
    write(&path, &list);
    up(&bed, &[&engine]);
    assert_eq!(chat(bed.addr).words(), "hello");
}

/// An engine that streams one event and waits for the word before it ends.
fn patient(go_on: &'static AtomicBool) -> Engine {
    Engine::start(move |_, wire| {
        wire.write_all(STREAM_HEAD)?;
        wire.write_all(&chunk(&event("hel")))?;
        while !go_on.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let rest = [event("lo"), finish_event("stop"), common::engine::DONE.to_vec()];
        rest.iter().try_for_each(|bytes| wire.write_all(&chunk(bytes)))?;
        wire.write_all(LAST_CHUNK).map(|()| After::Keep)
    })
}

#[test]
fn a_replica_that_flaps_keeps_its_identity_and_its_load() {
    static GO_ON: AtomicBool = AtomicBool::new(false);
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("fleet.json");
    let engine = patient(&GO_ON);
    let list = format!("[\"http://{}\"]", engine.addr);
    write(&path, &list);
    let bed = bed(&[], &by_file(&path));
    up(&bed, &[&engine]);
    let mut client = Client::connect(bed.addr);
    client.send(&stream_for_acme());
    eventually("it streams", || bed.metric("expedite_in_flight", "") == 1.0);
    for _ in 0..3 {
        write(&path, "[]");
        eventually("it drains", || states(&bed) == ["draining"]);
        assert_eq!(chat(bed.addr).status(), 503);
        write(&path, &list);
        up(&bed, &[&engine]);
        assert_eq!(bed.metric("expedite_in_flight", ""), 1.0, "its stream is still counted");
    }
    assert_eq!(replicas(&bed)[0]["ramp"], 1.0, "it was never away");
    GO_ON.store(true, SeqCst);
    assert_eq!(client.response().words(), "hello");
    drop(client);
    at_rest(&bed);
}

fn delete(bed: &Bed, id: &str) -> Response {
    ask(bed.admin, format!("DELETE /replicas/{id} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes())
}

fn add(bed: &Bed, json: &str) -> Response {
    ask(bed.admin, &common::post("/replicas", json))
}

#[test]
fn a_drained_replica_finishes_what_it_has_and_gets_nothing_new() {
    static GO_ON: AtomicBool = AtomicBool::new(false);
    const STREAMS: usize = 50;
    let (drained, other) = (patient(&GO_ON), engine());
    let more = common::faults::IN_TURN.to_owned();
    let settings = Settings { more, ..Settings::default() };
    let bed = Bed::start(&[drained.addr, other.addr], settings);
    let mut open: Vec<Client> = Vec::new();
    while drained.count() < STREAMS {
        let mut client = Client::connect(bed.addr);
        client.send(&stream_for_acme());
        open.push(client);
        if open.len().is_multiple_of(2) {
            let reached = open.len() / 2;
            eventually("it has its stream", || drained.count() >= reached);
        }
    }
    let answer = delete(&bed, &drained.addr.to_string());
    assert_eq!((answer.status(), &answer.json()["state"]), (202, &"draining".into()));
    eventually("it drains", || states(&bed).contains(&"draining".to_owned()));
    for _ in 0..20 {
        assert_eq!(chat(bed.addr).words(), "hello");
    }
    assert_eq!(drained.count(), STREAMS, "nothing new");
    assert_eq!(states(&bed).len(), 2, "and it is there as long as its streams are");
    GO_ON.store(true, SeqCst);
    for mut client in open {
        let response = client.response();
        assert!(response.complete && response.words() == "hello", "{}", response.text());
    }
    up(&bed, &[&other]);
    assert_eq!(delete(&bed, &drained.addr.to_string()).status(), 404);
    at_rest(&bed);
}

#[test]
fn the_operator_adds_and_removes() {
    let (first, second) = (engine(), engine());
    let bed = Bed::of(&[first.addr]);
    let url = format!("http://{}", second.addr);
    for (json, status) in [
        (format!("{{\"pool\":\"nope\",\"url\":\"{url}\"}}"), 404),
        ("{\"pool\":\"p\",\"url\":\"ftp://x\"}".to_owned(), 400),
        ("{\"pool\":\"p\"}".to_owned(), 400),
        (format!("{{\"pool\":\"p\",\"url\":\"{url}\",\"typo\":1}}"), 400),
        (format!("{{\"pool\":\"p\",\"url\":\"http://{}\"}}", first.addr), 409),
        (format!("{{\"pool\":\"p\",\"url\":\"{url}\",\"id\":\"r2\",\"weight\":2}}"), 201),
        (format!("{{\"pool\":\"p\",\"url\":\"{url}\",\"id\":\"r3\"}}"), 409),
    ] {
        assert_eq!(add(&bed, &json).status(), status, "{json}");
    }
    up(&bed, &[&first, &second]);
    let added = &replicas(&bed)[1];
    assert_eq!((&added["id"], &added["source"]), (&"r2".into(), &"admin".into()));
    assert_eq!(delete(&bed, "nobody").status(), 404);
    // An id is one segment of a path, escaped or not; what cannot be one is no id.
    let third = "http://127.0.0.1:9";
    for (id, segment) in [
        ("a:b", "a%3Ab"),
        ("a:b", "a:b"),
        ("a%b", "a%25b"),
        ("a/b?c#d", "a%2Fb%3fc%23d"),
        ("%2e", "%252e"),
        ("<i>", "%3Ci%3E"),
    ] {
        let json = format!("{{\"pool\":\"p\",\"url\":\"{third}\",\"id\":\"{id}\"}}");
        assert_eq!(add(&bed, &json).status(), 201, "{id}");
        let answer = delete(&bed, &format!("{segment}?now=1"));
        assert_eq!((answer.status(), &answer.json()["id"]), (202, &id.into()));
    }
    for id in [".", "..", "", "a b", "a\\u0000b", "a\\nb"] {
        let json = format!("{{\"pool\":\"p\",\"url\":\"{third}\",\"id\":\"{id}\"}}");
        assert_eq!(add(&bed, &json).status(), 400, "{id}");
    }
    for segment in ["%", "%2", "%zz", "%ff", "%00"] {
        assert_eq!(delete(&bed, segment).status(), 404, "{segment}");
    }
    assert_eq!(ask(bed.admin, &get("/replicas/r2")).status(), 405);
    assert_eq!(delete(&bed, "r2?now=1").status(), 202);
    up(&bed, &[&first]);
}

#[test]
fn a_replica_that_is_deleted_without_notice_costs_one_failed_connect() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("fleet.txt");
    let mut engines = vec![engine(), engine()];
    write(&path, &lines(&[&engines[0], &engines[1]]));
    let bed = bed(&[], &by_file(&path));
    up(&bed, &[&engines[0], &engines[1]]);
    drop(engines.remove(0));
    for _ in 0..20 {
        assert_eq!(chat(bed.addr).words(), "hello");
    }
    assert!(matches!(states(&bed)[0].as_str(), "ejected" | "down"), "{:?}", states(&bed));
    assert!(bed.metric("expedite_retries_total", "") <= 1.0);
}

/// The name server of a test: answers A and SRV questions from a table, by UDP.
mod name_server {
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
    use std::sync::{Arc, Mutex};

    pub(super) enum Records {
        Addresses(Vec<Ipv4Addr>),
        /// Target and port; the target `127-0-0-1.x` has the address 127.0.0.1.
        Services(Vec<(String, u16)>),
        /// SERVFAIL.
        Broken,
        Silent,
    }

    pub(super) type Table = Arc<Mutex<Records>>;

    pub(super) fn start(records: Records) -> (SocketAddr, Table) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let addr = socket.local_addr().expect("address");
        let table = Arc::new(Mutex::new(records));
        let records = Arc::clone(&table);
        std::thread::spawn(move || {
            let mut question = [0; 1500];
            while let Ok((n, from)) = socket.recv_from(&mut question) {
                if let Some(answer) = answer(&question[..n], &records.lock().expect("lock")) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        (addr, table)
    }

    /// RFC 1035, section 4: the header and the question repeated, then the records.
    fn answer(question: &[u8], records: &Records) -> Option<Vec<u8>> {
        let mut at = 12;
        let mut name = Vec::new();
        while question[at] != 0 {
            let end = at + 1 + usize::from(question[at]);
            name.push(String::from_utf8_lossy(&question[at + 1..end]).into_owned());
            at = end;
        }
        let kind = u16::from_be_bytes([question[at + 1], question[at + 2]]);
        let asked = &question[12..at + 5];
        let address = |label: &str| label.replace('-', ".").parse::<Ipv4Addr>().ok();
        let (mut code, mut answers) = (0u8, Vec::new());
        match records {
            Records::Silent => return None,
            Records::Broken => code = 2,
            Records::Services(_) if kind == 1 => {
                answers.extend(address(&name[0]).map(|ip| (1u16, ip.octets().to_vec())));
            }
            Records::Addresses(list) if kind == 1 => {
                answers.extend(list.iter().map(|ip| (1u16, ip.octets().to_vec())));
            }
            Records::Services(list) if kind == 33 => {
                for (target, port) in list {
                    let mut data = vec![0, 0, 0, 0];
                    data.extend(port.to_be_bytes());
                    for label in target.split('.') {
                        data.push(label.len() as u8);
                        data.extend(label.as_bytes());
                    }
                    data.push(0);
                    answers.push((33, data));
                }
            }
            _ => {}
        }
        let mut out = question[..2].to_vec();
        out.extend([0x85, 0x80 | code, 0, 1]);
        out.extend((answers.len() as u16).to_be_bytes());
        out.extend([0, 0, 0, 0]);
        out.extend(asked);
        for (kind, data) in answers {
            out.extend([0xc0, 12]);
            out.extend(kind.to_be_bytes());
            out.extend([0, 1, 0, 0, 0, 1]);
            out.extend((data.len() as u16).to_be_bytes());
            out.extend(data);
        }
        Some(out)
    }
}

use name_server::Records;

/// Two engines on one port of two addresses.
fn twins() -> [Engine; 2] {
    loop {
        let first = engine();
        let port = first.addr.port();
        let second: SocketAddr = (Ipv4Addr::new(127, 0, 0, 2), port).into();
        if std::net::TcpListener::bind(second).is_ok() {
            let answer = |_: &common::engine::Received, wire: &mut std::net::TcpStream| {
                wire.write_all(&hello()).map(|()| After::Keep)
            };
            return [first, Engine::start_on(second, answer)];
        }
    }
}

#[test]
fn the_addresses_of_a_name_are_followed_and_a_failing_name_server_changes_nothing() {
    let engines = twins();
    let addresses = |list: &[u8]| {
        Records::Addresses(list.iter().map(|n| Ipv4Addr::new(127, 0, 0, *n)).collect())
    };
    let (server, table) = name_server::start(Records::Broken);
    let port = engines[0].addr.port();
    let bed = bed(&[], &format!("{{ dns = \"vllm.test.:{port}\", server = \"{server}\" }}"));
    assert_eq!(chat(bed.addr).status(), 503);
    *table.lock().expect("lock") = addresses(&[2, 1]);
    up(&bed, &[&engines[0], &engines[1]]);
    for broken in [Records::Broken, Records::Silent, addresses(&[])] {
        *table.lock().expect("lock") = broken;
        std::thread::sleep(Duration::from_millis(1_500));
        assert_eq!(states(&bed), ["up", "up"]);
    }
    *table.lock().expect("lock") = addresses(&[2]);
    up(&bed, &[&engines[1]]);
    assert_eq!(chat(bed.addr).words(), "hello");
}

#[test]
fn srv_records_name_ports_and_ids() {
    let engines = [engine(), engine()];
    let services = |engines: &[Engine]| {
        let target = |e: &Engine| ("127-0-0-1.pod.test".to_owned(), e.addr.port());
        Records::Services(engines.iter().map(target).collect())
    };
    let (server, table) = name_server::start(services(&engines[..1]));
    let bed = bed(&[], &format!("{{ dns = \"_http._tcp.vllm.test.\", server = \"{server}\" }}"));
    up(&bed, &[&engines[0]]);
    let id = format!("127-0-0-1.pod.test:{}", engines[0].addr.port());
    assert_eq!(replicas(&bed)[0]["id"], id);
    *table.lock().expect("lock") = services(&engines);
    up(&bed, &[&engines[0], &engines[1]]);
}

/// A stand-in for the API server: a list, then what the test sends as watch events.
fn api_server(list: String, events: std::sync::mpsc::Receiver<String>) -> Engine {
    let events = std::sync::Mutex::new(events);
    Engine::start(move |received, wire| {
        assert!(
            received.path().starts_with("/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices?")
        );
        assert!(find(received.path().as_bytes(), b"kubernetes.io%2Fservice-name%3Dvllm").is_some());
        if !received.path().contains("watch=true") {
            return wire.write_all(&common::engine::json(200, &list)).map(|()| After::Keep);
        }
        wire.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
              transfer-encoding: chunked\r\n\r\n",
        )?;
        for event in events.lock().expect("lock").iter() {
            wire.write_all(&chunk(format!("{event}\n").as_bytes()))?;
        }
        Ok(After::Close)
    })
}

fn slice(version: u32, endpoints: &[(&Engine, &str)]) -> String {
    let endpoint = |(n, (engine, conditions)): (usize, &(&Engine, &str))| {
        format!(
            "{{\"addresses\":[\"{}\"],\"conditions\":{{{conditions}}},\
             \"targetRef\":{{\"kind\":\"Pod\",\"name\":\"vllm-{n}\"}}}}",
            engine.addr.ip()
        )
    };
    let endpoints: Vec<_> = endpoints.iter().enumerate().map(endpoint).collect();
    format!(
        "{{\"apiVersion\":\"discovery.k8s.io/v1\",\"kind\":\"EndpointSlice\",\
         \"metadata\":{{\"name\":\"vllm-a\",\"namespace\":\"llm\",\
         \"resourceVersion\":\"{version}\"}},\"addressType\":\"IPv4\",\"ports\":[],\
         \"endpoints\":[{}]}}",
        endpoints.join(",")
    )
}

#[test]
fn endpoint_slices_are_listed_and_watched() {
    let engines = twins();
    let port = engines[0].addr.port();
    let ready = "\"ready\":true,\"serving\":true,\"terminating\":false";
    let ending = "\"ready\":false,\"serving\":true,\"terminating\":true";
    let list = format!(
        "{{\"apiVersion\":\"discovery.k8s.io/v1\",\"kind\":\"EndpointSliceList\",\
         \"metadata\":{{\"resourceVersion\":\"5\"}},\"items\":[{}]}}",
        slice(5, &[(&engines[0], ready)])
    );
    let (send, events) = std::sync::mpsc::channel();
    let api = api_server(list, events);
    let dir = tempfile::tempdir().expect("folder");
    let kubeconfig = dir.path().join("config");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: t\nclusters:\n- name: t\n  cluster:\n    \
         server: http://{}\ncontexts:\n- name: t\n  context:\n    cluster: t\n    user: t\nusers:\n\
         - name: t\n  user: {{}}\n",
        api.addr
    );
    std::fs::write(&kubeconfig, text).expect("written");
    let of = format!(
        "{{ kubernetes = \"llm/vllm:{port}\", kubeconfig = \"{}\" }}",
        kubeconfig.display()
    );
    let bed = bed(&[], &of);
    up(&bed, &[&engines[0]]);
    assert_eq!(replicas(&bed)[0]["id"], format!("llm/vllm-0:{port}"));
    let modified = |slice: String| format!("{{\"type\":\"MODIFIED\",\"object\":{slice}}}");
    let both = slice(6, &[(&engines[0], ready), (&engines[1], ready)]);
    send.send(modified(both)).expect("sent");
    up(&bed, &[&engines[0], &engines[1]]);
    send.send(modified(slice(7, &[(&engines[0], ending), (&engines[1], ready)]))).expect("sent");
    eventually("it drains", || states(&bed) == ["draining", "up"]);
    for _ in 0..4 {
        assert_eq!(chat(bed.addr).words(), "hello");
    }
    assert_eq!(engines[0].count(), 0);
    send.send(modified(slice(8, &[]))).expect("sent");
    up(&bed, &[]);
    send.send(modified(slice(9, &[(&engines[1], ready)]))).expect("sent");
    up(&bed, &[&engines[1]]);
    drop((send, api));
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(states(&bed), ["up"], "without the API server the last list stays");
    assert_eq!(chat(bed.addr).words(), "hello");
}
