//! What threads share: snapshot, clock, metric cells, signals.

pub mod cells;
pub mod clock;
pub mod exposition;
