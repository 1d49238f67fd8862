//! Fuzzes bodies on their way to prompts: see `targets_prompt.rs`.

#![no_main]

#[path = "../src/targets_prompt.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::prompt(bytes);
});
