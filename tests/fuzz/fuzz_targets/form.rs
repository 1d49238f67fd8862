//! Fuzzes forms and their edits: see `targets_openai.rs`.

#![no_main]

#[allow(dead_code)] // Each target uses its part.
#[path = "../src/targets_openai.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::form(bytes));
