//! Finds out why there is no usable device.

use polyrail_ffi::VerbsError;
use std::io::ErrorKind;
use std::path::Path;

/// There is no device to report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// The library failed before it asked the kernel.
    #[error(transparent)]
    Verbs(VerbsError),
    /// The kernel does not offer verbs to programs.
    #[error(
        "the kernel offers no verbs: load the module ib_uverbs (modprobe ib_uverbs), and the \
         NIC's driver"
    )]
    KernelModule,
    /// The kernel has no RDMA device.
    #[error(
        "the kernel has no RDMA device: load the NIC's driver, or create a software device \
         (modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0)"
    )]
    NoDevice,
    /// The device files are missing, so the library skips the devices.
    #[error(
        "the kernel has RDMA devices, but not their files: {} missing (in a container, add the files: \
         --device /dev/infiniband; elsewhere, check that udev is running)",
        files.join(", ")
    )]
    DeviceFile {
        /// Paths of the missing files.
        files: Vec<String>,
    },
    /// There is no permission to look up the device files.
    #[error("no permission to look at {}: check the permissions of /dev/infiniband", files.join(", "))]
    Permission {
        /// Paths of the files.
        files: Vec<String>,
    },
    /// No device could be opened and queried.
    #[error("no device can be used: {}", devices.join("; "))]
    Refused {
        /// Names of the devices, with the errors.
        devices: Vec<String>,
    },
    /// The kernel has devices that libibverbs has no provider for.
    #[error(
        "libibverbs has no provider for {}: install it (packages rdma-core and \
         ibverbs-providers)",
        devices.join(", ")
    )]
    Provider {
        /// Names of the devices in the kernel.
        devices: Vec<String>,
    },
}

impl From<VerbsError> for DevicesError {
    /// Without the kernel module, the library fails before it lists devices.
    fn from(error: VerbsError) -> Self {
        match (error.call, error.errno) {
            ("ibv_get_device_list", libc::ENOSYS) => Self::KernelModule,
            _ => Self::Verbs(error),
        }
    }
}

/// Finds out why the library finds no device.
pub(crate) fn what_is_missing() -> DevicesError {
    missing_in(Path::new("/sys/class"), Path::new("/dev/infiniband"))
}

/// Like [`what_is_missing`], from the sysfs `class` directory and the directory of device files.
fn missing_in(class: &Path, files: &Path) -> DevicesError {
    let Some(uverbs) = names_in(&class.join("infiniband_verbs")) else {
        return match names_in(&class.join("infiniband")) {
            Some(devices) if devices.is_empty() => DevicesError::NoDevice,
            _ => DevicesError::KernelModule,
        };
    };
    let devices = names_in(&class.join("infiniband")).unwrap_or_default();
    if devices.is_empty() {
        return DevicesError::NoDevice;
    }
    // The directory also has a file with the kernel's ABI version.
    let uverbs = uverbs.iter().filter(|name| name.starts_with("uverbs"));
    let mut missing = Vec::new();
    let mut forbidden = Vec::new();
    for file in uverbs.map(|name| files.join(name)) {
        let name = || file.display().to_string();
        match file.metadata().map_err(|error| error.kind()) {
            Err(ErrorKind::PermissionDenied) => forbidden.push(name()),
            Err(_) => missing.push(name()),
            Ok(_) => {}
        }
    }
    match (missing.is_empty(), forbidden.is_empty()) {
        (_, false) => DevicesError::Permission { files: forbidden },
        (false, _) => DevicesError::DeviceFile { files: missing },
        _ => DevicesError::Provider { devices },
    }
}

/// Returns the names of a directory's entries, sorted; `None` if it cannot be read.
fn names_in(directory: &Path) -> Option<Vec<String>> {
    let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = directory.read_dir().ok()?.flatten().map(name).collect();
    names.sort_unstable();
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::create_dir_all;
    use std::path::PathBuf;

    /// A sysfs `class` directory and a directory of device files.
    struct Kernel(tempfile::TempDir);

    impl Kernel {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn with(self, directory: &str) -> Self {
            create_dir_all(self.0.path().join(directory)).unwrap();
            self
        }

        fn files(&self) -> PathBuf {
            self.0.path().join("dev")
        }

        fn missing(&self) -> DevicesError {
            missing_in(&self.0.path().join("class"), &self.files())
        }
    }

    #[test]
    fn what_is_missing_shows_in_the_kernels_files() {
        let kernel = Kernel::new();
        assert_eq!(kernel.missing(), DevicesError::KernelModule);
        let kernel = kernel.with("class/infiniband");
        assert_eq!(kernel.missing(), DevicesError::NoDevice);
        let kernel = kernel.with("class/infiniband/mlx5_0");
        assert_eq!(kernel.missing(), DevicesError::KernelModule, "a driver, and no way to it");
        let kernel = kernel.with("class/infiniband_verbs/uverbs0").with("dev/uverbs0");
        let provider = DevicesError::Provider { devices: vec!["mlx5_0".into()] };
        assert_eq!(kernel.missing(), provider);
        assert!(provider.to_string().contains("mlx5_0"));
        let no_device = Kernel::new().with("class/infiniband_verbs");
        assert_eq!(no_device.missing(), DevicesError::NoDevice);
    }

    #[test]
    fn a_library_that_finds_no_kernel_module_says_how_to_load_it() {
        let refused = |errno| VerbsError {
            call: "ibv_get_device_list",
            errno,
            argument: polyrail_ffi::Argument::None,
        };
        let error = DevicesError::from(refused(libc::ENOSYS));
        assert_eq!(error, DevicesError::KernelModule);
        let text = error.to_string();
        assert!(text.starts_with("the kernel offers no verbs"), "{text}");
        assert!(text.contains("modprobe ib_uverbs"), "{text}");
        let other = refused(libc::ENOMEM);
        assert_eq!(DevicesError::from(other), DevicesError::Verbs(other));
    }

    fn two_devices() -> Kernel {
        let names = ["infiniband/mlx5_0", "infiniband/mlx5_1"];
        let files = ["infiniband_verbs/uverbs0", "infiniband_verbs/uverbs1"];
        let shown = ["infiniband_verbs/abi_version"];
        let all = names.into_iter().chain(files).chain(shown);
        all.fold(Kernel::new(), |kernel, name| kernel.with(&format!("class/{name}")))
    }

    #[test]
    fn a_container_without_the_devices_files_is_told_so() {
        let kernel = two_devices().with("dev/uverbs1");
        let file = kernel.files().join("uverbs0").display().to_string();
        let error = kernel.missing();
        assert_eq!(error, DevicesError::DeviceFile { files: vec![file.clone()] });
        let text = error.to_string();
        assert!(text.contains(&file) && text.contains("container"), "{text}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn files_that_may_not_be_looked_at_are_not_called_missing() {
        use std::fs::{Permissions, set_permissions};
        use std::os::unix::fs::PermissionsExt;
        let kernel = two_devices().with("dev/uverbs0").with("dev/uverbs1");
        let reachable = Permissions::from_mode(0o755);
        set_permissions(kernel.0.path(), reachable.clone()).unwrap();
        set_permissions(kernel.files(), Permissions::from_mode(0o000)).unwrap();
        let error = std::thread::scope(|scope| {
            // Without the right to search other users' directories, even if root runs the test.
            let look = scope.spawn(|| {
                const NOBODY: libc::uid_t = 65534;
                // SAFETY: only changes this thread's user for file accesses.
                unsafe { libc::setfsuid(NOBODY) };
                kernel.missing()
            });
            look.join().unwrap()
        });
        set_permissions(kernel.files(), reachable).unwrap();
        let files = ["uverbs0", "uverbs1"].map(|name| kernel.files().join(name));
        let files = files.iter().map(|file| file.display().to_string()).collect();
        assert_eq!(error, DevicesError::Permission { files });
    }
}
