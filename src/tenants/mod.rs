//! Keys and the tenants behind them.
//!
//! A presented key is hashed at once and never seen again: it is borrowed from the head, has no
//! `Display`, and reaches no log, record or upstream. What a tenant may spend is in [`quota`].
//!
//! State: the immutable [`KeyTable`] and the [`Accounts`], one of each in every published
//! configuration; any thread reads them, nobody locks. No I/O.

mod accounts;
mod key;
pub mod quota;
mod salt;
mod table;

pub use crate::config::{KeyDigest, KeyId, Secret};
pub use accounts::{Accounts, TenantAccounts};
pub use key::{AuthError, ClientKey};
pub use salt::Salts;
pub use table::{KeyTable, OPEN_TENANT, TenantRef};
