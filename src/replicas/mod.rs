//! What we know of the fleet: registry and health.
