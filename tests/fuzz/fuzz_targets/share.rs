//! Fuzzes what gateways tell each other: see `targets_share.rs`.

#![no_main]

#[path = "../src/targets_share.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::share(bytes));
