//! The cache salt of a tenant: what keeps one tenant from learning another's prompts by how soon
//! the engine answers (CVE-2025-46570).
//!
//! An engine reuses KV blocks only between requests with the same `cache_salt`. With a secret
//! configured each request carries the HMAC-SHA-256 of its caller's trust group, cut to 128 bits:
//! nobody without the secret can name another's, and a caller's own salt is mixed in and never
//! passed on. Tenants of one group share blocks; a tenant that names none is its own group.
//!
//! Pure and immutable; one in each published configuration.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::config::{Secret, Tenant};

/// Bytes of the HMAC that are kept.
const SALT_BYTES: usize = 16;

/// The salts of one configuration's tenants.
pub struct Salts {
    /// The key's state, taken as a copy for each request that has a salt of its own.
    key: Hmac<Sha256>,
    /// By tenant: name of the group with its kind, and its salt.
    groups: Vec<(String, String)>,
}

impl Salts {
    /// Salts of `tenants` by `secret`; `None` where the secret cannot be a key.
    #[must_use]
    pub fn new(secret: &Secret, tenants: &[Tenant]) -> Option<Salts> {
        let key = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()).ok()?;
        let groups = tenants.iter().map(|tenant| {
            // The kind keeps a group from being named as a tenant is.
            let group = match &tenant.trust_group {
                Some(group) => format!("group {group}"),
                None => format!("tenant {}", tenant.id),
            };
            let salt = hex(&key, &group, None);
            (group, salt)
        });
        let groups = groups.collect();
        Some(Salts { key, groups })
    }

    /// The salt, 32 hex digits, for a request of the tenant of that index that came with the salt
    /// `own`. `None` when there is no such tenant.
    #[must_use]
    pub fn of(&self, tenant: usize, own: Option<&str>) -> Option<String> {
        let (group, salt) = self.groups.get(tenant)?;
        Some(match own {
            None => salt.clone(),
            Some(own) => hex(&self.key, group, Some(own)),
        })
    }
}

fn hex(key: &Hmac<Sha256>, group: &str, own: Option<&str>) -> String {
    let mut mac = key.clone();
    // The length keeps ("a", "bc") from ("ab", "c").
    mac.update(&(group.len() as u64).to_le_bytes());
    mac.update(group.as_bytes());
    if let Some(own) = own {
        mac.update(own.as_bytes());
    }
    let digest = mac.finalize().into_bytes();
    digest.iter().take(SALT_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(id: &str, group: Option<&str>) -> Tenant {
        Tenant { id: id.to_owned(), trust_group: group.map(str::to_owned), ..Tenant::default() }
    }

    fn salts(secret: &str) -> Salts {
        let tenants =
            [tenant("a", None), tenant("b", None), tenant("c", Some("x")), tenant("d", Some("x"))];
        let more = [tenant("x", None), tenant("group x", None)];
        let tenants: Vec<Tenant> = tenants.into_iter().chain(more).collect();
        Salts::new(&Secret::new(secret.to_owned()), &tenants).expect("salts")
    }

    #[test]
    fn groups_share_and_nobody_else_does() {
        let salts = salts("secret");
        let of = |tenant: usize| salts.of(tenant, None).expect("a tenant");
        assert_eq!(of(2), of(3));
        let all: std::collections::HashSet<String> = [0, 1, 2, 4, 5].map(of).into();
        assert_eq!(all.len(), 5, "{all:?}");
        for salt in all {
            assert!(salt.len() == 32 && salt.bytes().all(|b| b.is_ascii_hexdigit()), "{salt}");
        }
        assert_eq!(salts.of(99, None), None);
    }

    #[test]
    fn a_callers_own_salt_separates_and_does_not_choose() {
        let salts = salts("secret");
        let of = |tenant, own| salts.of(tenant, Some(own)).expect("a tenant");
        let own = of(0, "mine");
        assert_ne!(own, salts.of(0, None).expect("a tenant"));
        assert_eq!(own, of(0, "mine"));
        assert_ne!(own, of(1, "mine"), "another tenant's of the same name");
        // Neither another's salt nor an empty one leads anywhere but into one's own.
        let others = salts.of(1, None).expect("a tenant");
        assert_ne!(of(0, &others), others);
        assert_ne!(of(0, ""), of(1, ""));
    }

    #[test]
    fn the_secret_decides() {
        assert_ne!(salts("one").of(0, None), salts("other").of(0, None));
        // HMAC-SHA-256 as RFC 2104 defines it, by another implementation.
        let known = salts("key").of(0, None).expect("a tenant");
        assert_eq!(known, "cb9d6a1f4ca8c9654d141fda595472c5");
    }
}
