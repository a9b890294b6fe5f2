//! Symbols of a library that it does not export: NCCL's own tables and loaders, which the wheel's
//! library still names.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::Path;

/// A library that is loaded, with the places of all its symbols.
pub(crate) struct Symbols {
    _library: libloading::Library,
    values: HashMap<String, u64>,
    base: u64,
}

impl Symbols {
    /// Loads a library, of which this symbol is exported; `None` if it has no table of symbols.
    pub(crate) fn load(path: &Path, exported: &str) -> Option<Self> {
        // SAFETY: NCCL's library may be loaded by anybody.
        let library = unsafe {
            libloading::os::unix::Library::open(Some(path), libc::RTLD_NOW | libc::RTLD_LOCAL)
        };
        let library: libloading::Library = library.unwrap_or_else(|error| panic!("{error}")).into();
        let values = symbols(&std::fs::read(path).ok()?)?;
        // SAFETY: only its address is taken.
        let address = unsafe { library.get::<*const c_void>(exported.as_bytes()) }.ok()?;
        let address: *const c_void = *address;
        let address = address.expose_provenance() as u64;
        let base = address.checked_sub(*values.get(exported)?)?;
        Some(Self { _library: library, values, base })
    }

    /// Where a symbol is.
    pub(crate) fn find(&self, name: &str) -> Option<*mut c_void> {
        let address = self.base + self.values.get(name)?;
        Some(std::ptr::with_exposed_provenance_mut(address as usize))
    }
}

fn number<const N: usize>(bytes: &[u8], at: u64) -> Option<u64> {
    let part = bytes.get(at as usize..at as usize + N)?;
    Some(part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Names and values of the `.symtab` of an ELF file of 64 bits in little endian.
fn symbols(file: &[u8]) -> Option<HashMap<String, u64>> {
    const SYMTAB: u64 = 2;
    const ENTRY: usize = 24;
    let (sections, size, count) =
        (number::<8>(file, 40)?, number::<2>(file, 58)?, number::<2>(file, 60)?);
    let section = |index: u64| sections + index * size;
    let table = (0..count).map(section).find(|at| number::<4>(file, at + 4) == Some(SYMTAB))?;
    let names = section(number::<4>(file, table + 40)?);
    let part = |at: u64| {
        let (start, length) =
            (number::<8>(file, at + 24)? as usize, number::<8>(file, at + 32)? as usize);
        file.get(start..start + length)
    };
    let (table, names) = (part(table)?, part(names)?);
    let symbol = |entry: &[u8]| {
        let name = names.get(number::<4>(entry, 0)? as usize..)?;
        let name = &name[..name.iter().position(|byte| *byte == 0)?];
        Some((String::from_utf8_lossy(name).into_owned(), number::<8>(entry, 8)?))
    };
    Some(table.chunks_exact(ENTRY).filter_map(symbol).collect())
}
