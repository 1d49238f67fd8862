//! A cluster whose slots move, and sentinels that name another master.

use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;

use expedite::tenants::quota::store::{Denied, Who};

use super::bed::{Gateway, command, gateway, quota, who};
use super::common::eventually;
use super::redis_server::Redis;

/// Three masters without replicas, a third of the slots each.
fn cluster() -> (tempfile::TempDir, Vec<Redis>) {
    let folder = tempfile::tempdir().expect("folder");
    let nodes: Vec<_> = (0..3)
        .map(|n| {
            let file = folder.path().join(format!("{n}.conf"));
            let file = file.to_str().expect("path").to_owned();
            let timeout =
                ["--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no"];
            let on = ["--cluster-enabled", "yes", "--cluster-config-file", &file];
            Redis::with(&[&on[..], &timeout[..]].concat())
        })
        .collect();
    for (node, slots) in nodes.iter().zip([["0", "5460"], ["5461", "10922"], ["10923", "16383"]]) {
        command(node, &["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]);
        command(node, &["CLUSTER", "MEET", "127.0.0.1", &nodes[0].port.to_string()]);
    }
    for node in &nodes {
        eventually("the cluster is whole", || {
            let info = command(node, &["CLUSTER", "INFO"]);
            let text: String = redis::FromRedisValue::from_redis_value(info).expect("text");
            let known = text.contains("cluster_known_nodes:3");
            known
                && text.contains("cluster_state:ok")
                && text.contains("cluster_slots_assigned:16384")
        });
    }
    (folder, nodes)
}

/// Tokens of a request.
const COST: u64 = 20;

async fn passes(gateway: &Gateway, who: &Arc<Who>) -> bool {
    match gateway.takes(who, COST).await {
        Ok(hold) => {
            gateway.client.settle(hold, COST);
            true
        }
        Err(_) => false,
    }
}

fn number(value: redis::Value) -> u64 {
    redis::FromRedisValue::from_redis_value(value).expect("a number")
}

#[test]
fn tenants_are_on_their_nodes_and_follow_their_slots() {
    let (_folder, nodes) = cluster();
    let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", nodes[0].port, nodes[1].port);
    let settings = quota(&url, "timeout_ms = 5000\non_store_down = \"refuse\"");
    gateway(&settings, async |gateway| {
        let tenants: Vec<_> = (0..30).map(|n| who(&format!("t{n}"), 1, 1_000, 5)).collect();
        gateway.until("the cluster is known", async || passes(&gateway, &tenants[0]).await).await;
        let [.., alone] = gateway.decisions();
        for who in &tenants {
            assert!(passes(&gateway, who).await, "{who:?}");
        }
        let there = |node: &Redis| number(command(node, &["DBSIZE"]));
        gateway.until("each node has some", async || nodes.iter().all(|n| there(n) > 4)).await;
        // t0's slot moves while it is asked for.
        let slot = number(command(&nodes[0], &["CLUSTER", "KEYSLOT", "t0"])).to_string();
        let id = |node: &Redis| -> String {
            redis::FromRedisValue::from_redis_value(command(node, &["CLUSTER", "MYID"]))
                .expect("id")
        };
        let owner = match slot.parse::<u64>().expect("slot") {
            0..=5460 => 0,
            5461..=10_922 => 1,
            _ => 2,
        };
        let (from, to) = (&nodes[owner], &nodes[(owner + 1) % 3]);
        // One stays in flight, so that the tenant has both of its keys.
        let held = gateway.takes(&tenants[0], COST).await.expect("room");
        command(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        command(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
        assert!(passes(&gateway, &tenants[0]).await, "what is still there is asked there");
        let keys = command(from, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
        let keys: Vec<String> = redis::FromRedisValue::from_redis_value(keys).expect("keys");
        for key in &keys {
            command(from, &["MIGRATE", "127.0.0.1", &to.port.to_string(), key, "0", "5000"]);
        }
        assert!(passes(&gateway, &tenants[0]).await, "ASK is followed");
        for node in &nodes {
            command(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
        }
        for _ in 0..3 {
            assert!(passes(&gateway, &tenants[0]).await, "MOVED is followed");
        }
        gateway.client.settle(held, COST);
        assert!(gateway.up() && gateway.decisions()[2] == alone);
        gateway.client.close(2_000).await;
    });
}

/// A sentinel that alone decides, soon.
struct Sentinel {
    port: u16,
    child: Child,
    _folder: tempfile::TempDir,
}

impl Sentinel {
    fn start(master: &Redis) -> Sentinel {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("sentinel.conf");
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
        let port = port.local_addr().expect("address").port();
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor m 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds m 300\nsentinel failover-timeout m 2000\n",
            master.port
        );
        std::fs::write(&file, text).expect("file");
        let child = Command::new("redis-server")
            .arg(&file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server: scripts/test installs it");
        Sentinel { port, child, _folder: folder }
    }

    fn ask(&self, words: &[&str]) -> Option<redis::Value> {
        let url = format!("redis://127.0.0.1:{}", self.port);
        let mut connection = redis::Client::open(url).ok()?.get_connection().ok()?;
        redis::cmd("SENTINEL").arg(words).query(&mut connection).ok()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_failover_refuses_nobody_and_overspends_no_more_than_was_open() {
    let (mut master, replica) = (Redis::start(), Redis::start());
    command(&replica, &["REPLICAOF", "127.0.0.1", &master.port.to_string()]);
    let sentinel = Sentinel::start(&master);
    eventually("the sentinel knows the replica", || {
        let known = sentinel.ask(&["replicas", "m"]);
        known.is_some_and(|known| matches!(known, redis::Value::Array(list) if !list.is_empty()))
    });
    let url = format!("redis+sentinel://127.0.0.1:{}/m/0", sentinel.port);
    gateway(&quota(&url, "timeout_ms = 100"), async |gateway| {
        let (rate, burst) = (10_000, 1_000_000);
        let who = who("acme", rate, burst, 1_000);
        gateway.until("the master is known", async || passes(&gateway, &who).await).await;
        gateway
            .until("something is taken ahead", async || {
                assert!(passes(&gateway, &who).await);
                gateway.decisions()[1] > 100
            })
            .await;
        master.kill();
        let mut refused = 0;
        for _ in 0..300 {
            match gateway.takes(&who, COST).await {
                Ok(hold) => gateway.client.settle(hold, COST),
                Err(Denied::Refused(..)) => refused += 1,
                Err(Denied::Away) => panic!("the policy is to go on"),
            }
            expedite::net::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(refused, 0);
        let gateway_up = Rc::clone(&gateway);
        gateway
            .until("the new master serves", async || {
                passes(&gateway, &who).await && gateway_up.up()
            })
            .await;
        gateway.client.close(2_000).await;
        let (_, flight, _) = super::bed::account(&replica, "acme");
        assert_eq!(flight, 0);
    });
}
