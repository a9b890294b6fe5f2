//! The program brings its own `_start`: the C runtime's would look for `main`. The compiler may
//! still call `memcpy` and its kin, which are the C library's.

fn main() {
    println!("cargo:rustc-link-arg-bins=-nostartfiles");
    println!("cargo:rustc-link-arg-bins=-lc");
}
