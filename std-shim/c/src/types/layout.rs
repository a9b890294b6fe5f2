//! What programs are compiled with: the layout of the structures (`tests/c/layout.inc`) and the
//! numbers of codes, kinds, flags and limits (`tests/c/values.inc`). A C program compares the
//! header with both as well.

use super::*;
use std::fmt::Write;
use std::mem::offset_of;

macro_rules! lines {
    ($text:ident, $($type:ident $name:literal { $($field:ident),* $(,)? })*) => {
        $(
            _ = writeln!($text, "SIZE({}, {});", $name, size_of::<$type>());
            $(_ = writeln!($text, "AT({}, {}, {});", $name, stringify!($field), offset_of!($type, $field));)*
            // Each field is named, without padding between or behind the fields.
            let fields = |value: &$type| 0 $(+ size_of_val(&value.$field))*;
            // SAFETY: numbers, pointers and characters.
            assert_eq!(fields(&unsafe { std::mem::zeroed() }), size_of::<$type>(), $name);
        )*
    };
}

#[test]
fn structures_are_laid_out_as_they_were() {
    let mut text = String::new();
    lines! { text,
        DomainOptions "polyrail_domain_options" {
            size, backend, devices, gid_index, flags, software_bytes_per_second, tcp_port, reserved, near,
        }
        EndpointOptions "polyrail_endpoint_options" {
            size, rails, scheme, max_msg_size, max_msgs_per_qp, rail_failure, min_rails, max_inline_data, path_mtu,
            timeout, retry_cnt, max_rd_atomic, pkey_index, service_level, traffic_class, flow_label, hop_limit, flags,
            queue_pairs_per_rail, split_threshold, heal_first_ms, heal_longest_ms, stall_timeout_ms, rail_timeout_ms,
            fence_timeout_ms, rail_weights, cancel_grace_us, device_mbps,
        }
        LinkOptions "polyrail_link_options" { size, connect_ms, message_ms, reconnect_ms, token }
        DeviceInfo "polyrail_device_info" { name, pci_path, guid, mbps, numa_node, ports, address, reserved }
        Request "polyrail_request" {
            id, opcode, flags, region, offset, length, imm, remote, remote_offset, compare_add, swap,
        }
        Part "polyrail_part" { region, offset, length, reserved }
        Completion "polyrail_completion" { id, peer, status, opcode, bytes, imm, flags, memory, reserved }
        PeerInfo "polyrail_peer_info" { size, state, rails, rails_in_service, unreported, has_link, words }
        RailInfo "polyrail_rail_info" {
            device, rail, state, qp_num, generation, bytes, requests, doorbells, completions, errors, failures,
            posted_again, reserved,
        }
        Event "polyrail_event" { size, kind, peer, length, rail, code }
        Buffer "polyrail_buffer" { region, offset, length, tag }
        MessageInfo "polyrail_message_info" { size, count, lengths, memory, reserved }
    }
    assert_eq!(text, pinned(include_str!("../../tests/c/layout.inc")), "\n{text}");
}

/// The header is what cbindgen makes of the constants and enumerations: a new one is missed here
/// until it is pinned.
#[test]
fn numbers_are_what_they_were() {
    let mut text = String::new();
    for line in include_str!("../../include/polyrail.h").lines() {
        let constant = line.strip_prefix("#define ").and_then(|rest| rest.split_once(' '));
        let variant = line.strip_suffix(',').and_then(|rest| rest.trim_start().split_once(" = "));
        match constant.or(variant) {
            // It is to change.
            Some(("POLYRAIL_VERSION", _)) | None => {}
            Some((name, value)) => _ = writeln!(text, "VALUE({name}, {value});"),
        }
    }
    assert_eq!(text, pinned(include_str!("../../tests/c/values.inc")), "\n{text}");
}

/// A file of pinned lines, without its comments.
fn pinned(file: &str) -> String {
    file.lines().filter(|line| !line.starts_with("//")).flat_map(|line| [line, "\n"]).collect()
}
