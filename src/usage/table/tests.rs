//! What the table keeps, and that no place is given out twice.

use std::os::unix::fs::FileExt;

use super::super::record::tests::record;
use super::*;
use crate::config::KeyDigest;

fn opening<'a>(id: &'a SmallId, tenant: &'a str) -> Opening<'a> {
    let key_id = KeyDigest::of(b"abc").key_id();
    Opening { started_unix_ms: 1_767_225_599_123, request_id: id, tenant, key_id, endpoint: "chat" }
}

fn left(file: &File) -> Left {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    Left::read(&bytes).unwrap()
}

#[test]
fn what_was_open_is_in_the_file_and_what_was_freed_is_not() {
    let file = tempfile::tempfile().unwrap();
    let table = Table::create(&file, 8, 7, 9).unwrap();
    let (longest, tenant) = (SmallId::new(&"i".repeat(64)).unwrap(), "t".repeat(128));
    let short = SmallId::new("r").unwrap();
    let long = table.take(&opening(&longest, &tenant)).unwrap();
    let gone = table.take(&opening(&short, "gone")).unwrap();
    table.release(gone);
    let log = LogPlace { device: 1, inode: 2, offset: 3 };
    table.writing_to(log);
    table.warm(100);
    let left = left(&file);
    assert_eq!((left.run, left.boot, left.log), (7, 9, log));
    let long = LeftOpen {
        place: long.0,
        started_unix_ms: 1_767_225_599_123,
        request_id: "i".repeat(64),
        endpoint: "chat".to_owned(),
        key_id: "ba7816bf".to_owned(),
        tenant,
        ended: None,
    };
    assert_eq!(left.open, [long]);
}

#[test]
fn a_record_in_the_table_is_the_record() {
    let file = tempfile::tempfile().unwrap();
    let table = Table::create(&file, 8, 7, 9).unwrap();
    let full = record("r");
    let nulls = UsageRecord {
        model: None,
        pool: None,
        adapter: None,
        replica: None,
        input_tokens: None,
        tokens_source: None,
        cost: None,
        predicted_ttft_ms: None,
        stream: false,
        outcome: Outcome::Ok,
        ..record("other")
    };
    for record in [&full, &nulls] {
        let id = record.request_id;
        let endpoint = record.endpoint;
        let opening = Opening { endpoint, ..opening(&id, &record.tenant) };
        let place = table.take(&opening).unwrap();
        table.ended(place, record);
        let left = left(&file);
        let (mut ours, mut want) = (Vec::new(), Vec::new());
        left.open[0].write_line(&mut ours);
        record.write_json(&mut want);
        assert_eq!(String::from_utf8(ours).unwrap(), String::from_utf8(want).unwrap());
        assert_eq!(left.open[0].ended.as_ref().unwrap().line, None);
        table.pending(place, 99);
        let line = self::left(&file).open[0].ended.as_ref().unwrap().line;
        assert_eq!(line, Some(99));
        table.release(place);
    }
}

#[test]
fn a_name_without_room_is_left_out_and_the_others_stay() {
    let file = tempfile::tempfile().unwrap();
    let table = Table::create(&file, 1, 7, 9).unwrap();
    let long = "m".repeat(1000);
    let record = UsageRecord { model: Some(long.as_str().into()), ..record("r") };
    let place = table.take(&opening(&record.request_id, "acme")).unwrap();
    table.ended(place, &record);
    let mut line = Vec::new();
    left(&file).open[0].write_line(&mut line);
    let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
    assert_eq!((&line["model"], &line["pool"]), (&serde_json::Value::Null, &"llama-8b".into()));
    assert_eq!((&line["adapter"], &line["replica"]), (&"sql".into(), &"r2".into()));
}

#[test]
fn a_full_table_gives_none_and_the_place_freed_last_comes_first() {
    let file = tempfile::tempfile().unwrap();
    let table = Table::create(&file, 3, 1, 1).unwrap();
    let id = SmallId::new("r").unwrap();
    let taken: Vec<_> = (0..3).map(|_| table.take(&opening(&id, "t")).unwrap()).collect();
    assert_eq!(taken, [Place(0), Place(1), Place(2)]);
    assert!(table.take(&opening(&id, "t")).is_none());
    table.release(Place(1));
    table.release(Place(0));
    assert_eq!(table.take(&opening(&id, "t")), Some(Place(0)));
    assert_eq!(table.take(&opening(&id, "t")), Some(Place(1)));
    assert_eq!(left(&file).open.len(), 3);
}

#[test]
fn threads_never_share_a_place() {
    let file = tempfile::tempfile().unwrap();
    let table = Table::create(&file, 64, 1, 1).unwrap();
    let owners: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let id = SmallId::new("r").unwrap();
                for _ in 0..20_000 {
                    let place = table.take(&opening(&id, "t")).unwrap();
                    let owner = &owners[place.0 as usize];
                    assert_eq!(owner.fetch_add(1, AcqRel), 0, "two owners of {place:?}");
                    owner.fetch_sub(1, AcqRel);
                    table.release(place);
                }
            });
        }
    });
    assert!(left(&file).open.is_empty());
}

#[test]
fn bytes_that_are_no_table_are_none_and_a_damaged_one_gives_what_it_can() {
    assert_eq!(Left::read(&[]), None);
    assert_eq!(Left::read(&[0; 100_000]), None);
    let file = tempfile::tempfile().unwrap();
    let table = Table::create(&file, 2, 1, 1).unwrap();
    let id = SmallId::new("r").unwrap();
    table.take(&opening(&id, "t")).unwrap();
    // Lengths beyond the place.
    table.place(Place(0))[0].store(u64::MAX << 8 | u64::from(OPEN), Relaxed);
    assert_eq!(left(&file).open, []);
    // Cut short, it has no places.
    let mut bytes = vec![0; HEADER_WORDS * 8 + 40];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(Left::read(&bytes).unwrap().open, []);
}
