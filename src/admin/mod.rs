//! The admin listener: metrics, readiness, status.
