//! What the target of KV events asserts about any bytes: as a payload they end, and what the map
//! says it holds is what the index was told; as a connection they are the same however they are
//! cut.

use std::collections::HashMap;

use expedite::prompt::blocks::BlockHash;
use expedite::replicas::events::decode::Decoder;
use expedite::replicas::events::map::{Map, Sink};
use expedite::zmtp::{Connection, Incoming, Role, opening};

/// Copies held by hash.
#[derive(Default)]
struct Held(HashMap<BlockHash, u64>);

impl Sink for Held {
    fn stored(&mut self, hash: BlockHash) {
        *self.0.entry(hash).or_default() += 1;
    }
    fn removed(&mut self, hash: BlockHash) {
        let copies = self.0.get_mut(&hash).expect("what is removed was stored");
        *copies -= 1;
        if *copies == 0 {
            self.0.remove(&hash);
        }
    }
    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Any bytes. Returns the events that they held as a payload.
pub(crate) fn kv_events(bytes: &[u8]) -> usize {
    wire(bytes);
    payload(bytes)
}

fn payload(bytes: &[u8]) -> usize {
    let mut decoder = Decoder::default();
    let Ok(batch) = decoder.read(bytes) else { return 0 };
    let (mut map, mut held, mut events) = (Map::new(4, 1), Held::default(), 0);
    map.expect(batch.keys);
    for event in batch.events() {
        map.apply(&event, &mut held);
        events += 1;
    }
    assert_eq!(held.0.values().sum::<u64>(), map.live());
    assert_eq!(map.held().iter().map(|(_, copies)| u64::from(*copies)).sum::<u64>(), map.live());
    assert!(map.keys() as u64 <= map.live());
    let counts = map.counts();
    assert!(counts.removed <= counts.stored);
    events
}

fn wire(bytes: &[u8]) {
    for greeted in [false, true] {
        let whole = heard(greeted, [bytes]);
        let step = bytes.len() / 16 + 1;
        for cut in (1..bytes.len()).step_by(step) {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(heard(greeted, [head, tail]), whole, "cut at {cut}");
        }
    }
}

/// What a subscriber makes of bytes read piece by piece, after a greeting or without one.
fn heard<'p>(greeted: bool, pieces: impl IntoIterator<Item = &'p [u8]>) -> Vec<String> {
    let (mut connection, mut heard) = (Connection::new(Role::Sub), Vec::new());
    if greeted {
        *connection.buffer() = opening(Role::Pub);
    }
    for piece in pieces {
        connection.buffer().extend_from_slice(piece);
        loop {
            heard.push(match connection.incoming() {
                Ok(Some(Incoming::Message(message))) => {
                    format!("{:?}", message.frames().collect::<Vec<_>>())
                }
                Ok(Some(other)) => format!("{other:?}"),
                Ok(None) => break,
                Err(error) => {
                    heard.push(format!("{error:?}"));
                    return heard;
                }
            });
        }
    }
    heard
}
