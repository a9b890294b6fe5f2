//! Checks the coverage table in the crate's documentation: every topic of the verbs API has a row
//! with existing tests. Also checks which types may move between threads.

use polyrail_ffi::{
    AddressHandle, CompletionChannel, CompletionQueue, Context, CqHandle, DeviceList,
    ExtendedCompletionQueue, MemoryRegion, MemoryWindow, ProtectionDomain, QueuePair, Rc,
    SharedReceiveQueue, Uc, Ud,
};
use std::fs;
use std::path::Path;

/// The numbered topics of the verbs API; 3 to 10 and 13 have subtopics only.
const ITEMS: &str = "1.1 1.2 2.1 2.2 2.3 2.4 2.5 2.6 3.1 3.2 4.1 4.2 5.1 5.2 5.3 5.4 5.5 \
    6.1 6.2 6.2.1 6.2.2 6.2.3 6.2.4 6.3 6.4 7.1 7.1.1 7.1.2 7.1.3 7.1.4 7.1.5 7.1.6 7.1.7 7.2 \
    8.1 8.2 8.3 8.4 9.1 9.2 10 10.1 11.1 11.2 11.3 12.1 12.2 12.3 12.4 12.5 12.6 13.1 13.2 13.3 14";

/// The items of the topics: the topic, the verbs name of each item, and its name in this crate as
/// `Type::item`. Omitted items are in [`LEFT_OUT`].
const INSIDE: &[(&str, &str)] = &[
    (
        "2.3 max_qp max_qp_wr max_sge max_cq max_cqe max_mr max_mr_size max_pd max_qp_rd_atom
        max_qp_init_rd_atom atomic_cap max_srq max_srq_wr phys_port_cnt",
        "DeviceAttributes::max_qp max_qp_wr max_sge max_cq max_cqe max_mr max_mr_size max_pd
        max_qp_rd_atom max_qp_init_rd_atom atomic_cap max_srq max_srq_wr phys_port_cnt",
    ),
    (
        "2.4 state max_mtu active_mtu lid sm_lid gid_tbl_len pkey_tbl_len active_speed active_width
        link_layer",
        "PortAttributes::state max_mtu active_mtu lid sm_lid gid_table_len pkey_table_len speed_code
        width link_layer",
    ),
    (
        "2.4 NOP DOWN INIT ARMED ACTIVE ACTIVE_DEFER",
        "PortState::Other Down Init Armed Active ActiveDefer",
    ),
    (
        "4.1 LOCAL_WRITE REMOTE_WRITE REMOTE_READ REMOTE_ATOMIC MW_BIND ZERO_BASED ON_DEMAND HUGETLB
        RELAXED_ORDERING",
        "AccessFlags::LOCAL_WRITE REMOTE_WRITE REMOTE_READ REMOTE_ATOMIC MW_BIND ZERO_BASED
        ON_DEMAND HUGETLB RELAXED_ORDERING",
    ),
    ("4.1 lkey rkey addr length", "MemoryRegion::lkey rkey addr len"),
    ("5.2 cqe cq_context channel comp_vector", "CqInit::cqe user_context channel comp_vector"),
    (
        "5.3 wr_id status opcode byte_len qp_num src_qp imm_data wc_flags pkey_index slid sl",
        "Completion::wr_id status opcode byte_len qp_num src_qp imm wc_flags pkey_index slid sl",
    ),
    (
        "5.3 SUCCESS LOC_LEN LOC_QP_OP LOC_EEC_OP LOC_PROT WR_FLUSH MW_BIND BAD_RESP LOC_ACCESS
        REM_INV_REQ REM_ACCESS REM_OP RETRY_EXC RNR_RETRY_EXC LOC_RDD_VIOL REM_INV_RD_REQ REM_ABORT
        INV_EECN INV_EEC_STATE FATAL RESP_TIMEOUT GENERAL",
        "WcStatus::SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR
        MW_BIND_ERR BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR
        RETRY_EXC_ERR RNR_RETRY_EXC_ERR LOC_RDD_VIOL_ERR REM_INV_RD_REQ_ERR REM_ABORT_ERR
        INV_EECN_ERR INV_EEC_STATE_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR",
    ),
    (
        "6.1 qp_context send_cq recv_cq srq sq_sig_all",
        "QpInit::user_context send_cq recv_cq srq sq_sig_all",
    ),
    (
        "6.1 max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data",
        "QpCap::max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data",
    ),
    ("6.1 RC", "Rc::Rc"),
    ("6.1 UC", "Uc::Uc"),
    ("6.1 UD", "Ud::Ud"),
    ("6.2 RESET INIT RTR RTS SQD SQE ERR", "QpState::Reset Init Rtr Rts Sqd Sqe Err"),
    (
        "6.2 qp_state pkey_index port_num qp_access_flags",
        "ToInit::ToInit pkey_index port_num access",
    ),
    ("6.2 INIT-to-INIT", "ChangeInit::ChangeInit"),
    ("6.2 RTS-to-RTS", "ChangeRts::ChangeRts"),
    ("6.2 SQD-to-SQD ah_attr", "ChangeSqd::ChangeSqd path"),
    ("6.2 RTS-to-SQD", "ToSqd::ToSqd"),
    ("6.2 SQD-to-RTS", "Resume::Resume"),
    ("6.2 SQE-to-RTS", "Recover::Recover"),
    ("6.2 any-to-ERR", "ToErr::ToErr"),
    ("6.2 any-to-RESET", "ToReset::ToReset"),
    (
        "6.2.2 path_mtu dest_qp_num rq_psn max_dest_rd_atomic min_rnr_timer ah_attr",
        "ToRtr::path_mtu dest_qp_num rq_psn max_dest_rd_atomic min_rnr_timer path",
    ),
    ("6.2.2 256 512 1024 2048 4096", "Mtu::Mtu256 Mtu512 Mtu1024 Mtu2048 Mtu4096"),
    (
        "6.2.3 timeout retry_cnt rnr_retry sq_psn max_rd_atomic",
        "ToRts::timeout retry_cnt rnr_retry sq_psn max_rd_atomic",
    ),
    ("6.3 STATE CUR_STATE path init_attr", "QpAttributes::state cur_state path init"),
    (
        "7.1 wr_id opcode send_flags imm_data remote_addr rkey compare_add swap",
        "SendRequest::wr_id opcode flags imm remote_addr rkey compare_add swap",
    ),
    ("7.1 sg_list num_sge", "SendBatch::add_list add_list"),
    (
        "7.1 SEND SEND_WITH_IMM RDMA_WRITE RDMA_WRITE_WITH_IMM RDMA_READ ATOMIC_CMP_AND_SWP
        ATOMIC_FETCH_AND_ADD SEND_WITH_INV LOCAL_INV",
        "Opcode::Send SendWithImm RdmaWrite RdmaWriteWithImm RdmaRead CompareSwap FetchAdd
        SendWithInv LocalInv",
    ),
    ("7.1 BIND_MW", "QueuePair::bind_window"),
    (
        "7.1 FENCE SIGNALED SOLICITED INLINE IP_CSUM",
        "SendFlags::FENCE SIGNALED SOLICITED INLINE IP_CSUM",
    ),
    ("7.1 addr length lkey", "Sge::addr length lkey"),
    ("7.1.7 ah remote_qpn remote_qkey", "DatagramBatch::add add_list add"),
    ("7.2 wr_id", "RecvRequest::wr_id"),
    ("7.2 sg_list num_sge", "RecvBatch::add_list add_list"),
    ("8.1 srq_context max_wr max_sge srq_limit", "SrqInit::user_context max_wr max_sge limit"),
    ("8.3 srq_limit", "SharedReceiveQueue::set_limit"),
    ("9.1 sl port_num", "Path::service_level port_num"),
    ("9.1 dlid src_path_bits is_global", "Route::dlid src_path_bits Roce"),
    (
        "9.1 dgid sgid_index flow_label hop_limit traffic_class",
        "Grh::dgid sgid_index flow_label hop_limit traffic_class",
    ),
    ("10.1 timestamp", "Timestamps::DEVICE"),
    ("10.1 read_completion_ts", "ExtendedCompletion::device_ticks"),
    ("12.6 cq_count", "CqHandle::moderate"),
    (
        "13.1 CQ_ERR QP_FATAL QP_REQ_ERR QP_ACCESS_ERR PORT_ACTIVE PORT_ERR LID_CHANGE SM_CHANGE
        SRQ_LIMIT_REACHED SRQ_ERR",
        "AsyncEvent::CqError QpFatal QpRequestError QpAccessError PortActive PortError LidChange
        SmChange SrqLimitReached SrqError",
    ),
];

/// Services that the crate leaves out; its documentation must give the reason.
const LEFT_OUT: &[&str] = &["`RAW_PACKET`", "`XRC_SEND`", "`XRC_RECV`"];

/// Whether a text contains a word.
fn has_word(text: &str, word: &str) -> bool {
    let is_part =
        |byte: Option<&u8>| byte.is_some_and(|byte| *byte == b'_' || byte.is_ascii_alphanumeric());
    text.match_indices(word).any(|(at, _)| {
        let bytes = text.as_bytes();
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        !is_part(before) && !is_part(bytes.get(at + word.len()))
    })
}

/// Whether a source file declares `item` of `owner`, or `owner` itself.
fn declares(file: &str, owner: &str, item: &str) -> bool {
    let is_of = |line: &str| {
        let line = line.trim_start();
        let opens = ["pub struct", "pub enum", "impl", "statuses"];
        opens.iter().any(|open| line.starts_with(open)) && has_word(line, owner)
    };
    let is_item = |line: &str| {
        let line = line.trim_start();
        let line = ["pub ", "const ", "unsafe ", "fn ", "struct "]
            .iter()
            .fold(line, |line, word| line.strip_prefix(word).unwrap_or(line));
        line.strip_prefix(item).is_some_and(|rest| rest.starts_with([':', ',', '(', '<', ' ', ';']))
    };
    file.lines().any(is_of) && file.lines().any(is_item)
}

#[test]
fn every_item_inside_a_section_is_declared_and_tried() {
    let declared = files(&["ffi/src", "core/src/verbs"]);
    let in_sources = sources(&["ffi/src", "core/src"]);
    let beside = in_sources.split("#[cfg(test)]").skip(1).map(str::to_owned);
    let tried: Vec<_> = files(&["ffi/tests", "tests/rxe/src", "tests/src/behaviours"])
        .into_iter()
        .filter(|text| !text.contains("const INSIDE"))
        .chain(beside)
        .collect();
    for (listed, here) in INSIDE {
        let (section, listed) = listed.split_once(' ').expect("a section and its items");
        assert!(ITEMS.split_whitespace().any(|item| item == section), "no section {section}");
        let (owner, names) = here.split_once("::").expect("a type and its items");
        let names: Vec<_> = names.split_whitespace().collect();
        assert_eq!(listed.split_whitespace().count(), names.len(), "{section}: {listed} is {here}");
        for name in names {
            let is_there = declared.iter().any(|file| declares(file, owner, name));
            assert!(is_there, "{section}: nothing declares {owner}::{name}");
            let is_tried = tried.iter().any(|text| has_word(text, name));
            assert!(is_tried, "{section}: no test names {owner}::{name}");
        }
    }
    let documentation = include_str!("../../src/lib.rs");
    for item in LEFT_OUT {
        assert!(documentation.contains(item), "the docs do not explain why {item} is left out");
    }
}

/// Reads all Rust source files below some folders of the workspace.
fn files(folders: &[&str]) -> Vec<String> {
    fn read(folder: &Path, files: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("a folder of the workspace") {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(fs::read_to_string(&path).unwrap());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut files = Vec::new();
    folders.iter().for_each(|folder| read(&root.join(folder), &mut files));
    files
}

/// Like [`files`], as one text.
fn sources(folders: &[&str]) -> String {
    files(folders).concat()
}

/// Parses the last column of a row: the kind and the name of each test.
fn tests(column: &str) -> Vec<(String, String)> {
    let mut kind = "";
    let mut found = Vec::new();
    for (place, part) in column.split('`').enumerate() {
        if place % 2 == 1 {
            found.push((kind.to_owned(), part.to_owned()));
        } else if let Some(word) = part.split_whitespace().find(|word| *word != ",") {
            kind = word;
        }
    }
    found
}

#[test]
fn every_item_of_the_manual_has_a_row_whose_tests_exist() {
    let kinds = [
        ("fake", sources(&["ffi/tests", "ffi/src"])),
        ("guest", sources(&["tests/rxe/src"])),
        ("both", sources(&["tests/src/behaviours"])),
        ("host", sources(&["std-shim/library", "std-shim/nic-parts", "std-shim/software-nic"])),
    ];
    let mut items = Vec::new();
    for row in include_str!("../../src/lib.rs").lines() {
        let columns: Vec<_> = row.split('|').map(str::trim).collect();
        let ["//!", item, _, column, ""] = columns[..] else { continue };
        if !item.starts_with(|first: char| first.is_ascii_digit()) {
            continue;
        }
        let words = item.split_whitespace().map(|word| word.trim_end_matches(','));
        items.extend(
            words.take_while(|word| word.starts_with(|first: char| first.is_ascii_digit())),
        );
        let tests = tests(column);
        assert!(!tests.is_empty(), "{item} has no test");
        for (kind, name) in tests {
            let (_, text) = kinds.iter().find(|(known, _)| *known == kind).expect("a kind of test");
            let is_there = ["(", "<"].iter().any(|end| text.contains(&format!("fn {name}{end}")));
            assert!(is_there, "{item}: missing test {name} of kind {kind}");
        }
    }
    for item in ITEMS.split_whitespace() {
        assert!(items.contains(&item), "{item} has no row");
    }
}

#[test]
fn everything_moves_between_threads_and_handles_are_shared() {
    fn moves<T: Send>() {}
    fn is_shared<T: Send + Sync + Clone>() {}
    fn is_asked<T: Sync>() {}
    is_shared::<Context>();
    is_shared::<ProtectionDomain>();
    is_shared::<CqHandle>();
    is_shared::<CompletionChannel>();
    is_asked::<QueuePair<Rc>>();
    moves::<DeviceList>();
    moves::<CompletionQueue>();
    moves::<ExtendedCompletionQueue>();
    moves::<SharedReceiveQueue>();
    moves::<(QueuePair<Rc>, QueuePair<Uc>, QueuePair<Ud>)>();
    moves::<(AddressHandle, MemoryRegion, MemoryWindow<'static>)>();
}
