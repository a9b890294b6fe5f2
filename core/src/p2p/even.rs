//! A buffer that is spread evenly: each part comes from the one before, so none has to be kept.

use super::immediate::SIZE_UNIT;
use super::mask::Mask;

/// The parts of a buffer that is spread evenly, in the order of the rails that carry one: each has the same
/// number of blocks, the first ones one more.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvenParts {
    /// Blocks of a part, and how many of the next ones have one more.
    each: u32,
    more: u32,
    /// The first byte of the next one, and how many bytes there are from there on.
    offset: u32,
    left: u32,
}

impl EvenParts {
    /// The parts of `bytes` bytes for these rails, at least two, and those of them that carry one.
    #[inline]
    pub(super) fn new(bytes: u32, available: Mask) -> (Self, Mask) {
        let blocks = bytes.div_ceil(SIZE_UNIT);
        let rails = available.count();
        let carriers = if blocks < rails { available.lowest(blocks) } else { available };
        let (each, more) = (blocks / rails, blocks % rails);
        (Self { each, more, offset: 0, left: bytes }, carriers)
    }

    /// The first byte and the length of the part of one of the rails that carry one.
    pub(super) fn part(bytes: u32, carriers: Mask, rail: u8) -> (u32, u32) {
        if carriers == Mask::of(rail) {
            return (0, bytes);
        }
        let (mut parts, _) = Self::new(bytes, carriers);
        { carriers }.take_while(|before| *before < rail).for_each(|_| _ = parts.next());
        parts.next()
    }

    /// The first byte and the length of the next one.
    #[inline]
    pub(super) fn next(&mut self) -> (u32, u32) {
        let more = u32::from(self.more > 0);
        self.more -= more;
        // Of two parts at least, none is longer than a number says.
        let length = ((self.each + more) * SIZE_UNIT).min(self.left);
        let offset = self.offset;
        self.offset += length;
        self.left -= length;
        (offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_each_is_found_again() {
        for bits in 1..=u8::MAX {
            let available = Mask::from_bits(bits);
            for bytes in [1, 128, 129, 300, 128 * 7, 128 * 8 + 1, (1 << 20) + 77, u32::MAX] {
                let Some(rail) = available.leader().filter(|_| available.count() == 1) else {
                    follow_each_other(bytes, available);
                    continue;
                };
                assert_eq!(EvenParts::part(bytes, available, rail), (0, bytes));
            }
        }
    }

    fn follow_each_other(bytes: u32, available: Mask) {
        let (mut parts, carriers) = EvenParts::new(bytes, available);
        let blocks = bytes.div_ceil(SIZE_UNIT);
        assert_eq!(carriers.count(), available.count().min(blocks));
        let (mut end, mut longest) = (0, u32::MAX);
        for rail in carriers {
            let (offset, length) = parts.next();
            assert_eq!(EvenParts::part(bytes, carriers, rail), (offset, length));
            assert!(offset == end && offset.is_multiple_of(SIZE_UNIT));
            assert!(length > 0 && length <= longest && available.contains(rail));
            (end, longest) = (end + length, length);
        }
        assert_eq!(end, bytes);
        // The last one alone need not be of whole blocks.
        assert!(blocks / available.count() <= longest.div_ceil(SIZE_UNIT));
    }
}
