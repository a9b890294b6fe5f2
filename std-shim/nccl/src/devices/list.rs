//! All devices of this process.

use super::description::{Description, Gpu, Group};
use super::rail_ids::{RailIds, rail_ids};
use super::software;
#[cfg(feature = "tcp")]
use super::tcp;
#[cfg(feature = "verbs")]
use super::verbs;
use crate::abi::{PTR_CUDA, PTR_DMABUF, PTR_HOST};
use crate::guard::{Code, Refusal};
use crate::log;
use crate::rails::Nics;
use crate::settings::{Backend, Settings};
use polyrail::endpoint::MAX_DEVICES;
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_int};
use std::sync::{Arc, Mutex, PoisonError};

/// A device, as NCCL counts them.
pub(crate) struct Device {
    pub(crate) description: Description,
    pub(crate) rail_ids: RailIds,
    /// Indices of its NICs among all devices.
    pub(crate) parts: Vec<usize>,
    pub(crate) nics: Arc<dyn Nics>,
    /// The texts as C strings, which are never freed because NCCL may keep the pointers.
    pub(crate) name: &'static CStr,
    pub(crate) pci_path: Option<&'static CStr>,
}

/// All devices: first the NICs, then the merged devices.
pub(crate) struct Devices {
    group: Box<dyn Group>,
    /// The rail and the plane of each NIC.
    rail_ids: Vec<RailIds>,
    all: Vec<Arc<Device>>,
}

impl Devices {
    /// Opens the devices that the settings name.
    pub(crate) fn open(settings: &Settings) -> Result<Self, Refusal> {
        let group: Box<dyn Group> = match settings.backend {
            Backend::Software => Box::new(software::Software::new(settings)?),
            #[cfg(feature = "verbs")]
            Backend::Verbs => Box::new(verbs::Verbs::open(settings)?),
            #[cfg(feature = "tcp")]
            Backend::Tcp => Box::new(tcp::Tcp::open(settings)?),
            #[cfg(not(all(feature = "tcp", feature = "verbs")))]
            other => {
                let words =
                    format!("this plugin was built without POLYRAIL_BACKEND={}", other.name());
                return Err(Refusal::new(Code::Usage, words));
            }
        };
        let names: Vec<&str> = group.descriptions().iter().map(|nic| nic.name.as_str()).collect();
        let rail_ids = rail_ids(&settings.rail_ids, &names, &group.networks());
        let mut devices = Self { group, rail_ids, all: Vec::new() };
        devices.forget_merged();
        devices.warn_of_unknown_rates(settings);
        Ok(devices)
    }

    /// Logs the rates of devices that do not exist.
    fn warn_of_unknown_rates(&self, settings: &Settings) {
        for (name, _) in &settings.device_mbps {
            if !self.all.iter().any(|device| device.nics.has_device(name)) {
                log::warn(&format!("POLYRAIL_DEVICE_MBPS: {name} is not a device"));
            }
        }
    }

    /// Removes all merged devices.
    pub(crate) fn forget_merged(&mut self) {
        let nics = 0..self.group.descriptions().len();
        self.all = nics.map(|place| Arc::new(self.make(vec![place]))).collect();
    }

    pub(crate) fn all(&self) -> &[Arc<Device>] {
        &self.all
    }

    /// Returns the device with this number.
    pub(crate) fn get(&self, place: c_int) -> Result<&Arc<Device>, Refusal> {
        let found = usize::try_from(place).ok().and_then(|place| self.all.get(place));
        let last = self.all.len();
        found.ok_or_else(|| Refusal::argument(format!("device {place} of {last}")))
    }

    /// Merges NICs into one device, unless a device of the same NICs exists, and returns its
    /// number.
    pub(crate) fn merge(&mut self, parts: &[c_int]) -> Result<c_int, Refusal> {
        let nics = self.group.descriptions().len();
        if parts.is_empty() || parts.len() > MAX_DEVICES {
            let words =
                format!("a device of {} NICs: 1 to {MAX_DEVICES} are possible", parts.len());
            return Err(Refusal::argument(words));
        }
        let mut places = Vec::with_capacity(parts.len());
        for &part in parts {
            let place = usize::try_from(part).ok().filter(|place| *place < nics);
            let place = place.ok_or_else(|| {
                Refusal::argument(format!("device {part} is not one of the {nics} NICs"))
            })?;
            if places.contains(&place) {
                return Err(Refusal::argument(format!(
                    "device {part} cannot be merged with itself"
                )));
            }
            places.push(place);
        }
        let found = self.all.iter().position(|device| device.parts == places);
        let place = found.unwrap_or_else(|| {
            let device = self.make(places);
            self.all.push(Arc::new(device));
            self.all.len() - 1
        });
        c_int::try_from(place).map_err(|_| Refusal::new(Code::Internal, "too many devices"))
    }

    fn make(&self, parts: Vec<usize>) -> Device {
        let all = self.group.descriptions();
        let of = |place: &usize| &all[*place];
        let first = of(&parts[0]);
        let names: Vec<&str> = parts.iter().map(|place| of(place).name.as_str()).collect();
        let description = Description {
            name: names.join("+"),
            speed_mbps: parts
                .iter()
                .fold(0, |sum: u32, part| sum.saturating_add(of(part).speed_mbps)),
            gpu: Gpu {
                by_address: parts.iter().all(|part| of(part).gpu.by_address),
                by_dma_buf: parts.iter().all(|part| of(part).gpu.by_dma_buf),
            },
            ..first.clone()
        };
        let nics = self.group.nics(&parts);
        // NCCL keeps NICs without a PCI device in a list of their own, and merges them by default.
        // It then loses the merged device (`ncclTopoGetVNicParent` of versions 2.27 to 2.30 puts it
        // where nothing is read), unless it has the name of a device in the list, whose place it
        // takes.
        let name = kept(if first.pci_path.is_none() { &first.name } else { &description.name });
        let pci_path = description.pci_path.as_deref().map(kept);
        let rail_ids = RailIds::of_parts(parts.iter().map(|place| self.rail_ids[*place]));
        Device { description, rail_ids, parts, nics, name, pci_path }
    }
}

impl Device {
    /// Returns the kinds of memory that it reaches, as NCCL's bits.
    pub(crate) const fn ptr_support(&self) -> c_int {
        support(self.description.gpu)
    }
}

/// NCCL reads the two bits of GPU memory separately: `PTR_CUDA` permits `regMr`, `PTR_DMABUF`
/// permits `regMrDmaBuf`.
const fn support(Gpu { by_address, by_dma_buf }: Gpu) -> c_int {
    let mut support = PTR_HOST;
    if by_address {
        support |= PTR_CUDA;
    }
    if by_dma_buf {
        support |= PTR_DMABUF;
    }
    support
}

/// Returns a text that is never freed; equal texts share one allocation.
fn kept(text: &str) -> &'static CStr {
    static KEPT: Mutex<Option<HashSet<&'static CStr>>> = Mutex::new(None);
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    if let Some(text) = kept.get(text.as_c_str()) {
        return text;
    }
    let text: &'static CStr = Box::leak(text.into_boxed_c_str());
    kept.insert(text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the first bit is set, NCCL calls `regMr` with GPU memory, which must succeed.
    #[test]
    fn memory_of_gpus_is_claimed_by_the_way_that_reaches_it() {
        for (by_address, by_dma_buf, bits) in [
            (false, false, PTR_HOST),
            (true, false, PTR_HOST | PTR_CUDA),
            (false, true, PTR_HOST | PTR_DMABUF),
            (true, true, PTR_HOST | PTR_CUDA | PTR_DMABUF),
        ] {
            assert_eq!(support(Gpu { by_address, by_dma_buf }), bits);
        }
    }
}
