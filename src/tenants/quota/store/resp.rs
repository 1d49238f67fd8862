//! Replies of the store: bytes in, values out (RESP2). Pure; lengths and depth are bounded, since
//! whoever answers on that port need not be a store.

/// The longest string; a script's source, the longest that we send, is never sent back.
const STRING_BYTES_MAX: usize = 1 << 20;
/// The most elements of one array.
const ITEMS_MAX: usize = 32_768;
/// Arrays within arrays.
const DEPTH_MAX: u32 = 4;
/// A type, a length, an integer or an error; errors quote what we sent only in part.
const LINE_BYTES_MAX: usize = 4096;

/// One reply, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+`
    Simple(String),
    /// `-`: a code, a space, words.
    Error(String),
    /// `:`
    Int(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `$-1` or `*-1`
    Nil,
    /// `*`
    Array(Vec<Reply>),
}

impl Reply {
    /// The integer, if it is one.
    pub(super) fn int(&self) -> Option<i64> {
        match self {
            Reply::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// The elements, if it is an array.
    pub(super) fn items(&self) -> Option<&[Reply]> {
        match self {
            Reply::Array(items) => Some(items),
            _ => None,
        }
    }
}

/// Not a reply of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage;

/// The first reply in `bytes` and how many bytes it takes; `None`: more must come.
///
/// # Errors
/// [`Garbage`]: nothing more can be read from this connection.
pub fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Garbage> {
    let mut reader = Reader { bytes, at: 0 };
    Ok(reader.value(DEPTH_MAX)?.map(|reply| (reply, reader.at)))
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    fn value(&mut self, depth: u32) -> Result<Option<Reply>, Garbage> {
        let Some(line) = self.line()? else { return Ok(None) };
        let (kind, rest) = line.split_first().ok_or(Garbage)?;
        let rest = std::str::from_utf8(rest).map_err(|_| Garbage)?;
        Ok(Some(match kind {
            b'+' => Reply::Simple(rest.to_owned()),
            b'-' => Reply::Error(rest.to_owned()),
            b':' => Reply::Int(rest.parse().map_err(|_| Garbage)?),
            b'$' => match length(rest, STRING_BYTES_MAX)? {
                None => Reply::Nil,
                Some(n) => match self.bulk(n)? {
                    Some(bytes) => Reply::Bulk(bytes),
                    None => return Ok(None),
                },
            },
            b'*' => match length(rest, ITEMS_MAX)? {
                None => Reply::Nil,
                Some(n) => {
                    let depth = depth.checked_sub(1).ok_or(Garbage)?;
                    let mut items = Vec::with_capacity(n.min(64));
                    for _ in 0..n {
                        match self.value(depth)? {
                            Some(item) => items.push(item),
                            None => return Ok(None),
                        }
                    }
                    Reply::Array(items)
                }
            },
            _ => return Err(Garbage),
        }))
    }

    /// Up to the next CR LF, which is passed over.
    fn line(&mut self) -> Result<Option<&'b [u8]>, Garbage> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(end) = memchr::memchr(b'\n', rest) else {
            return if rest.len() > LINE_BYTES_MAX { Err(Garbage) } else { Ok(None) };
        };
        self.at = self.at.saturating_add(end).saturating_add(1);
        let line = rest.get(..end).and_then(|line| line.strip_suffix(b"\r")).ok_or(Garbage)?;
        if line.len() > LINE_BYTES_MAX { Err(Garbage) } else { Ok(Some(line)) }
    }

    fn bulk(&mut self, n: usize) -> Result<Option<Vec<u8>>, Garbage> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(whole) = rest.get(..n.saturating_add(2)) else { return Ok(None) };
        self.at = self.at.saturating_add(whole.len());
        whole.strip_suffix(b"\r\n").map(|bytes| Some(bytes.to_vec())).ok_or(Garbage)
    }
}

fn length(text: &str, max: usize) -> Result<Option<usize>, Garbage> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(n) => usize::try_from(n).ok().filter(|n| *n <= max).map(Some).ok_or(Garbage),
        Err(_) => Err(Garbage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Reply {
        // Whatever arrives first, the rest completes it; no prefix is taken for the whole.
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), Ok(None), "{end} of {bytes:?}");
        }
        let (reply, n) = parse(bytes).unwrap().unwrap();
        assert_eq!(n, bytes.len());
        reply
    }

    #[test]
    fn every_kind_of_reply() {
        assert_eq!(all(b"+OK\r\n"), Reply::Simple("OK".into()));
        assert_eq!(all(b"-ERR no\r\n"), Reply::Error("ERR no".into()));
        assert_eq!(all(b":-12\r\n").int(), Some(-12));
        assert_eq!(all(b"$4\r\na\r\nb\r\n"), Reply::Bulk(b"a\r\nb".to_vec()));
        assert_eq!(all(b"$-1\r\n"), Reply::Nil);
        let array = all(b"*3\r\n:1\r\n*-1\r\n*1\r\n$0\r\n\r\n");
        let inner = Reply::Array(vec![Reply::Bulk(vec![])]);
        assert_eq!(array.items(), Some(&[Reply::Int(1), Reply::Nil, inner][..]));
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let deep = b"*1\r\n".repeat(5);
        let wide = format!("*{}\r\n", ITEMS_MAX + 1);
        let long = vec![b'+'; LINE_BYTES_MAX + 2];
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"\r\n",
            b"+OK\n",
            b":x\r\n",
            b"$-2\r\n",
            b"$1048577\r\n",
            b"$1\r\nab\r\n",
            &deep,
            wide.as_bytes(),
            &long,
        ] {
            assert_eq!(parse(bytes), Err(Garbage), "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
