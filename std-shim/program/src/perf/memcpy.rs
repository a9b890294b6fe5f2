//! The comparison: plain memcpy, slot by slot, over the same amount of memory.

use super::config::Limit;
use memmap2::MmapMut;
use std::hint::black_box;
use std::io;
use std::time::Instant;

/// Size of a huge page in bytes. Rings are aligned to it, and consist of huge pages if the system
/// permits, like the software NIC's buffers. Otherwise the comparison would measure page tables.
const HUGE_PAGE: usize = 2 << 20;

/// A ring of slots in ordinary memory.
#[derive(Debug)]
struct PlainRing {
    memory: MmapMut,
    start: usize,
    length: usize,
}

impl PlainRing {
    fn new(length: usize, byte: u8) -> io::Result<Self> {
        let memory = MmapMut::map_anon(length + HUGE_PAGE)?;
        #[cfg(target_os = "linux")]
        {
            // Kernels without huge pages refuse this, and also refuse it for the software NIC's
            // buffers.
            _ = memory.advise(memmap2::Advice::HugePage);
        }
        let start = memory.as_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE);
        let mut ring = Self { memory, start, length };
        // Not zero: untouched pages would all map to the same zero page.
        ring.bytes_mut().fill(byte);
        Ok(ring)
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.length]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.length]
    }
}

/// Copies from one ring to another.
#[derive(Debug)]
pub(super) struct Memcpy {
    from: PlainRing,
    to: PlainRing,
    message_size: usize,
}

impl Memcpy {
    pub(super) fn new(message_size: usize, slots: usize) -> io::Result<Self> {
        let length = message_size * slots;
        Ok(Self { from: PlainRing::new(length, 1)?, to: PlainRing::new(length, 2)?, message_size })
    }

    /// Copies up to the limit, and returns the seconds per request.
    pub(super) fn run(&mut self, limit: Limit) -> f64 {
        let begin = Instant::now();
        let mut requests = 0;
        loop {
            let from = self.from.bytes().chunks_exact(self.message_size);
            for (from, to) in from.zip(self.to.bytes_mut().chunks_exact_mut(self.message_size)) {
                to.copy_from_slice(black_box(from));
                black_box(to);
                requests += 1;
                if limit == Limit::Count(requests) {
                    return begin.elapsed().as_secs_f64().max(1e-9) / requests as f64;
                }
            }
            if let Limit::Time(time) = limit
                && begin.elapsed() >= time
            {
                return begin.elapsed().as_secs_f64().max(1e-9) / requests as f64;
            }
        }
    }
}
