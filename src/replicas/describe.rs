//! A replica as files and the admin listener describe it. Pure.

use serde::Deserialize;

use crate::config::{self, is_name, is_replica_id};

/// Not yet checked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    pub url: String,
    pub id: Option<String>,
    pub zone: Option<String>,
    pub weight: Option<f64>,
}

impl Description {
    /// The replica, or what is wrong with it.
    pub(super) fn checked(self) -> Result<config::Replica, String> {
        let replica = config::Replica::parse(&self.url)?;
        if self.id.as_ref().is_some_and(|id| !is_replica_id(id)) {
            return Err(
                "id must be 1 to 128 visible ASCII characters without quotes, and not dots \
                        alone"
                    .to_owned(),
            );
        }
        if self.zone.as_ref().is_some_and(|zone| !is_name(zone)) {
            return Err("zone must be 1 to 128 visible ASCII characters without quotes".to_owned());
        }
        let weight = self.weight.unwrap_or(1.0);
        if !(0.001..=1000.0).contains(&weight) {
            return Err("weight must be from 0.001 to 1000".to_owned());
        }
        let id = self.id.unwrap_or(replica.id);
        Ok(config::Replica { id, zone: self.zone, weight, ..replica })
    }
}

/// Reads a replica from JSON: `url`, and `id`, `zone`, `weight` if told.
///
/// # Errors
/// What is wrong with it, in words.
pub fn read_replica(json: serde_json::Value) -> Result<config::Replica, String> {
    let description: Description = serde_json::from_value(json).map_err(|e| e.to_string())?;
    description.checked()
}
