//! Where the store's servers are: names looked up, sentinels and clusters asked. Runs on the
//! control thread; cores only ever connect to addresses.

use std::net::SocketAddr;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, FromRedisValue, RedisResult, Value,
};
use tokio::time::{sleep, timeout};

use super::shared::{Shared, Topology};
use super::url::Layout;

/// Anew without being asked: names may lead elsewhere.
const EVERY: Duration = Duration::from_secs(10);
/// While nothing is known.
const ANXIOUS: Duration = Duration::from_millis(250);
/// Between two times, however often cores ask.
const PAUSE: Duration = Duration::from_millis(100);
/// For one server's answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Finds the servers until the task is dropped.
pub async fn run(shared: &Shared) {
    loop {
        let found = find(shared).await;
        let known = shared.topology.load();
        if let Some(found) = &found
            && *found != *known
        {
            shared.topology.publish(found.clone());
        }
        let rest = if found.is_some() { EVERY } else { ANXIOUS };
        let _ = timeout(rest, shared.moved.notified()).await;
        sleep(PAUSE).await;
    }
}

/// What is found now; `None`: nobody could say.
pub(super) async fn find(shared: &Shared) -> Option<Topology> {
    let place = &shared.place;
    for (host, port) in &place.hosts {
        let found = match &place.layout {
            Layout::Single => look_up(host, *port).await.map(Topology::Single),
            Layout::Sentinel(name) => master(shared, (host, *port), name).await,
            Layout::Cluster => slots(shared, (host, *port)).await,
        };
        if found.is_some() {
            return found;
        }
    }
    // The nodes that the URL names may all be gone while others that we know are there.
    if let Topology::Cluster(ranges) = &*shared.topology.load() {
        for (.., node) in ranges {
            let found = slots(shared, (&node.ip().to_string(), node.port())).await;
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

async fn look_up(host: &str, port: u16) -> Option<SocketAddr> {
    let found = timeout(PATIENCE, tokio::net::lookup_host((host, port))).await.ok()?.ok()?;
    // The same one each time, as long as it is there.
    found.min()
}

/// One answer; `None`: none in time.
pub(super) async fn ask(info: ConnectionInfo, command: &Cmd) -> Option<RedisResult<Value>> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let client = Client::open(info).ok()?;
    let connected = client.get_multiplexed_async_connection_with_config(&config);
    let connected = timeout(PATIENCE, connected).await.ok()?;
    let mut connection: MultiplexedConnection = match connected {
        Ok(connection) => connection,
        Err(error) => return Some(Err(error)),
    };
    timeout(PATIENCE, command.query_async(&mut connection)).await.ok()
}

async fn master(shared: &Shared, sentinel: (&str, u16), name: &str) -> Option<Topology> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(name);
    // Sentinels have logins of their own; the URL's are those of the servers.
    let info = shared.place.info(sentinel, false)?;
    let (host, port): (String, u16) =
        FromRedisValue::from_redis_value(ask(info, &command).await?.ok()?).ok()?;
    Some(Topology::Single(look_up(&host, port).await?))
}

async fn slots(shared: &Shared, node: (&str, u16)) -> Option<Topology> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let info = shared.place.info(node, true)?;
    let Value::Array(rows) = ask(info, &command).await?.ok()? else { return None };
    let mut ranges = Vec::new();
    for row in rows {
        let Value::Array(row) = row else { return None };
        let [from, to, master, ..] = row.as_slice() else { return None };
        let number = |value: &Value| match value {
            Value::Int(n) => u16::try_from(*n).ok().filter(|n| *n < super::slot::SLOTS),
            _ => None,
        };
        let Value::Array(master) = master else { return None };
        let [name, port, ..] = master.as_slice() else { return None };
        let port = match port {
            Value::Int(port) => u16::try_from(*port).ok()?,
            _ => return None,
        };
        let name: Option<String> = FromRedisValue::from_redis_value(name.clone()).ok()?;
        // No name: the one that was asked.
        let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| node.0.to_owned());
        ranges.push((number(from)?, number(to)?, look_up(&name, port).await?));
    }
    ranges.sort_unstable();
    (!ranges.is_empty()).then_some(Topology::Cluster(ranges))
}
