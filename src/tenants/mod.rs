//! Keys and the tenants behind them.
//!
//! A presented key is hashed (SHA-256) and looked up; nothing else ever sees it, and no type here
//! can print one. Immutable once built; every core reads it.

use std::collections::HashMap;
use std::sync::Arc;

use subtle::ConstantTimeEq;

use crate::config::{KeyDigest, KeyId, Tenant};

/// Longest key that is hashed.
const KEY_BYTES_MAX: usize = 512;

/// Who is calling.
#[derive(Clone, Debug)]
pub struct TenantRef {
    /// The tenant's id; "open" when there are no tenants.
    pub tenant: Arc<str>,
    /// Which of its keys; "-" without one.
    pub key_id: KeyId,
    index: Option<usize>,
}

impl TenantRef {
    /// The caller of what needs no key.
    #[must_use]
    pub fn nobody() -> TenantRef {
        TenantRef { tenant: "open".into(), key_id: KeyId::OPEN, index: None }
    }
}

/// The key is missing, malformed or unknown; which of these is nobody's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidKey;

struct Entry {
    digest: KeyDigest,
    tenant: usize,
}

/// All keys of a configuration.
pub struct KeyTable {
    tenants: Vec<(Arc<str>, Tenant)>,
    /// By the first eight bytes of the digest. They tell nothing that the digest does not, and an
    /// attacker cannot choose them without finding preimages.
    keys: HashMap<[u8; 8], Vec<Entry>>,
    open: TenantRef,
}

fn prefix(digest: &KeyDigest) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = digest.0;
    [a, b, c, d, e, f, g, h]
}

impl KeyTable {
    /// The table of `tenants`; open to everyone when there are none.
    #[must_use]
    pub fn new(tenants: &[Tenant]) -> KeyTable {
        let mut keys: HashMap<_, Vec<Entry>> = HashMap::new();
        for (tenant, settings) in tenants.iter().enumerate() {
            for digest in &settings.keys {
                let entry = Entry { digest: *digest, tenant };
                keys.entry(prefix(digest)).or_default().push(entry);
            }
        }
        let tenants = tenants.iter().map(|t| (t.id.as_str().into(), t.clone())).collect();
        KeyTable { tenants, keys, open: TenantRef::nobody() }
    }

    /// Finds the caller by `Authorization: Bearer KEY`, or by the `x-api-key` of Anthropic's API.
    ///
    /// # Errors
    /// There are tenants, and this is the key of none.
    pub fn authenticate(
        &self,
        authorization: Option<&[u8]>,
        x_api_key: Option<&[u8]>,
    ) -> Result<TenantRef, InvalidKey> {
        if self.tenants.is_empty() {
            return Ok(self.open.clone());
        }
        let key = authorization.map_or(x_api_key, bearer).ok_or(InvalidKey)?;
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(InvalidKey);
        }
        let digest = KeyDigest::of(key);
        let entries = self.keys.get(&prefix(&digest)).ok_or(InvalidKey)?;
        let entry = entries
            .iter()
            .find(|entry| bool::from(entry.digest.0.ct_eq(&digest.0)))
            .ok_or(InvalidKey)?;
        let (tenant, _) = self.tenants.get(entry.tenant).ok_or(InvalidKey)?;
        Ok(TenantRef {
            tenant: Arc::clone(tenant),
            key_id: digest.key_id(),
            index: Some(entry.tenant),
        })
    }

    /// May the caller use the pool of that name?
    #[must_use]
    pub fn may_use(&self, caller: &TenantRef, pool: &str) -> bool {
        match caller.index {
            None => self.tenants.is_empty(),
            Some(index) => self.tenants.get(index).is_some_and(|(_, t)| t.may_use(pool)),
        }
    }
}

/// The credentials of the `Bearer` scheme (RFC 6750, 2.1; its name in any case).
fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = authorization.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> KeyTable {
        let tenant = |id: &str, keys: &[&str], pools: &[&str]| Tenant {
            id: id.to_owned(),
            keys: keys.iter().map(|k| KeyDigest::of(k.as_bytes())).collect(),
            tier: "default".to_owned(),
            tokens_per_second: None,
            burst_tokens: None,
            in_flight_max: None,
            pools: pools.iter().map(|p| (*p).to_owned()).collect(),
        };
        KeyTable::new(&[
            tenant("acme", &["sk-a1", "sk-a2"], &["*"]),
            tenant("beta", &["sk-b"], &["small"]),
        ])
    }

    #[test]
    fn each_key_finds_its_tenant() {
        let table = table();
        let by = |text: &str| table.authenticate(Some(text.as_bytes()), None).map(|t| t.tenant);
        assert_eq!(by("Bearer sk-a1").as_deref(), Ok("acme"));
        assert_eq!(by("bearer   sk-a2").as_deref(), Ok("acme"));
        assert_eq!(by("BEARER sk-b").as_deref(), Ok("beta"));
        let by_field = table.authenticate(None, Some(b"sk-b")).map(|t| t.tenant);
        assert_eq!(by_field.as_deref(), Ok("beta"));
    }

    #[test]
    fn anything_else_is_refused() {
        let table = table();
        let long = format!("Bearer {}", "x".repeat(513));
        for bad in
            ["", "sk-a1", "Basic sk-a1", "Bearer", "Bearer ", "Bearer sk-A1", "Bearer sk-a1x"]
        {
            assert!(table.authenticate(Some(bad.as_bytes()), None).is_err(), "{bad:?}");
        }
        assert!(table.authenticate(Some(long.as_bytes()), None).is_err());
        assert!(table.authenticate(None, None).is_err());
        // A wrong Authorization is not mended by a right x-api-key.
        assert!(table.authenticate(Some(b"Bearer no"), Some(b"sk-b")).is_err());
    }

    #[test]
    fn pools_are_per_tenant_and_open_mode_has_none() {
        let table = table();
        let beta = table.authenticate(Some(b"Bearer sk-b"), None).unwrap();
        assert!(table.may_use(&beta, "small") && !table.may_use(&beta, "large"));
        assert!(!table.may_use(&TenantRef::nobody(), "small"));
        let open = KeyTable::new(&[]);
        let anyone = open.authenticate(None, None).unwrap();
        assert!(open.may_use(&anyone, "large"));
        assert_eq!(anyone.key_id.as_str(), "-");
    }
}
