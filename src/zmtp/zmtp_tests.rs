//! The wire of ZeroMQ: handshakes, messages however they are cut, and what is refused.

use proptest::prelude::*;

use super::*;

/// What came of it, owned.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Ready,
    Message(Vec<Vec<u8>>),
    Ping(Vec<u8>),
    Failed(Error),
}

fn feed(connection: &mut Connection, bytes: &[u8], got: &mut Vec<Got>) {
    connection.buffer().extend_from_slice(bytes);
    loop {
        got.push(match connection.incoming() {
            Ok(None) => return,
            Ok(Some(Incoming::Ready)) => Got::Ready,
            Ok(Some(Incoming::Ping(context))) => Got::Ping(context.to_vec()),
            Ok(Some(Incoming::Message(message))) => {
                Got::Message(message.frames().map(<[u8]>::to_vec).collect())
            }
            Err(error) => {
                got.push(Got::Failed(error));
                return;
            }
        });
    }
}

fn read(role: Role, pieces: &[&[u8]]) -> Vec<Got> {
    let (mut connection, mut got) = (Connection::new(role), Vec::new());
    for piece in pieces {
        feed(&mut connection, piece, &mut got);
        if matches!(got.last(), Some(Got::Failed(_))) {
            break;
        }
    }
    got
}

fn failure(role: Role, bytes: &[u8]) -> Option<Error> {
    match read(role, &[bytes]).pop() {
        Some(Got::Failed(error)) => Some(error),
        _ => None,
    }
}

/// A publisher's opening, and then `rest`.
fn published(rest: &[u8]) -> Vec<u8> {
    let mut bytes = opening(Role::Pub);
    bytes.extend_from_slice(rest);
    bytes
}

#[test]
fn the_opening_is_that_of_the_specification() {
    let bytes = opening(Role::Sub);
    assert_eq!(&bytes[..16], b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL");
    assert!(bytes[16..64].iter().all(|byte| *byte == 0));
    assert_eq!(&bytes[64..], b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB");
}

#[test]
fn only_sockets_that_talk_to_each_other_meet() {
    for (ours, theirs) in [(Role::Sub, Role::Pub), (Role::Dealer, Role::Router)] {
        assert_eq!(read(ours, &[&opening(theirs)]), [Got::Ready]);
        assert_eq!(read(theirs, &[&opening(ours)]), [Got::Ready]);
    }
    assert_eq!(failure(Role::Sub, &opening(Role::Router)), Some(Error::WrongPeer));
    assert_eq!(failure(Role::Dealer, &opening(Role::Pub)), Some(Error::WrongPeer));
}

#[test]
fn strangers_are_told_at_once() {
    assert_eq!(failure(Role::Sub, b"HTTP/1.1 400 Bad Request\r\n"), Some(Error::NotZmtp));
    assert_eq!(read(Role::Sub, &[b"\xff\0\0"]), []);
    let mut old = opening(Role::Pub);
    old[10] = 1;
    assert_eq!(failure(Role::Sub, &old), Some(Error::NotZmtp));
    let mut secured = opening(Role::Pub);
    secured[12..17].copy_from_slice(b"CURVE");
    assert_eq!(failure(Role::Sub, &secured), Some(Error::Mechanism));
    let mut longer = opening(Role::Pub);
    longer[16] = b'S';
    assert_eq!(failure(Role::Sub, &longer), Some(Error::Mechanism));
}

#[test]
fn a_length_that_is_only_claimed_reserves_nothing() {
    for length in [MESSAGE_BYTES_MAX as u64 + 1, 1 << 40, u64::MAX] {
        let mut head = vec![LONG];
        head.extend_from_slice(&length.to_be_bytes());
        let mut connection = Connection::new(Role::Sub);
        let mut got = Vec::new();
        feed(&mut connection, &published(&head), &mut got);
        assert_eq!(got, [Got::Ready, Got::Failed(Error::TooLarge)]);
        assert!(connection.buffer().capacity() < 4096);
    }
    let within = [&[LONG][..], &(MESSAGE_BYTES_MAX as u64).to_be_bytes()].concat();
    let mut connection = Connection::new(Role::Sub);
    let mut got = Vec::new();
    feed(&mut connection, &published(&within), &mut got);
    assert_eq!(got, [Got::Ready]);
    assert!(connection.buffer().capacity() < 4096, "waiting for it reserves nothing either");
}

#[test]
fn a_message_has_a_largest_size_and_number_of_frames() {
    let mut bytes = Vec::new();
    message(&mut bytes, &[b"a".as_slice(); FRAMES_MAX]);
    assert_eq!(read(Role::Sub, &[&published(&bytes)]).len(), 2);
    let mut bytes = Vec::new();
    message(&mut bytes, &[b"a".as_slice(); FRAMES_MAX + 1]);
    assert_eq!(failure(Role::Sub, &published(&bytes)), Some(Error::TooLarge));
    // Each frame within the limit, the message not.
    let mut bytes = Vec::new();
    let half = vec![0; MESSAGE_BYTES_MAX / 2];
    message(&mut bytes, &[&half, &half, b"a"]);
    assert_eq!(failure(Role::Sub, &published(&bytes)), Some(Error::TooLarge));
}

#[test]
fn commands_are_heard_where_they_belong() {
    let mut ping = Vec::new();
    command(&mut ping, "PING", b"\0\x0aabc");
    command(&mut ping, "SOMETHING", b"new");
    message(&mut ping, &[b"x"]);
    let x = Got::Message(vec![b"x".to_vec()]);
    let got = read(Role::Sub, &[&published(&ping)]);
    assert_eq!(got, [Got::Ready, Got::Ping(b"abc".to_vec()), x]);
    let mut answer = Vec::new();
    pong(&mut answer, b"abc");
    assert_eq!(answer, b"\x04\x08\x04PONGabc");

    let mut error = Vec::new();
    command(&mut error, "ERROR", b"\x03no!");
    assert_eq!(failure(Role::Sub, &published(&error)), Some(Error::Refused));
    let early = &published(b"")[..64];
    assert_eq!(failure(Role::Sub, &[early, b"\0\x01x"].concat()), Some(Error::Malformed));
    assert_eq!(failure(Role::Sub, &published(b"\x05\x01x")), Some(Error::Malformed));
    assert_eq!(failure(Role::Sub, &published(b"\x01\x01x\x04\x02\x01x")), Some(Error::Malformed));
    assert_eq!(failure(Role::Sub, &published(b"\x08\x01x")), Some(Error::Malformed));
    assert_eq!(failure(Role::Sub, &published(b"\x04\x02\x05x")), Some(Error::Malformed));
}

#[test]
fn a_message_says_whether_it_has_so_many_frames() {
    let mut bytes = Vec::new();
    message(&mut bytes, &[b"topic", b"12345678", b""]);
    let mut connection = Connection::new(Role::Sub);
    connection.buffer().extend_from_slice(&published(&bytes));
    assert_eq!(connection.incoming(), Ok(Some(Incoming::Ready)));
    let Ok(Some(Incoming::Message(found))) = connection.incoming() else { panic!("no message") };
    assert_eq!(found.exactly::<3>(), Some([&b"topic"[..], b"12345678", b""]));
    assert_eq!(found.exactly::<2>(), None);
    assert_eq!(found.exactly::<4>(), None);
}

#[test]
fn a_large_message_leaves_a_small_buffer() {
    let body = vec![7; 2 << 20];
    let mut bytes = Vec::new();
    message(&mut bytes, &[&body]);
    let (mut connection, mut got) = (Connection::new(Role::Sub), Vec::new());
    feed(&mut connection, &published(&bytes), &mut got);
    assert_eq!(got, [Got::Ready, Got::Message(vec![body])]);
    assert!(connection.buffer().capacity() <= BUFFER_BYTES_KEPT);
}

proptest! {
    #[test]
    fn messages_are_the_same_however_they_are_cut(
        messages in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 1..5), 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut bytes = opening(Role::Pub);
        for frames in &messages {
            let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            message(&mut bytes, &frames);
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        cuts.sort_unstable();
        let (mut pieces, mut start) = (Vec::new(), 0);
        for cut in cuts.into_iter().chain([bytes.len()]) {
            pieces.push(&bytes[start..cut]);
            start = cut;
        }
        let got = read(Role::Sub, &pieces);
        let all = messages.into_iter().map(Got::Message);
        let expected: Vec<Got> = [Got::Ready].into_iter().chain(all).collect();
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn any_bytes_end_in_messages_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        read(Role::Sub, &[&bytes]);
        read(Role::Dealer, &[&[opening(Role::Router), bytes].concat()]);
    }
}
