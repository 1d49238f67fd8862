//! A cursor over MessagePack: single values read, whole values skipped, no tree built.
//!
//! What the decoder needs of the format is a page; a library's reader would still leave skipping,
//! its limits and the counts that peers claim to us. Pure; the end of the bytes is an error, a
//! claimed length reserves nothing.

/// Deepest nesting that is followed: an event's extra keys are seven deep.
const DEPTH_MAX: u32 = 16;

/// The bytes are not what was asked for, or end too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

type Result<T> = std::result::Result<T, Malformed>;

/// Where reading stands.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'p> {
    rest: &'p [u8],
}

/// Text or bytes, or something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'p> {
    /// nil.
    Nil,
    /// An integer; negative ones as their two's complement.
    Integer(u64),
    /// Text, not yet known to be UTF-8.
    Text(&'p [u8]),
    /// Bytes.
    Bytes(&'p [u8]),
    /// So many values follow.
    Array(usize),
    /// So many pairs follow.
    Map(usize),
    /// A number, a boolean or an extension, read over.
    Other,
}

impl<'p> Reader<'p> {
    /// At the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'p [u8]) -> Reader<'p> {
        Reader { rest: bytes }
    }

    /// Are all bytes read?
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, bytes: usize) -> Result<&'p [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn big_endian(&mut self, bytes: usize) -> Result<u64> {
        Ok(match bytes {
            1 => u64::from(u8::from_be_bytes(self.fixed()?)),
            2 => u64::from(u16::from_be_bytes(self.fixed()?)),
            4 => u64::from(u32::from_be_bytes(self.fixed()?)),
            _ => u64::from_be_bytes(self.fixed()?),
        })
    }

    fn length(&mut self, bytes: usize) -> Result<usize> {
        usize::try_from(self.big_endian(bytes)?).map_err(|_| Malformed)
    }

    /// A count of values that follow, each of a byte at least: a larger one cannot be true.
    fn count(&mut self, bytes: usize) -> Result<usize> {
        let count = self.length(bytes)?;
        if count <= self.rest.len() { Ok(count) } else { Err(Malformed) }
    }

    /// The next value; of an array or a map, its head.
    ///
    /// # Errors
    /// The bytes end, or are no MessagePack.
    pub fn value(&mut self) -> Result<Value<'p>> {
        let (&first, rest) = self.rest.split_first().ok_or(Malformed)?;
        self.rest = rest;
        let few = usize::from(first & 0x0f);
        Ok(match first {
            0x00..=0x7f => Value::Integer(u64::from(first)),
            0x80..=0x8f => Value::Map(few),
            0x90..=0x9f => Value::Array(few),
            0xa0..=0xbf => Value::Text(self.take(usize::from(first & 0x1f))?),
            0xc0 => Value::Nil,
            0xc1 => return Err(Malformed),
            0xc2 | 0xc3 => Value::Other,
            0xc4..=0xc6 => {
                let length = self.length(1 << (first - 0xc4))?;
                Value::Bytes(self.take(length)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(1 << (first - 0xc7))?;
                self.take(length.checked_add(1).ok_or(Malformed)?)?;
                Value::Other
            }
            0xca => self.over(4)?,
            0xcb => self.over(8)?,
            0xcc..=0xcf => Value::Integer(self.big_endian(1 << (first - 0xcc))?),
            0xd0 => Value::Integer(i64::from(self.big_endian(1)? as i8) as u64),
            0xd1 => Value::Integer(i64::from(self.big_endian(2)? as i16) as u64),
            0xd2 => Value::Integer(i64::from(self.big_endian(4)? as i32) as u64),
            0xd3 => Value::Integer(self.big_endian(8)?),
            0xd4..=0xd8 => self.over(1 + (1 << (first - 0xd4)))?,
            0xd9..=0xdb => {
                let length = self.length(1 << (first - 0xd9))?;
                Value::Text(self.take(length)?)
            }
            0xdc => Value::Array(self.count(2)?),
            0xdd => Value::Array(self.count(4)?),
            0xde => Value::Map(self.count(2)?),
            0xdf => Value::Map(self.count(4)?),
            0xe0..=0xff => Value::Integer(i64::from(first as i8) as u64),
        })
    }

    fn over(&mut self, bytes: usize) -> Result<Value<'p>> {
        self.take(bytes)?;
        Ok(Value::Other)
    }

    /// Reads over the next value with all that is in it.
    ///
    /// # Errors
    /// As [`Reader::value`], or it is nested too deep.
    pub fn skip(&mut self) -> Result<()> {
        self.skip_within(DEPTH_MAX)
    }

    fn skip_within(&mut self, depth: u32) -> Result<()> {
        let values = match self.value()? {
            Value::Array(count) => count,
            Value::Map(pairs) => pairs.checked_mul(2).ok_or(Malformed)?,
            _ => return Ok(()),
        };
        let depth = depth.checked_sub(1).ok_or(Malformed)?;
        for _ in 0..values {
            // Ids and nils are most of a payload: they are stepped over without a detour.
            match *self.rest {
                [0xce, _, _, _, _, ref rest @ ..]
                | [0xcd, _, _, ref rest @ ..]
                | [0x00..=0x7f | 0xc0, ref rest @ ..] => self.rest = rest,
                _ => self.skip_within(depth)?,
            }
        }
        Ok(())
    }

    /// The head of an array: how many values follow.
    ///
    /// # Errors
    /// It is something else.
    pub fn array(&mut self) -> Result<usize> {
        match self.value()? {
            Value::Array(count) => Ok(count),
            _ => Err(Malformed),
        }
    }

    /// An integer of 32 bits.
    ///
    /// # Errors
    /// It is something else, negative or larger.
    #[inline]
    pub fn integer(&mut self) -> Result<u32> {
        // Token ids are most of a payload: their two usual forms are read without a detour.
        match *self.rest {
            [0xcd, a, b, ref rest @ ..] => {
                self.rest = rest;
                Ok(u32::from(u16::from_be_bytes([a, b])))
            }
            [0xce, a, b, c, d, ref rest @ ..] => {
                self.rest = rest;
                Ok(u32::from_be_bytes([a, b, c, d]))
            }
            _ => match self.value()? {
                Value::Integer(value) => u32::try_from(value).map_err(|_| Malformed),
                _ => Err(Malformed),
            },
        }
    }
}
