//! What lies on the wire between a client and the gateway: comments while a stream is silent, TLS;
//! and TLS between the gateway and its replicas.

#[path = "../support/answers.rs"]
mod answers;
#[path = "../support/command.rs"]
mod command;
mod comments;
#[path = "../common/mod.rs"]
mod common;
#[path = "../support/inputs.rs"]
mod inputs;
mod secure;
mod tls;
mod tls_ends;
mod tls_upstream;
