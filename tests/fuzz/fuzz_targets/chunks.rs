//! Fuzzes chunk framing: see `targets.rs`.

#![no_main]

#[allow(dead_code)] // Each target uses its part.
#[path = "../src/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::chunks(bytes));
