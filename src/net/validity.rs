//! When a certificate holds. Clients judge that by their clock; who shows the certificate should
//! know before they do. Pure: the time is an argument.

use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

use crate::runtime::clock::civil;

const DAY_S: u64 = 86_400;
/// Renewals of certificates that live 90 days happen a month before their end.
const SOON_DAYS: u64 = 14;

/// Both ends in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub begins_s: u64,
    /// The last second.
    pub ends_s: u64,
}

/// How a certificate stands at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds for long enough, in words.
    Good(String),
    /// It holds, but not for long, in words.
    Ending(String),
    /// No client that checks accepts it, in words.
    Refused(String),
}

impl Validity {
    /// What the certificate says; `None`: nothing that rustls can read, or a time before 1970.
    ///
    /// rustls looks at the time first and names the end that is missed, so that it is asked at
    /// the beginning and the end of all time.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Validity> {
        let parsed = ParsedCertificate::try_from(certificate).ok()?;
        let (roots, algorithms) = (RootCertStore::empty(), ring::default_provider());
        let algorithms = algorithms.signature_verification_algorithms.all;
        let missed = |at: u64| {
            let at = UnixTime::since_unix_epoch(Duration::from_secs(at));
            let said =
                verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], at, algorithms);
            match said {
                Err(Error::InvalidCertificate(
                    CertificateError::ExpiredContext { not_after: end, .. }
                    | CertificateError::NotValidYetContext { not_before: end, .. },
                )) => Some(end.as_secs()),
                _ => None,
            }
        };
        let ends_s = missed(u64::MAX)?;
        // One that begins with 1970 or before it has begun at any time.
        Some(Validity { begins_s: missed(0).unwrap_or(0), ends_s })
    }

    /// How it stands at `now_s` seconds since 1970.
    #[must_use]
    pub fn at(self, now_s: u64) -> Standing {
        let Validity { begins_s, ends_s } = self;
        if now_s > ends_s {
            return Standing::Refused(format!("it ended on {}", date(ends_s)));
        }
        if now_s < begins_s {
            return Standing::Refused(format!("it begins on {}", date(begins_s)));
        }
        match ends_s.saturating_sub(now_s) / DAY_S {
            days @ ..SOON_DAYS => Standing::Ending(format!(
                "it ends on {}, in {days} {}",
                date(ends_s),
                if days == 1 { "day" } else { "days" }
            )),
            _ => Standing::Good(format!("good until {}", date(ends_s))),
        }
    }

    /// The end that it misses at `now_s`, or comes to soon, in words.
    #[must_use]
    pub fn remark(self, now_s: u64) -> Option<String> {
        match self.at(now_s) {
            Standing::Good(_) => None,
            Standing::Ending(words) => Some(words),
            Standing::Refused(words) => Some(format!("{words}: clients that check it go away")),
        }
    }
}

/// `2026-01-31`, in UTC.
fn date(unix_s: u64) -> String {
    let (year, month, day) = civil(unix_s / DAY_S);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(from: (i32, u8, u8), until: (i32, u8, u8)) -> Option<Validity> {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(from.0, from.1, from.2);
        params.not_after = rcgen::date_time_ymd(until.0, until.1, until.2);
        let key = rcgen::KeyPair::generate().unwrap();
        Validity::of(params.self_signed(&key).unwrap().der())
    }

    #[test]
    fn both_ends_are_read_of_every_year() {
        let day = |days: u64| days * DAY_S;
        let of = |begins, ends| Some(Validity { begins_s: day(begins), ends_s: day(ends) });
        assert_eq!(made((2000, 2, 29), (2026, 11, 30)), of(11_016, 20_787));
        assert_eq!(made((1970, 1, 1), (1970, 1, 2)), of(0, 1));
        // The last years of one encoding, the first of the other.
        assert_eq!(made((2049, 12, 31), (2050, 1, 1)), of(29_219, 29_220));
        let far = made((2026, 1, 1), (9999, 12, 31)).unwrap();
        assert_eq!(date(far.ends_s), "9999-12-31");
        assert_eq!(Validity::of(&CertificateDer::from(vec![0x30, 0])), None);
    }

    #[test]
    fn a_certificate_is_judged_to_the_second() {
        let of = Validity { begins_s: 11_016 * DAY_S, ends_s: 20_787 * DAY_S };
        assert_eq!(of.at(of.begins_s - 1), Standing::Refused("it begins on 2000-02-29".into()));
        assert_eq!(of.at(of.begins_s), Standing::Good("good until 2026-11-30".into()));
        let soon = of.ends_s - SOON_DAYS * DAY_S;
        assert!(matches!(of.at(soon), Standing::Good(_)) && of.remark(soon).is_none());
        let words = "it ends on 2026-11-30, in 13 days";
        assert_eq!(of.remark(soon + 1).as_deref(), Some(words));
        assert_eq!(of.at(of.ends_s), Standing::Ending("it ends on 2026-11-30, in 0 days".into()));
        assert_eq!(of.at(of.ends_s + 1), Standing::Refused("it ended on 2026-11-30".into()));
    }
}
