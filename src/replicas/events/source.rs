//! Where an engine publishes its KV events: as configured, or as it tells itself. Pure.

/// Where one engine process (a replica, or one of its data-parallel ranks) is to be heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The rank; `None` without data parallelism: whatever rank it tells is then taken.
    pub rank: Option<u32>,
    /// Host of both sockets.
    pub host: String,
    /// Port of the PUB socket.
    pub port: u16,
    /// Port of the ROUTER socket that replays; `None`: there is none, so a gap costs what is known.
    pub replay_port: Option<u16>,
    /// Topics to subscribe to, by prefix; empty for all.
    pub topic: String,
}

/// What a template such as `tcp://{host}:5557` says for `host` and `rank`: host and port. vLLM adds
/// the rank to the port. `None` when it is no endpoint to connect to.
#[must_use]
pub fn endpoint(template: &str, host: &str, rank: Option<u32>) -> Option<(String, u16)> {
    let (told, port) = template.strip_prefix("tcp://")?.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let port = port.checked_add(u16::try_from(rank.unwrap_or(0)).ok()?)?;
    let host = match told {
        // What a server is bound to says nothing of where it is.
        "{host}" | "*" | "0.0.0.0" | "[::]" | "::" => host,
        other => other,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty() && port > 0 && !host.contains(['{', '}', '*', '/']))
        .then(|| (host.to_owned(), port))
}

/// A source as configured: template of the events, and of the replay if there is one.
#[must_use]
pub fn configured(
    events: &str,
    replay: Option<&str>,
    host: &str,
    rank: Option<u32>,
) -> Option<Source> {
    let (host, port) = endpoint(events, host, rank)?;
    // One host for both, as the engine is one process.
    let replay_port = replay.and_then(|replay| endpoint(replay, &host, rank)).map(|(_, port)| port);
    Some(Source { rank, host, port, replay_port, topic: String::new() })
}

/// The sources in an answer to `GET /kv_event_sources` (vLLM after 0.26), `host` being where it was
/// asked: `{"0": {"endpoint": ..., "replay_endpoint": ..., "topic": ...}}`, by rank. Those that
/// connect to a subscriber instead of waiting for one are left out.
#[must_use]
pub fn told(answer: &[u8], host: &str) -> Vec<Source> {
    let answer: serde_json::Value = serde_json::from_slice(answer).unwrap_or_default();
    let Some(ranks) = answer.as_object() else { return Vec::new() };
    let one = ranks.len() == 1;
    let source = |(rank, facts): (&String, &serde_json::Value)| {
        let rank: u32 = rank.parse().ok()?;
        let text = |name: &str| facts.get(name).and_then(serde_json::Value::as_str);
        let events = text("endpoint")?;
        if !binds(events) {
            return None;
        }
        // The endpoints told are those of the rank already.
        let (_, port) = endpoint(events, host, None)?;
        // The replay socket always binds, even where its endpoint names an address.
        let replay = text("replay_endpoint").and_then(|replay| endpoint(replay, host, None));
        Some(Source {
            rank: (!one || rank > 0).then_some(rank),
            host: host.to_owned(),
            port,
            replay_port: replay.map(|(_, port)| port),
            topic: text("topic").unwrap_or_default().to_owned(),
        })
    };
    let mut all: Vec<Source> = ranks.iter().filter_map(source).collect();
    all.sort_by_key(|source| source.rank);
    all
}

/// vLLM binds its publisher when the endpoint has a wildcard, and connects otherwise.
fn binds(endpoint: &str) -> bool {
    endpoint.contains('*') || endpoint.contains("::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_names_host_and_rank() {
        let at = |host: &str, port: u16| Some((host.to_owned(), port));
        assert_eq!(endpoint("tcp://{host}:5557", "10.0.0.7", None), at("10.0.0.7", 5557));
        assert_eq!(endpoint("tcp://{host}:5557", "r-1.pool", Some(3)), at("r-1.pool", 5560));
        assert_eq!(endpoint("tcp://*:5557", "h", Some(0)), at("h", 5557));
        assert_eq!(endpoint("tcp://{host}:5557", "[fd00::1]", None), at("fd00::1", 5557));
        assert_eq!(endpoint("tcp://events.internal:1", "h", None), at("events.internal", 1));
        for bad in ["", "tcp://{host}", "ipc://x:1", "tcp://{name}:1", "tcp://h:70000", "tcp://:1"]
        {
            assert_eq!(endpoint(bad, "h", None), None, "{bad}");
        }
        assert_eq!(endpoint("tcp://h:65535", "h", Some(1)), None);
        assert_eq!(endpoint("tcp://h:5557", "h", Some(70_000)), None);
        let source = configured("tcp://{host}:5557", Some("tcp://{host}:6557"), "h", Some(1));
        let expected = Source {
            rank: Some(1),
            host: "h".into(),
            port: 5558,
            replay_port: Some(6558),
            topic: String::new(),
        };
        assert_eq!(source, Some(expected));
        assert_eq!(configured("tcp://{host}:5557", None, "h", None).unwrap().replay_port, None);
    }

    #[test]
    fn an_engine_tells_its_sources() {
        // As vLLM 0.32 answers with two ranks, but for the second one's replay.
        let answer = br#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq",
            "endpoint":"tcp://*:19030","replay_endpoint":"tcp://127.0.0.1:20030",
            "buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv@a"},
            "1":{"endpoint":"tcp://*:19031","replay_endpoint":null,"topic":""}}"#;
        let all = told(answer, "10.0.0.7");
        let seen: Vec<_> =
            all.iter().map(|s| (s.rank, s.port, s.replay_port, s.topic.as_str())).collect();
        assert_eq!(seen, [(Some(0), 19030, Some(20030), "kv@a"), (Some(1), 19031, None, "")]);
        assert!(all.iter().all(|source| source.host == "10.0.0.7"));
        let one = told(br#"{"0": {"endpoint": "tcp://*:5557"}}"#, "h");
        assert_eq!((one[0].rank, one[0].host.as_str()), (None, "h"));
        let connecting = br#"{"0": {"endpoint": "tcp://127.0.0.1:5557"}}"#;
        for none in [&connecting[..], b"{}", b"[]", b"no", br#"{"a": {}}"#, br#"{"0": 5}"#] {
            assert_eq!(told(none, "h"), []);
        }
    }
}
