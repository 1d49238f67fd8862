//! The trace context that travels with a request (W3C Trace Context, level 1): `traceparent`, read
//! strictly, and `tracestate`, which is passed on as it came or not at all.

/// What a caller says of the trace that its request is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Of the whole trace; not 0.
    pub trace_id: u128,
    /// Of the caller's span; not 0.
    pub span_id: u64,
    /// Bit 0: the caller records it.
    pub flags: u8,
}

/// The trace is recorded (section 3.2.2.5.1).
pub const SAMPLED: u8 = 1;

/// Flags that are passed on: sampled, and level 2's word that the trace id is random. What else a
/// caller may set is not known here and must be zero.
const FLAGS_KNOWN: u8 = 3;

/// Length of version 00.
const PARENT_BYTES: usize = 55;

/// Most members of a list (3.3.1.1).
const MEMBERS_MAX: usize = 32;
/// Longest list that is passed on; 512 bytes is what the specification asks for (3.3.1.5).
const STATE_BYTES_MAX: usize = 4096;
/// Longest key and value (3.3.1.3).
const WORD_BYTES_MAX: usize = 256;

impl Parent {
    /// Reads a field. `None`: there is no such context, and the request begins a trace of its own
    /// (section 3.2.2, and for versions to come 4.3).
    #[must_use]
    pub fn parse(field: &[u8]) -> Option<Parent> {
        let (known, more) = field.split_at_checked(PARENT_BYTES)?;
        let (version, rest) = known.split_at_checked(2)?;
        let version = hex(version)?;
        let whole = match version {
            0xff => false,
            0 => more.is_empty(),
            _ => more.is_empty() || more.starts_with(b"-"),
        };
        let (trace_id, rest) = rest.strip_prefix(b"-")?.split_at_checked(32)?;
        let (span_id, rest) = rest.strip_prefix(b"-")?.split_at_checked(16)?;
        let (trace_id, flags) = (hex(trace_id)?, hex(rest.strip_prefix(b"-")?)?);
        let span_id = u64::try_from(hex(span_id)?).ok()?;
        let flags = u8::try_from(flags).ok()? & FLAGS_KNOWN;
        (whole && trace_id != 0 && span_id != 0).then_some(Parent { trace_id, span_id, flags })
    }

    /// Does the caller record the trace?
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// As a field of version 00.
    #[must_use]
    pub fn to_field(&self) -> [u8; PARENT_BYTES] {
        let mut field = *b"00-00000000000000000000000000000000-0000000000000000-00";
        let digits = [
            (3, self.trace_id, 32),
            (36, u128::from(self.span_id), 16),
            (53, u128::from(self.flags), 2),
        ];
        for (start, bits, width) in digits {
            for (i, byte) in field.iter_mut().skip(start).take(width).enumerate() {
                *byte = digit(bits >> ((width - 1 - i) * 4));
            }
        }
        field
    }
}

/// Is a list of other systems' states fit to be passed on (3.3.1)?
#[must_use]
pub fn is_state(field: &[u8]) -> bool {
    let mut keys: Vec<&[u8]> = Vec::new();
    for member in field.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
        if member.is_empty() {
            continue;
        }
        let Some(at) = memchr::memchr(b'=', member) else { return false };
        let (key, value) = member.split_at_checked(at).unwrap_or_default();
        let value = value.strip_prefix(b"=").unwrap_or_default();
        let fit = is_key(key) && is_value(value) && !keys.contains(&key);
        if !fit || keys.len() == MEMBERS_MAX {
            return false;
        }
        keys.push(key);
    }
    !keys.is_empty() && field.len() <= STATE_BYTES_MAX
}

/// `simple-key` or `tenant@system` of level 2, which allows all that level 1 does.
fn is_key(key: &[u8]) -> bool {
    let may_begin = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let may_follow = |byte: &u8| may_begin(byte) || b"_-*/@".contains(byte);
    let one_at = key.iter().filter(|&&byte| byte == b'@').count() <= 1;
    let begins = key.first().is_some_and(may_begin);
    begins && one_at && key.len() <= WORD_BYTES_MAX && key.iter().all(may_follow)
}

/// `*chr nblk-chr`: printable ASCII without comma and equals sign.
fn is_value(value: &[u8]) -> bool {
    let is_chr = |byte: &u8| matches!(byte, 0x20..=0x7e) && !b",=".contains(byte);
    !value.is_empty() && value.len() <= WORD_BYTES_MAX && value.iter().all(is_chr)
}

/// Lower-case hex digits, at most 32 of them.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0_u128, |bits, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(bits << 4 | u128::from(digit))
    })
}

fn digit(bits: u128) -> u8 {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    HEX.get((bits & 15) as usize).copied().unwrap_or(b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_parent_is_read_and_written_back() {
        let parent = Parent::parse(GOOD.as_bytes()).unwrap();
        assert_eq!(parent.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!((parent.span_id, parent.flags), (0xb7ad_6b71_6920_3331, 1));
        assert!(parent.is_sampled());
        assert_eq!(parent.to_field(), GOOD.as_bytes());
        let odd = Parent::parse(GOOD.replace("-01", "-fe").as_bytes()).unwrap();
        assert_eq!((odd.flags, odd.is_sampled()), (2, false), "unknown flags are not passed on");
    }

    /// The cases of the specification's own test suite, as far as one field goes.
    #[test]
    fn what_is_malformed_begins_a_new_trace() {
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-.1",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-011",
            "00-.af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.what",
            "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\u{131}",
        ] {
            assert_eq!(Parent::parse(bad.as_bytes()), None, "{bad}");
        }
        for later in ["cc-", "01-"] {
            let text = GOOD.replacen("00-", later, 1);
            assert!(Parent::parse(text.as_bytes()).is_some(), "{text}");
            assert!(Parent::parse(format!("{text}-what").as_bytes()).is_some(), "{text}");
        }
    }

    #[test]
    fn a_state_is_passed_on_whole_or_not_at_all() {
        let many = |n: usize| (0..n).map(|i| format!("k{i}=1")).collect::<Vec<_>>().join(",");
        for good in [
            "foo=1",
            "foo=1,bar=2",
            "foo=1 , bar=2,",
            "fw529a3039@dt=FfpiqKkUe,rojo=00f067aa0ba902b7",
            "0a=a b",
            "foo@=1",
            &many(32),
            &format!("k={}", "x".repeat(256)),
        ] {
            assert!(is_state(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            ",",
            "foo",
            "=1",
            "foo=",
            "Foo=1",
            "foo =1",
            "foo=1,foo=1",
            "foo@bar@baz=1",
            "@foo=1",
            "foo=1=2",
            "foo=\u{7f}",
            "foo.bar=1",
            &many(33),
            &format!("k={}", "x".repeat(257)),
            &format!("{}=1", "k".repeat(257)),
        ] {
            assert!(!is_state(bad.as_bytes()), "{bad}");
        }
    }
}
