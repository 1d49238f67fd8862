//! gzip without compression (RFC 1952, stored blocks of RFC 1951): for the fault of a body that
//! is encoded though nobody asked. No I/O.

/// A gzip stream in the making.
#[derive(Default)]
pub(super) struct Gzip {
    begun: bool,
    crc: u32,
    bytes: u32,
}

impl Gzip {
    /// Appends `data` as stored blocks.
    pub(super) fn block(&mut self, data: &[u8], out: &mut Vec<u8>) {
        self.head(out);
        for piece in data.chunks(usize::from(u16::MAX)) {
            stored(0, piece, out);
            self.crc = crc32(self.crc, piece);
            self.bytes = self.bytes.wrapping_add(piece.len() as u32);
        }
    }

    /// Appends the end of the stream.
    pub(super) fn end(&mut self, out: &mut Vec<u8>) {
        self.head(out);
        stored(1, &[], out);
        out.extend_from_slice(&self.crc.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
    }

    fn head(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.begun, true) {
            out.extend_from_slice(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
        }
    }
}

fn stored(last: u8, piece: &[u8], out: &mut Vec<u8>) {
    let length = piece.len() as u16;
    out.push(last);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&(!length).to_le_bytes());
    out.extend_from_slice(piece);
}

fn crc32(crc: u32, data: &[u8]) -> u32 {
    let mut crc = !crc;
    for &byte in data {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_polynomial_comes_out() {
        assert_eq!(crc32(0, b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(crc32(0, b"1234"), b"56789"), 0xcbf4_3926);
    }

    #[test]
    fn a_stream_has_its_head_once_and_its_sums_at_the_end() {
        let (mut gzip, mut out) = (Gzip::default(), Vec::new());
        gzip.block(b"1234", &mut out);
        gzip.block(b"56789", &mut out);
        gzip.end(&mut out);
        assert_eq!(&out[..2], &[0x1f, 0x8b]);
        assert_eq!(&out[out.len() - 8..out.len() - 4], &0xcbf4_3926_u32.to_le_bytes());
        assert_eq!(&out[out.len() - 4..], &9_u32.to_le_bytes());
    }
}
