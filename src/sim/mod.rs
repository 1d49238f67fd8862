//! The simulated vLLM fleet.
