//! What a cache remembers, and what it costs.

use super::*;
use crate::prompt::tokenizer::tests::loaded;

#[test]
fn a_part_is_known_by_its_text_and_its_tokenizer() {
    let (one, other) = (loaded(), crate::prompt::tokenizer::tests::loaded_with(|_| {}));
    let mut cache = SegmentCache::new(1 << 20);
    let mut ids = vec![1];
    assert!(!cache.get(&one, "a part", &mut ids));
    cache.put(&one, "a part", &[2, 3]);
    assert!(cache.get(&one, "a part", &mut ids));
    assert!(!cache.get(&one, "a part ", &mut ids));
    assert!(!cache.get(&other, "a part", &mut ids));
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!((cache.stats().hits, cache.stats().misses), (1, 3));
}

#[test]
fn another_text_with_the_same_hash_is_not_known() {
    let mut generation = Generation::default();
    generation.put(7, 0, "a part", &[2, 3], 4096);
    assert_eq!(generation.get(7, 0, "a part"), Some([2, 3].as_slice()));
    assert_eq!(generation.get(7, 0, "a port"), None);
    assert_eq!(generation.get(7, 1, "a part"), None);
    // The later one takes the place.
    generation.put(7, 0, "a port", &[4], 4096);
    assert_eq!(generation.get(7, 0, "a part"), None);
    assert_eq!(generation.get(7, 0, "a port"), Some([4].as_slice()));
}

#[test]
fn what_is_used_outlives_what_is_not() {
    let tokenizer = loaded();
    let mut cache = SegmentCache::new(32 << 10);
    cache.put(&tokenizer, "used", &[1]);
    cache.put(&tokenizer, "unused", &[2]);
    let mut ids = Vec::new();
    for i in 0..2000_u32 {
        cache.put(&tokenizer, &format!("part {i}"), &[i; 10]);
        assert!(cache.get(&tokenizer, "used", &mut ids), "{i}");
        assert!(cache.stats().bytes <= 32 << 10);
    }
    assert!(!cache.get(&tokenizer, "unused", &mut ids));
    assert!(cache.stats().turns > 2);
}

#[test]
fn what_is_too_large_a_share_is_not_kept() {
    let tokenizer = loaded();
    let mut cache = SegmentCache::new(64 << 10);
    let part = "x".repeat(1000);
    cache.put(&tokenizer, &part, &[1]);
    assert!(!cache.get(&tokenizer, &part, &mut Vec::new()));
    cache.put(&tokenizer, &part[..900], &[1]);
    assert!(cache.get(&tokenizer, &part[..900], &mut Vec::new()));
    let mut none = SegmentCache::new(0);
    none.put(&tokenizer, "a", &[1]);
    assert!(!none.get(&tokenizer, "a", &mut Vec::new()));
    assert_eq!(none.stats().bytes, 0);
}

#[test]
fn memory_is_not_allocated_again() {
    let mut generation = Generation::default();
    let bytes_max = 64 << 10;
    let mut i = 0;
    let places = |generation: &Generation| {
        (generation.text.as_ptr(), generation.ids.as_ptr(), generation.table.capacity())
    };
    generation.put(0, 0, "first", &[1], bytes_max);
    let before = places(&generation);
    for _ in 0..3 {
        while generation.has_room(200, bytes_max) {
            i += 1;
            generation.put(i, 0, &"t".repeat(60), &[1; 20], bytes_max);
        }
        generation.clear();
        assert_eq!(places(&generation), before);
    }
}
