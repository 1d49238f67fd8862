//! Budgets in a shared store, against a real server: every reply as one plain model gives it, over
//! random histories; gateways that share a budget to the last token; a store that goes, hangs,
//! fills up, forgets, and comes back.

mod common;
#[path = "support/quota_model.rs"]
mod quota_model;
#[path = "support/redis.rs"]
mod redis_server;

#[path = "quota_store/bed.rs"]
mod bed;
#[path = "quota_store/gateways.rs"]
mod gateways;
#[path = "quota_store/histories.rs"]
mod histories;
#[path = "quota_store/layouts.rs"]
mod layouts;
#[path = "quota_store/memory.rs"]
mod memory;
#[path = "quota_store/sharing.rs"]
mod sharing;
#[path = "quota_store/trouble.rs"]
mod trouble;
