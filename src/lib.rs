//! Expedite: a gateway in front of fleets of vLLM replicas.

pub mod admin;
pub mod bench;
pub mod cli;
pub mod config;
pub mod gateway;
pub mod http1;
pub mod net;
pub mod openai;
pub mod replicas;
pub mod routing;
pub mod runtime;
pub mod sim;
pub mod sse;
pub mod tenants;
pub mod usage;
