//! Device names on the command line.

use std::fmt;
use std::str::FromStr;

/// A device or one of its ports, in the notation of users: `mlx5_0`, `mlx5_0:2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// The device's name.
    pub device: String,
    /// The port, numbered from 1; `None` selects every active port.
    pub port: Option<u8>,
}

/// Text that is not a device name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not DEVICE or DEVICE:PORT, such as mlx5_0 or mlx5_0:1")]
pub struct DeviceNameError(String);

impl FromStr for DeviceName {
    type Err = DeviceNameError;

    fn from_str(text: &str) -> Result<Self, DeviceNameError> {
        let error = || DeviceNameError(text.to_owned());
        let (device, port) = match text.split_once(':') {
            None => (text, None),
            Some((device, port)) => match port.parse() {
                Ok(0) | Err(_) => return Err(error()),
                Ok(port) => (device, Some(port)),
            },
        };
        if device.is_empty() {
            return Err(error());
        }
        Ok(Self { device: device.to_owned(), port })
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => f.write_str(&self.device),
            Some(port) => write!(f, "{}:{port}", self.device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_as_people_name_them() {
        let name = |device: &str, port| Ok(DeviceName { device: device.to_owned(), port });
        assert_eq!("mlx5_0".parse(), name("mlx5_0", None));
        assert_eq!("rxeA0:2".parse(), name("rxeA0", Some(2)));
        assert_eq!("rxeA0:2".parse::<DeviceName>().unwrap().to_string(), "rxeA0:2");
        for bad in ["", ":1", "a:", "a:0", "a:256", "a:x", "a:1:1"] {
            assert_eq!(bad.parse::<DeviceName>(), Err(DeviceNameError(bad.to_owned())), "{bad}");
        }
    }
}
