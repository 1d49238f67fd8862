//! What threads share: snapshot, clock, metric cells, signals.
