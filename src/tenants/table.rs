//! From a presented key to its tenant.
//!
//! The first eight bytes of the digest choose a bucket of a hash map, and the whole digest is then
//! compared in constant time. What a caller could learn from timing is therefore whether a digest
//! shares 64 bits with a known one, and he cannot choose digests, only keys.

use std::collections::HashMap;

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::{AuthError, ClientKey, KeyDigest, KeyId};
use crate::config::Tenant;

/// Id of the tenant that everyone is while no tenant is configured.
pub const OPEN_TENANT: &str = "open";

/// A caller that was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantRef {
    /// Index into the configuration's tenants; 0 in open mode, where there are none.
    pub index: usize,
    /// The key's public name, for the usage record.
    pub key_id: KeyId,
}

/// All keys of one configuration.
pub struct KeyTable {
    buckets: HashMap<u64, Vec<(KeyDigest, u32)>>,
    /// Ids of the tenants; in open mode the one open tenant.
    ids: Vec<String>,
    open: bool,
}

impl KeyTable {
    /// The table of these tenants; none: open mode.
    pub fn new(tenants: &[Tenant]) -> KeyTable {
        let mut buckets: HashMap<u64, Vec<(KeyDigest, u32)>> = HashMap::new();
        for (index, tenant) in tenants.iter().enumerate() {
            for key in &tenant.keys {
                buckets.entry(prefix(key)).or_default().push((*key, index as u32));
            }
        }
        let open = tenants.is_empty();
        let mut ids: Vec<String> = tenants.iter().map(|tenant| tenant.id.clone()).collect();
        if open {
            ids.push(OPEN_TENANT.to_owned());
        }
        KeyTable { buckets, ids, open }
    }

    /// True while no tenant is configured: every caller is the tenant "open", key or none.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Id of a tenant that this table has let in.
    pub fn tenant_id(&self, tenant: TenantRef) -> &str {
        self.ids.get(tenant.index).map_or(OPEN_TENANT, String::as_str)
    }

    /// Finds the tenant of the key in these fields' values.
    ///
    /// # Errors
    /// [`AuthError`]; never in open mode, where fields are not looked at.
    pub fn authenticate(
        &self,
        authorization: Option<&[u8]>,
        x_api_key: Option<&[u8]>,
    ) -> Result<TenantRef, AuthError> {
        if self.open {
            return Ok(TenantRef { index: 0, key_id: KeyId::OPEN });
        }
        let digest = ClientKey::from_fields(authorization, x_api_key)?.digest();
        let index = self.find(&digest).ok_or(AuthError::Unknown)?;
        Ok(TenantRef { index, key_id: digest.key_id() })
    }

    /// Compares with every digest of the bucket, without leaving early.
    fn find(&self, digest: &KeyDigest) -> Option<usize> {
        let mut index: u32 = 0;
        let mut found = Choice::from(0);
        for (known, tenant) in self.buckets.get(&prefix(digest))? {
            let same = known.0.ct_eq(&digest.0);
            index.conditional_assign(tenant, same);
            found |= same;
        }
        bool::from(found).then_some(index as usize)
    }
}

impl std::fmt::Debug for KeyTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyTable({} tenants)", self.ids.len())
    }
}

fn prefix(digest: &KeyDigest) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = digest.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TenantLimits;

    fn tenant(id: &str, keys: &[KeyDigest]) -> Tenant {
        Tenant {
            id: id.to_owned(),
            keys: keys.to_vec(),
            tier: "default".to_owned(),
            limits: TenantLimits::default(),
            key_limits: Vec::new(),
            may_choose_policy: false,
            trust_group: None,
            pools: vec!["*".to_owned()],
        }
    }

    fn bearer(table: &KeyTable, key: &str) -> Result<TenantRef, AuthError> {
        table.authenticate(Some(format!("Bearer {key}").as_bytes()), None)
    }

    #[test]
    fn each_key_of_a_rotation_leads_to_its_tenant() {
        let [old, new, other] = ["old", "new", "other"].map(|key| KeyDigest::of(key.as_bytes()));
        let table = KeyTable::new(&[tenant("acme", &[old, new]), tenant("zeta", &[other])]);
        for (key, id, digest) in
            [("old", "acme", old), ("new", "acme", new), ("other", "zeta", other)]
        {
            let found = bearer(&table, key).unwrap();
            assert_eq!(table.tenant_id(found), id);
            assert_eq!(found.key_id, digest.key_id());
        }
        assert_eq!(bearer(&table, "else"), Err(AuthError::Unknown));
        assert_eq!(table.authenticate(None, None), Err(AuthError::Missing));
        assert!(!table.is_open());
    }

    #[test]
    fn a_digest_that_shares_the_bucket_is_told_apart_by_its_last_byte() {
        let key = KeyDigest::of(b"key");
        let mut near = key;
        near.0[31] ^= 1;
        let with = |digests: &[KeyDigest]| KeyTable::new(&[tenant("a", digests)]);
        assert_eq!(bearer(&with(&[near]), "key"), Err(AuthError::Unknown));
        let table = KeyTable::new(&[tenant("a", &[near]), tenant("b", &[key]), tenant("c", &[])]);
        assert_eq!(bearer(&table, "key").map(|found| found.index), Ok(1));
    }

    #[test]
    fn without_tenants_everyone_is_the_open_one() {
        let table = KeyTable::new(&[]);
        for field in [None, Some(&b"Bearer anything"[..]), Some(&b"Basic \xff"[..])] {
            let found = table.authenticate(field, None).unwrap();
            assert_eq!((table.tenant_id(found), found.key_id.as_str()), ("open", "-"));
        }
        assert!(table.is_open());
    }

    #[test]
    fn tenants_without_keys_let_nobody_in() {
        let table = KeyTable::new(&[tenant("acme", &[])]);
        assert_eq!(bearer(&table, "any"), Err(AuthError::Unknown));
        assert_eq!(table.authenticate(None, None), Err(AuthError::Missing));
    }
}
