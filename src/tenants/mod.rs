//! Keys and the tenants behind them.
//!
//! A presented key is hashed at once and never seen again: it is borrowed from the head, has no
//! `Display`, and reaches no log, record or upstream. State: the immutable [`KeyTable`], one in
//! each published configuration; any thread reads it, nobody locks. No I/O.

mod key;
pub mod quota;
mod table;

pub use crate::config::{KeyDigest, KeyId, Secret};
pub use key::{AuthError, ClientKey};
pub use table::{KeyTable, OPEN_TENANT, TenantRef};
