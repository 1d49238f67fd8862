//! `key`: makes a tenant's key. The secret is printed once and kept nowhere.

use std::process::ExitCode;

use crate::config::{KeyDigest, is_name};

/// 256 bits from the kernel.
const SECRET_BYTES: usize = 32;

/// Make a tenant key; print the secret once and the lines for the file
#[derive(clap::Args)]
#[command(after_help = "Example:
  expedite key acme

The first line is the secret, for the client: `Authorization: Bearer sk-...`. The lines after it are
for the configuration file, which holds a digest only. To rotate, add the new digest to the tenant's
keys, move the clients, then remove the old one.")]
pub(super) struct Args {
    /// Id of the tenant
    #[arg(value_parser = name)]
    name: String,
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    let mut random = [0u8; SECRET_BYTES];
    if let Err(error) = getrandom::fill(&mut random) {
        eprintln!("expedite: no random bytes from the kernel: {error}");
        return ExitCode::FAILURE;
    }
    super::print(&lines(&args.name, &random))
}

fn name(text: &str) -> Result<String, &'static str> {
    match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("a name has 1 to 128 visible ASCII characters without quotes"),
    }
}

fn lines(name: &str, random: &[u8; SECRET_BYTES]) -> String {
    let secret = format!("sk-{}", base64url(random));
    let digest = KeyDigest::of(secret.as_bytes()).to_text();
    format!("{secret}\n\n[[tenant]]\nid = \"{name}\"\nkeys = [\"{digest}\"]\n")
}

/// RFC 4648 section 5, without padding.
fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |n: usize| u32::from(group.get(n).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..=group.len() {
            text.push(char::from(ALPHABET[(bits >> (18 - 6 * n) & 63) as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::tenants::KeyTable;

    #[test]
    fn base64url_as_in_rfc_4648() {
        // Section 10, and the two letters that differ from plain base64.
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foo", "Zm9v"),
            (b"foobar", "Zm9vYmFy"),
            (b"\xfb\xff", "-_8"),
        ] {
            assert_eq!(base64url(bytes), text);
        }
    }

    #[test]
    fn the_printed_secret_opens_the_printed_tenant() {
        let printed = lines("acme", &[0xa5; 32]);
        let (secret, tenant) = printed.split_once('\n').unwrap();
        assert_eq!(secret.len(), 3 + 43);
        assert!(!tenant.contains(&secret[3..]));
        let pool = "[[pool]]\nname = \"p\"\nreplicas = [\"http://r:1\"]\n";
        let config = Config::from_text("gw.toml", &format!("{pool}{tenant}")).unwrap();
        let table = KeyTable::new(&config.tenants);
        let field = format!("Bearer {secret}");
        let found = table.authenticate(Some(field.as_bytes()), None).unwrap();
        assert_eq!(table.tenant_id(found), "acme");
    }

    #[test]
    fn names_that_would_break_the_file_are_refused() {
        assert!(name("acme").is_ok());
        for bad in ["", "a b", "a\"b", "a\\b", "a\nb", "é", &"a".repeat(129)] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }
}
