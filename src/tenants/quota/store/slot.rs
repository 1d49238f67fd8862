//! Which slot of a cluster a tenant's keys are in: CRC16 of the hash tag (XMODEM), of 16,384.

/// Slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of all keys with this hash tag.
pub(super) fn slot(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        // The specification's check value of the CRC, and `CLUSTER KEYSLOT` of a server.
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!([slot(b"foo"), slot(b"bar"), slot(b"")], [12182, 5061, 0]);
    }
}
