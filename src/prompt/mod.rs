//! The prompt as the engine will know it: messages -> template -> tokens -> block hashes.
//!
//! Pure functions of bytes, tables and a time that the caller gives: no I/O on the path of a
//! request, no clock, no locks. Tables are loaded off the cores and shared; caches belong to the
//! core that uses them.

pub mod blocks;
pub mod encode;
pub mod segments;
pub mod standing;
pub mod tokenizer;
