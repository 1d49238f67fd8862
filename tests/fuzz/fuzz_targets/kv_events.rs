//! Fuzzes KV events and the wire that brings them: see `targets_kv.rs`.

#![no_main]

#[path = "../src/targets_kv.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::kv_events(bytes);
});
