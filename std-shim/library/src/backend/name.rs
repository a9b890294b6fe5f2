//! Device names on the command line.

use std::fmt;
use std::str::FromStr;

/// A device or one of its ports, and perhaps its address, in the notation of users: `mlx5_0`,
/// `mlx5_0:2`, `mlx5_0@3`, `mlx5_0:2@3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// The device's name.
    pub device: String,
    /// The port, numbered from 1; `None` selects every active port.
    pub port: Option<u8>,
    /// Index of the address in the port's GID table, in the table of every selected port; `None`
    /// leaves the choice to other options.
    pub gid_index: Option<u8>,
}

/// Text that is not a device name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not DEVICE, DEVICE:PORT, DEVICE@GID_INDEX or DEVICE:PORT@GID_INDEX, such as mlx5_0, \
     mlx5_0:1 or mlx5_0:1@3"
)]
pub struct DeviceNameError(String);

impl FromStr for DeviceName {
    type Err = DeviceNameError;

    fn from_str(text: &str) -> Result<Self, DeviceNameError> {
        let number = |digits: &str| {
            let is_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_: &u8| is_digits)
        };
        let parse = || {
            let (place, gid_index) = match text.split_once('@') {
                Some((place, index)) => (place, Some(number(index)?)),
                None => (text, None),
            };
            let (device, port) = match place.split_once(':') {
                Some((device, port)) => (device, Some(number(port).filter(|port| *port > 0)?)),
                None => (place, None),
            };
            let device = Some(device).filter(|device| !device.is_empty())?.to_owned();
            Some(Self { device, port, gid_index })
        };
        parse().ok_or_else(|| DeviceNameError(text.to_owned()))
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        self.gid_index.map_or(Ok(()), |index| write!(f, "@{index}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_as_people_name_them() {
        let name = |device: &str, port, gid_index| {
            Ok(DeviceName { device: device.into(), port, gid_index })
        };
        assert_eq!("mlx5_0".parse(), name("mlx5_0", None, None));
        assert_eq!("rxeA0:2".parse(), name("rxeA0", Some(2), None));
        assert_eq!("mlx5_0@0".parse(), name("mlx5_0", None, Some(0)));
        assert_eq!("mlx5_0:1@255".parse(), name("mlx5_0", Some(1), Some(255)));
        for good in ["mlx5_0", "rxeA0:2", "mlx5_0@3", "mlx5_0:1@3"] {
            assert_eq!(good.parse::<DeviceName>().unwrap().to_string(), good);
        }
        for bad in [
            "", ":1", "a:", "a:0", "a:256", "a:x", "a:1:1", "a:+1", "@1", "a@", "a@256", "a@x",
            "a@1:1", "a@1@1", "a:1@+1",
        ] {
            assert_eq!(bad.parse::<DeviceName>(), Err(DeviceNameError(bad.to_owned())), "{bad}");
        }
    }
}
