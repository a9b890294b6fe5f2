//! Memory that is registered with the devices of an end.

use super::Memory;
use polyrail::backend::{Domain, Region};
use polyrail::memory::RegisteredBuffer;
use polyrail_core::verbs::{AccessFlags, LocalBuffer};

/// A registered buffer of a backend.
#[derive(Debug)]
pub struct Buffer<R: Region>(RegisteredBuffer<R>);

impl<R: Region> Buffer<R> {
    /// Registers zeroed memory with the devices of all rails.
    pub fn new<D: Domain<Region = R>>(bytes: usize, access: AccessFlags, domains: &[D]) -> Self {
        let domains: Vec<_> = domains.iter().collect();
        Self(RegisteredBuffer::new(bytes, access, &domains).expect("memory that can be registered"))
    }
}

impl<R: Region> Memory for Buffer<R> {
    fn addr(&self) -> u64 {
        self.0.addr()
    }

    fn lkey(&self, rail: usize) -> u32 {
        self.0.keys()[rail].lkey
    }

    fn rkey(&self, rail: usize) -> u32 {
        self.0.keys()[rail].rkey
    }

    fn local(&self, offset: usize, length: u32) -> LocalBuffer {
        self.0.local(offset, length).unwrap()
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.write_at(offset, bytes).unwrap();
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_at(offset, &mut bytes).unwrap();
        bytes
    }
}
