//! The local bytes of a request, in one buffer or several.

use crate::dma::Span;
use crate::memory::{DomainId, KeyFault, MemoryTable, Range};
use polyrail_core::verbs::{AccessFlags, Sge};

/// The bytes that a request reads or writes, in order.
#[derive(Clone, Copy, Debug)]
pub enum Local<'m> {
    /// One buffer.
    One(Span<'m>),
    /// A list of buffers.
    Several(List<'m>),
}

/// Buffers whose keys were all checked for the request.
#[derive(Clone, Copy, Debug)]
pub struct List<'m> {
    memory: &'m MemoryTable,
    domain: DomainId,
    buffers: &'m [Sge],
    /// Number of their bytes that are used.
    length: usize,
}

const fn range(sge: &Sge) -> Range {
    Range { key: sge.lkey(), addr: sge.addr(), length: sge.length() }
}

impl<'m> Local<'m> {
    /// No bytes.
    pub const EMPTY: Self = Self::One(Span::EMPTY);

    /// Returns the bytes of a list of buffers.
    ///
    /// # Errors
    ///
    /// The key of a buffer does not permit the access: the first such buffer's fault.
    #[inline]
    pub fn open(
        memory: &'m MemoryTable,
        domain: DomainId,
        buffers: &'m [Sge],
        access: AccessFlags,
    ) -> Result<Self, KeyFault> {
        let mut length = 0;
        for sge in buffers {
            length += memory.local(domain, range(sge), access)?.len();
        }
        Ok(Self::Several(List { memory, domain, buffers, length }))
    }

    /// Returns the first `length` bytes, or all bytes if there are fewer.
    #[inline]
    pub fn prefix(self, length: usize) -> Self {
        match self {
            Self::One(span) => Self::One(span.prefix(length)),
            Self::Several(list) => Self::Several(List { length: length.min(list.length), ..list }),
        }
    }

    /// Copies as many bytes as both have.
    #[inline]
    pub fn copy_from(self, source: Local<'_>) {
        let (mut to, mut from) = (self.pieces(), source.pieces());
        let (mut target, mut source) = (Span::EMPTY, Span::EMPTY);
        loop {
            if target.is_empty() {
                let Some(next) = to.next() else { return };
                target = next;
            } else if source.is_empty() {
                let Some(next) = from.next() else { return };
                source = next;
            } else {
                let both = target.len().min(source.len());
                target.copy_from(source);
                (target, source) = (target.skip(both), source.skip(both));
            }
        }
    }

    /// Copies as many bytes as both have.
    #[inline]
    pub fn write(self, mut bytes: &[u8]) {
        for piece in self.pieces() {
            piece.write(bytes);
            bytes = &bytes[piece.len().min(bytes.len())..];
        }
    }

    /// Returns the spans of the `length` bytes from `offset`, in order; fewer if there are fewer.
    pub fn part(self, offset: usize, length: usize) -> impl Iterator<Item = Span<'m>> {
        let mut skip = offset;
        self.prefix(offset.saturating_add(length)).pieces().filter_map(move |piece| {
            let rest = piece.skip(skip);
            skip -= piece.len().min(skip);
            (!rest.is_empty()).then_some(rest)
        })
    }

    fn pieces(self) -> Pieces<'m> {
        Pieces { local: self, next: 0 }
    }
}

impl<'m> From<Span<'m>> for Local<'m> {
    #[inline]
    fn from(span: Span<'m>) -> Self {
        Self::One(span)
    }
}

/// The pieces, in order.
struct Pieces<'m> {
    local: Local<'m>,
    next: usize,
}

impl<'m> Iterator for Pieces<'m> {
    type Item = Span<'m>;

    fn next(&mut self) -> Option<Span<'m>> {
        let at = self.next;
        self.next += 1;
        match &mut self.local {
            Local::One(span) => (at == 0).then_some(*span),
            Local::Several(list) => {
                let sge = list.buffers.get(at).filter(|_| list.length > 0)?;
                // Cannot fail: all buffers were checked, and the table has been locked since.
                let span = list.memory.local(list.domain, range(sge), AccessFlags::empty()).ok()?;
                let span = span.prefix(list.length);
                list.length -= span.len();
                Some(span)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;
    use crate::pages::Pages;
    use std::sync::Arc;

    const HOME: DomainId = DomainId(1);

    /// A table with one region, whose bytes count up from 0.
    fn table() -> (MemoryTable, Arc<Pages>, u32) {
        let pages = Arc::new(Pages::new(256).unwrap());
        let bytes: Vec<_> = (0..=255).collect();
        pages.span(0, 256).write(&bytes);
        let mut table = MemoryTable::new(3);
        let owner = Some(Arc::<Pages>::clone(&pages) as crate::memory::Owner);
        let access = AccessFlags::LOCAL_WRITE;
        let start = pages.addr();
        let region = Region { domain: HOME, start, memory: start, length: 256, access, owner };
        // SAFETY: the region owns its pages, which are accessed by spans only.
        let (lkey, _) = unsafe { table.insert(region) }.unwrap();
        (table, pages, lkey)
    }

    fn sges(pages: &Pages, lkey: u32, places: &[(usize, u32)]) -> Vec<Sge> {
        let sge = |(at, length): &(usize, u32)| pages.local(*at, *length).unwrap().sge(lkey);
        places.iter().map(sge).collect()
    }

    #[test]
    fn bytes_keep_their_order_over_the_borders_of_both_lists() {
        let (table, pages, lkey) = table();
        let from = sges(&pages, lkey, &[(0, 3), (10, 1), (20, 6)]);
        let to = sges(&pages, lkey, &[(100, 1), (110, 7), (120, 9)]);
        let open = |list| Local::open(&table, HOME, list, AccessFlags::LOCAL_WRITE).unwrap();
        open(&to).copy_from(open(&from));
        let mut out = [0; 8];
        pages.span(110, 8).read(&mut out);
        assert_eq!(out, [1, 2, 10, 20, 21, 22, 23, 117]);
        let mut first = [0];
        pages.span(100, 1).read(&mut first);
        assert_eq!(first, [0]);
        let mut last = [0; 3];
        pages.span(120, 3).read(&mut last);
        assert_eq!(last, [24, 25, 122]);
    }

    #[test]
    fn a_part_may_begin_and_end_within_buffers() {
        let (table, pages, lkey) = table();
        let list = sges(&pages, lkey, &[(0, 3), (10, 1), (20, 6)]);
        let open = || Local::open(&table, HOME, &list, AccessFlags::empty()).unwrap();
        let bytes = |offset, length| {
            open().part(offset, length).flat_map(|span| {
                let mut bytes = vec![0; span.len()];
                span.read(&mut bytes);
                bytes
            })
        };
        assert_eq!(bytes(0, 10).collect::<Vec<_>>(), [0, 1, 2, 10, 20, 21, 22, 23, 24, 25]);
        assert_eq!(bytes(2, 3).collect::<Vec<_>>(), [2, 10, 20]);
        assert_eq!(bytes(5, 2).collect::<Vec<_>>(), [21, 22]);
        assert_eq!(bytes(3, 1).collect::<Vec<_>>(), [10]);
        assert_eq!(bytes(9, 99).collect::<Vec<_>>(), [25]);
        assert_eq!(bytes(4, 0).count() + bytes(10, 5).count(), 0);
    }

    #[test]
    fn a_prefix_ends_within_a_buffer() {
        let (table, pages, lkey) = table();
        let from = sges(&pages, lkey, &[(1, 2), (50, 4)]);
        let from = Local::open(&table, HOME, &from, AccessFlags::empty()).unwrap().prefix(3);
        Local::One(pages.span(200, 6)).copy_from(from);
        let mut out = [0; 6];
        pages.span(200, 6).read(&mut out);
        assert_eq!(out, [1, 2, 50, 203, 204, 205]);
    }

    #[test]
    fn one_buffer_that_is_not_open_refuses_the_list() {
        let (table, pages, lkey) = table();
        let list = sges(&pages, lkey + 1, &[(0, 1)]);
        let refused = Local::open(&table, HOME, &list, AccessFlags::empty());
        assert_eq!(refused.unwrap_err(), KeyFault::Unknown);
        let list = sges(&pages, lkey, &[(0, 1), (255, 1)]);
        assert!(Local::open(&table, DomainId(2), &list, AccessFlags::empty()).is_err());
    }
}
