//! Pick one replica.
