/* libpolyrail: many RDMA queue pairs and NICs as one.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Made by cbindgen from std-shim/c/src; do not edit.
 *
 * Codes. Calls return a polyrail_code, and store what they have to say where pointers say. After an error nothing has
 * changed, if not said otherwise.
 *
 * Handles are checked: one that is NULL, closed, made up or of another kind is an error, and so is one with which
 * another thread is in a call; domains, regions and remotes are for any number of threads at a time. Pointers are NULL
 * or to what they should be, for the call: that cannot be checked.
 *
 * Structures that begin with `size` are filled with zeros and given their sizeof. New fields will come behind the
 * others, and 0 is their default.
 *
 * Memory of a request belongs to the devices from the call that posts it until the request is reported, or tested to be
 * done; its `memory` says what may still happen then.
 *
 * Nothing waits for longer than drivers do, but polyrail_peers_wait, and polyrail_peers_close of peers for messages.
 * No call unwinds or exits. After fork() only the parent may use any of it. */

#ifndef POLYRAIL_H
#define POLYRAIL_H

#include <stddef.h>
#include <stdint.h>

// The version that this header is of: major << 16 | minor << 8 | patch.
#define POLYRAIL_VERSION (1 << 8)

// Bytes of a device's name, with the 0 behind it.
#define POLYRAIL_NAME_BYTES 64

// Bytes that a device's PCI path takes at most, with the 0 behind it.
#define POLYRAIL_PATH_BYTES 128

// Devices of a domain at most, and rails of a connection.
#define POLYRAIL_MAX_DEVICES 8

// Buffers of one message at most.
#define POLYRAIL_MAX_BUFFERS 8

// Parts of one request at most.
#define POLYRAIL_MAX_PARTS 16

// Bytes of a region for peers at most: see polyrail_region_export.
#define POLYRAIL_REMOTE_BYTES 64

// Bytes of a connection card at most.
#define POLYRAIL_CARD_BYTES 16384

// Bytes of the caller's that a hello carries at most.
#define POLYRAIL_HELLO_BYTES 2048

// Bytes of the caller's that a message over a link carries at most.
#define POLYRAIL_MESSAGE_BYTES 4096

// Bytes of words at most, with the 0 behind them.
#define POLYRAIL_WORDS_BYTES 256

// Requests of this side may write it: READs, receives, results of atomics.
#define POLYRAIL_ACCESS_LOCAL_WRITE (1 << 0)

// Peers may write it. With POLYRAIL_ACCESS_LOCAL_WRITE only.
#define POLYRAIL_ACCESS_REMOTE_WRITE (1 << 1)

// Peers may read it.
#define POLYRAIL_ACCESS_REMOTE_READ (1 << 2)

// Peers may carry out atomics on it. With POLYRAIL_ACCESS_LOCAL_WRITE only.
#define POLYRAIL_ACCESS_REMOTE_ATOMIC (1 << 3)

// Pages are not pinned: devices wait for those that are not there.
#define POLYRAIL_ACCESS_ON_DEMAND (1 << 6)

// Devices may write it in another order.
#define POLYRAIL_ACCESS_RELAXED_ORDERING (1 << 20)

// Starts only when all that was posted before is done.
#define POLYRAIL_REQUEST_FENCE (1 << 0)

// Wakes a peer that waits for such only.
#define POLYRAIL_REQUEST_SOLICITED (1 << 2)

// The bytes are copied before the call returns. WRITE and SEND of few bytes; not memory of a dma-buf.
#define POLYRAIL_REQUEST_INLINE (1 << 3)

// Reported as soon as it is done.
#define POLYRAIL_REQUEST_REPORT_WHEN_DONE (1 << 16)

// Reported in its order.
#define POLYRAIL_REQUEST_REPORT_IN_ORDER (1 << 17)

// There is an immediate.
#define POLYRAIL_COMPLETION_IMM (1 << 0)

// It was a receive. Of requests that failed over a single rail this is not known.
#define POLYRAIL_COMPLETION_RECEIVE (1 << 1)

// The number of the rail that carries notifications only.
#define POLYRAIL_RAIL_NOTIFY 255

// The receive stays, for a flush, until polyrail_messages_forget.
#define POLYRAIL_TEST_KEEP (1 << 0)

// `gid_index` of the domain's options counts.
#define POLYRAIL_DOMAIN_GID_INDEX 1

// For times in options: never.
#define POLYRAIL_NEVER UINT64_MAX

// `min_rails`: none has to be in service.
#define POLYRAIL_NO_RAIL_NEEDED UINT32_MAX

// `retry_cnt`: none.
#define POLYRAIL_NO_RETRY UINT32_MAX

// Immediates travel least significant byte first, as programs of the reference implementation send them. Both ends.
#define POLYRAIL_ENDPOINT_LITTLE_ENDIAN_IMM (1 << 0)

// WRITEs and READs are reported as soon as they are done, not in their order. May differ.
#define POLYRAIL_ENDPOINT_REPORT_WHEN_DONE (1 << 1)

// SENDs and atomics may overtake WRITEs and READs that were posted before them. May differ.
#define POLYRAIL_ENDPOINT_UNORDERED (1 << 2)

// Completion queues tell a file descriptor when they have something: needed to wait. Of the connections on a
// device, the first one decides. May differ.
#define POLYRAIL_ENDPOINT_EVENTS (1 << 3)

// Messages only: received messages can be flushed, which takes one more queue pair on each device. May differ.
#define POLYRAIL_ENDPOINT_FLUSHES (1 << 4)

// What a call returns: 0, "not now", or a negative error. The words of an error are kept for the thread
// that made the call: see `polyrail_last_error`.
enum polyrail_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Done.
  POLYRAIL_CODE_OK = 0,
  // Not now, and nothing changed: poll, and call again. Back-pressure, or nothing came yet. Not an error.
  POLYRAIL_CODE_NOT_NOW = 1,
  // A pointer is NULL that must not be.
  POLYRAIL_CODE_NULL = -1,
  // A handle that was closed, or never was one.
  POLYRAIL_CODE_HANDLE = -2,
  // A handle of another kind; or peers for messages in a call for requests, or the other way round.
  POLYRAIL_CODE_KIND = -3,
  // Another call is under way with the same object, in another thread.
  POLYRAIL_CODE_BUSY = -4,
  // An earlier call with this object returned POLYRAIL_CODE_PANIC: it can only be closed.
  POLYRAIL_CODE_POISONED = -5,
  // A fault of this library. The object of the call can only be closed.
  POLYRAIL_CODE_PANIC = -6,
  // An argument, an option or a flag has a value that it cannot have.
  POLYRAIL_CODE_ARGUMENT = -7,
  // The `size` of a structure is none that this library knows.
  POLYRAIL_CODE_SIZE = -8,
  // Offset and length do not lie within the memory.
  POLYRAIL_CODE_RANGE = -9,
  // The caller's memory is too short for the answer. How many bytes it takes was stored where its length goes.
  POLYRAIL_CODE_TOO_SHORT = -10,
  // More bytes, buffers, peers or objects than there may be.
  POLYRAIL_CODE_TOO_MANY = -11,
  // There is no such peer here, or not any more.
  POLYRAIL_CODE_PEER = -12,
  // There is no such request, or not any more.
  POLYRAIL_CODE_REQUEST = -13,
  // It cannot be called now: not connected yet, connected already, no completion channel.
  POLYRAIL_CODE_STATE = -14,
  // The connection to the peer failed. Remove the peer, or replace it.
  POLYRAIL_CODE_FAILED = -15,
  // The memory was registered without the access that the request needs.
  POLYRAIL_CODE_ACCESS = -16,
  // The memory is not registered with a device that the request needs: it is of another domain.
  POLYRAIL_CODE_KEYS = -17,
  // This build, this backend or this device cannot do it.
  POLYRAIL_CODE_UNSUPPORTED = -18,
  // There is no such device, or it cannot be used.
  POLYRAIL_CODE_NO_DEVICE = -19,
  // A device or its driver refused.
  POLYRAIL_CODE_DEVICE = -20,
  // The system gave no memory, file or thread.
  POLYRAIL_CODE_SYSTEM = -21,
  // A device may still access the memory, for as long as the process has it open: do not use the memory again.
  POLYRAIL_CODE_STILL_ACCESSED = -22,
  // The peer's address does not go together with this side's options.
  POLYRAIL_CODE_MISMATCH = -23,
  // Bytes of a peer that are not what they should be.
  POLYRAIL_CODE_PROTOCOL = -24,
  // A link cannot be made, or broke.
  POLYRAIL_CODE_LINK = -25,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum polyrail_code polyrail_code;
#else
typedef int32_t polyrail_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How much a logger is told: what is of this level or a lower one.
enum polyrail_log_level
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Nothing.
  POLYRAIL_LOG_LEVEL_NONE = 0,
  // A connection failed for good.
  POLYRAIL_LOG_LEVEL_ERROR = 1,
  // A rail failed, a link broke, two ends do not match.
  POLYRAIL_LOG_LEVEL_WARN = 2,
  // A connection is made, a rail or a link is back.
  POLYRAIL_LOG_LEVEL_INFO = 3,
  // An attempt to bring a rail back failed; there will be others.
  POLYRAIL_LOG_LEVEL_DEBUG = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum polyrail_log_level polyrail_log_level;
#else
typedef uint32_t polyrail_log_level;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A kind of hardware.
enum polyrail_backend
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Real NICs.
  POLYRAIL_BACKEND_DEFAULT = 0,
  // Real NICs, by libibverbs, which is loaded when it is asked for.
  POLYRAIL_BACKEND_VERBS = 1,
  // NICs in software, within this process: for tests and first tries. All of a process reach each other.
  POLYRAIL_BACKEND_SOFTWARE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum polyrail_backend polyrail_backend;
#else
typedef uint32_t polyrail_backend;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a receiver learns that a WRITE_WITH_IMM is there.
enum polyrail_scheme
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // SPRAY.
  POLYRAIL_SCHEME_DEFAULT = 0,
  // A notification of its own, with the immediate, once all data is acknowledged.
  POLYRAIL_SCHEME_SPRAY = 1,
  // Numbered fragments; no immediate of the user's, no SEND, no atomics over several rails.
  POLYRAIL_SCHEME_DQPLB = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum polyrail_scheme polyrail_scheme;
#else
typedef uint32_t polyrail_scheme;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a rail's failure does.
enum polyrail_rail_failure
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It ends the connection.
  POLYRAIL_RAIL_FAILURE_DEFAULT = 0,
  // It ends the connection.
  POLYRAIL_RAIL_FAILURE_FATAL = 1,
  // Other rails take over, nothing is lost, and the rail is given new queue pairs until it is back.
  POLYRAIL_RAIL_FAILURE_REROUTE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum polyrail_rail_failure polyrail_rail_failure;
#else
typedef uint32_t polyrail_rail_failure;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a request does.
enum polyrail_opcode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Writes to the peer's memory.
  POLYRAIL_OPCODE_WRITE = 0,
  // Writes to the peer's memory, and completes a receive there that brings the immediate. Without bytes, of a
  // NULL region, it only does the latter.
  POLYRAIL_OPCODE_WRITE_WITH_IMM = 1,
  // Sends into the buffer of the peer's next receive.
  POLYRAIL_OPCODE_SEND = 2,
  // The same, with an immediate.
  POLYRAIL_OPCODE_SEND_WITH_IMM = 3,
  // Reads the peer's memory.
  POLYRAIL_OPCODE_READ = 4,
  // Replaces 8 aligned bytes at the peer by `swap` if they are `compare_add`; their old value lands here.
  POLYRAIL_OPCODE_COMPARE_SWAP = 5,
  // Adds `compare_add` to 8 aligned bytes at the peer; their old value lands here.
  POLYRAIL_OPCODE_FETCH_ADD = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum polyrail_opcode polyrail_opcode;
#else
typedef uint32_t polyrail_opcode;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a request ended: the numbers of enum ibv_wc_status. Others may come from drivers.
enum polyrail_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It was carried out.
  POLYRAIL_STATUS_SUCCESS = 0,
  // A local buffer is shorter than the message.
  POLYRAIL_STATUS_LOCAL_LENGTH = 1,
  // A fault of the local queue pair.
  POLYRAIL_STATUS_LOCAL_QP = 2,
  // A local key does not permit the access.
  POLYRAIL_STATUS_LOCAL_PROTECTION = 4,
  // The connection had failed before it ran.
  POLYRAIL_STATUS_FLUSHED = 5,
  // The peer's answer makes no sense.
  POLYRAIL_STATUS_BAD_RESPONSE = 7,
  // A local buffer was refused while data was arriving.
  POLYRAIL_STATUS_LOCAL_ACCESS = 8,
  // The peer's device found it invalid.
  POLYRAIL_STATUS_REMOTE_INVALID = 9,
  // The peer's memory does not permit the access, or is not that long.
  POLYRAIL_STATUS_REMOTE_ACCESS = 10,
  // The peer's device could not carry it out.
  POLYRAIL_STATUS_REMOTE_OPERATION = 11,
  // The peer's device never answered.
  POLYRAIL_STATUS_RETRIES_EXCEEDED = 12,
  // The peer had no receive posted, for too long.
  POLYRAIL_STATUS_RECEIVER_NOT_READY = 13,
  // The device failed.
  POLYRAIL_STATUS_FATAL = 19,
  // The peer's device did not answer in time.
  POLYRAIL_STATUS_RESPONSE_TIMEOUT = 20,
  // An error without a code of its own.
  POLYRAIL_STATUS_GENERAL = 21,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum polyrail_status polyrail_status;
#else
typedef uint32_t polyrail_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Whether the memory of a request may still be accessed.
enum polyrail_memory
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The request is done: nothing accesses the memory here, nor the memory there, for it any more.
  POLYRAIL_MEMORY_DONE = 0,
  // It failed, and nothing accesses the memory of either end for it any more. What of it had been carried out is
  // not known.
  POLYRAIL_MEMORY_QUIET = 1,
  // It failed, and nothing accesses the memory here for it any more; but the peer's memory may still be written,
  // until the peer has removed the connection at its end.
  POLYRAIL_MEMORY_REMOTE_MAY_CHANGE = 2,
  // Devices may access it: the request is under way, or nothing is known of it.
  POLYRAIL_MEMORY_UNDER_WAY = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum polyrail_memory polyrail_memory;
#else
typedef uint32_t polyrail_memory;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Where a connection stands.
enum polyrail_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Not connected.
  POLYRAIL_STATE_NEW = 0,
  // The two sides meet over a link.
  POLYRAIL_STATE_MEETING = 1,
  // It works.
  POLYRAIL_STATE_READY = 2,
  // It works, though rails have failed.
  POLYRAIL_STATE_DEGRADED = 3,
  // It failed: requests come back as flushed, and new ones are refused.
  POLYRAIL_STATE_FAILED = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum polyrail_state polyrail_state;
#else
typedef uint32_t polyrail_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Where a rail stands.
enum polyrail_rail_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It carries requests.
  POLYRAIL_RAIL_STATE_IN_SERVICE = 0,
  // It failed, and its last completions are awaited.
  POLYRAIL_RAIL_STATE_DRAINING = 1,
  // This side knows what arrived.
  POLYRAIL_RAIL_STATE_FENCED = 2,
  // Both sides know; a new queue pair may take its place.
  POLYRAIL_RAIL_STATE_DOWN = 3,
  // A new queue pair is being connected.
  POLYRAIL_RAIL_STATE_JOINING = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum polyrail_rail_state polyrail_rail_state;
#else
typedef uint32_t polyrail_rail_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What happened to a peer.
enum polyrail_event_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It is connected over its link, at both ends. The bytes are those of the other side's hello.
  POLYRAIL_EVENT_KIND_CONNECTED = 1,
  // A message came over its link. The bytes are the message.
  POLYRAIL_EVENT_KIND_MESSAGE = 2,
  // The link was made anew. Messages that were said before may be lost, either way.
  POLYRAIL_EVENT_KIND_LINK_RESUMED = 3,
  // The link is gone: the other side closed it, or it broke for good. What was connected works on, but heals no
  // more. The bytes are words.
  POLYRAIL_EVENT_KIND_LINK_LOST = 4,
  // The two sides did not come together. The bytes are words, and `code` is why.
  POLYRAIL_EVENT_KIND_NOT_CONNECTED = 5,
  // A rail failed. The bytes are words.
  POLYRAIL_EVENT_KIND_RAIL_FAILED = 6,
  // What was in flight on a rail that failed was posted again. The bytes are words.
  POLYRAIL_EVENT_KIND_RAIL_FENCED = 7,
  // A rail is back in service. The bytes are words.
  POLYRAIL_EVENT_KIND_RAIL_RETURNED = 8,
  // The connection failed. The bytes are words.
  POLYRAIL_EVENT_KIND_FAILED = 9,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum polyrail_event_kind polyrail_event_kind;
#else
typedef uint32_t polyrail_event_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Devices of one backend, opened together: what memory is registered with, and connections are made of.
// Any thread may use it, many at the same time.
typedef struct polyrail_domain polyrail_domain;

// A TCP connection to another process, over which two sides meet, before it is given to a peer. One thread at a
// time.
typedef struct polyrail_link polyrail_link;

// A TCP address at which links of peers are accepted. One thread at a time.
typedef struct polyrail_listener polyrail_listener;

// Connections with many peers, which one poll serves: for requests (WRITE, READ, SEND, atomics), or for messages, which
// the receiver says where to put. One thread at a time.
typedef struct polyrail_peers polyrail_peers;

// Memory of the caller's, registered with every device of a domain. Any thread may use it, many at the same
// time.
typedef struct polyrail_region polyrail_region;

// Memory of a peer's: where it is, and the keys to it. Any thread may use it, many at the same time.
typedef struct polyrail_remote polyrail_remote;

// Is told what happens: with the context that it was given with, a polyrail_log_level, and words, without a newline,
// that are valid during the call. Any thread may call it that is in a call, or that looks after a link, and several at
// a time. It returns, and does not call the library: objects that it is told of are in a call.
typedef void (*polyrail_logger)(void *context, uint32_t level, const char *words);

// Options of a domain. `size` is sizeof; everything else may be 0.
typedef struct {
  // sizeof(polyrail_domain_options).
  uint32_t size;
  // A polyrail_backend.
  uint32_t backend;
  // Names of devices, separated by commas, such as "mlx5_0,mlx5_1:2", where the number is a port; rails take
  // them in turn. NULL: with verbs, all that can be used, 8 at most; with the software NIC, "soft0". Every
  // domain has software devices of its own, whatever their names.
  const char *devices;
  // With POLYRAIL_DOMAIN_GID_INDEX: place of the address in every port's table. Chosen otherwise.
  uint32_t gid_index;
  // POLYRAIL_DOMAIN_ bits.
  uint32_t flags;
  // Software NIC only: bytes that a device sends in a second; 0: as fast as memory is.
  uint64_t software_bytes_per_second;
} polyrail_domain_options;

// What a machine or a domain has.
typedef struct {
  // Its name.
  char name[POLYRAIL_NAME_BYTES];
  // Its PCI function and the bridges above it, the nearest last; empty if it has none.
  char pci_path[POLYRAIL_PATH_BYTES];
  // Its GUID.
  uint64_t guid;
  // Megabits a second of all its ports that carry data; 0: unknown.
  uint64_t mbps;
  // The NUMA node that it is nearest to; -1: unknown.
  int32_t numa_node;
  // Ports that carry data.
  uint32_t ports;
  // 0; more later.
  uint64_t reserved[4];
} polyrail_device_info;

// Options of links. `size` is sizeof; everything else may be 0.
typedef struct {
  // sizeof(polyrail_link_options).
  uint32_t size;
  // Milliseconds until a connection is made. 0: 10000.
  uint32_t connect_ms;
  // Milliseconds that the other side may take for one message, and for its part of the meeting. 0: 10000.
  uint32_t message_ms;
  // Milliseconds until a link that broke is made anew. 0: 60000.
  uint32_t anew_ms;
  // A secret of 16 bytes or more that both sides have to know; NULL: nobody is asked. It never travels.
  const char *token;
} polyrail_link_options;

// What happened to a peer.
typedef struct {
  // sizeof(polyrail_event).
  uint32_t size;
  // A polyrail_event_kind.
  uint32_t kind;
  // Whom.
  uint64_t peer;
  // Bytes that came with it, in the memory given to the call.
  uint64_t length;
  // Which rail, of events of rails; POLYRAIL_RAIL_NOTIFY.
  uint32_t rail;
  // A polyrail_code: why, if something failed.
  int32_t code;
} polyrail_event;

// What is known of a connection.
typedef struct {
  // sizeof(polyrail_peer_info).
  uint32_t size;
  // A polyrail_state.
  uint32_t state;
  // Its rails.
  uint32_t rails;
  // Those in service.
  uint32_t rails_in_service;
  // Requests and notification receives that were accepted and not reported; over a single rail the device keeps
  // that count, and this is 0. Of messages: not done, or not told to be.
  uint32_t unreported;
  // 1 if it has a link.
  uint32_t has_link;
  // Why it failed, or words of its first failure; empty if there was none.
  char words[POLYRAIL_WORDS_BYTES];
} polyrail_peer_info;

// What one rail did. Of messages: one queue pair, those that send first, then those that receive.
typedef struct {
  // The name of its device.
  char device[POLYRAIL_NAME_BYTES];
  // Its number; POLYRAIL_RAIL_NOTIFY.
  uint32_t rail;
  // A polyrail_rail_state.
  uint32_t state;
  // Its queue pair.
  uint32_t qp_num;
  // Which queue pair in its place: 0 for the first one.
  uint32_t generation;
  // Bytes handed to the device.
  uint64_t bytes;
  // Requests handed to the device.
  uint64_t requests;
  // Batches of those.
  uint64_t doorbells;
  // Completions seen.
  uint64_t completions;
  // Failed ones among them.
  uint64_t errors;
  // Times that it failed and others took over. Of messages 0: events tell.
  uint64_t failures;
  // Requests that were in flight then, and posted again. Of messages 0: events tell.
  uint64_t posted_again;
  // 0.
  uint64_t reserved[2];
} polyrail_rail_info;

// Options of connections, for requests and for messages; the same at both ends, where not said otherwise. `size` is
// sizeof; everything else may be 0.
typedef struct {
  // sizeof(polyrail_endpoint_options).
  uint32_t size;
  // Rails, 1 to 8. 0: 4 for requests, 2 for messages.
  uint32_t rails;
  // A polyrail_scheme. Requests only.
  uint32_t scheme;
  // Bytes of the longest fragment, a multiple of 128. 0: 65536. Requests only. Of two ends, the lesser one counts.
  uint32_t max_msg_size;
  // Requests outstanding on one queue pair at most. 0: 100. Requests only. May differ.
  uint32_t max_msgs_per_qp;
  // A polyrail_rail_failure.
  uint32_t rail_failure;
  // With rerouting: with fewer rails in service the connection has failed. 0: 1; POLYRAIL_NO_RAIL_NEEDED: it waits
  // for as long as there is none. May differ.
  uint32_t min_rails;
  // Bytes of the longest inline request. 0: 64. May differ.
  uint32_t max_inline_data;
  // Bytes of a packet: 256, 512, 1024, 2048 or 4096. 0: as the ports have it. May differ.
  uint32_t path_mtu;
  // The acknowledgement timeout is 4.096 us * 2^timeout, 1 to 31. 0: 18. May differ.
  uint32_t timeout;
  // Retries before an unanswered request fails, 1 to 7; POLYRAIL_NO_RETRY: none. 0: 7. May differ.
  uint32_t retry_cnt;
  // READs and atomics outstanding in either direction. 0: 16. May differ.
  uint32_t max_rd_atomic;
  // Place of the partition key in the port's table. May differ.
  uint32_t pkey_index;
  // Service level, 0 to 15. May differ.
  uint32_t service_level;
  // Traffic class, 0 to 255: on RoCE v2 the DSCP times 4, plus two bits for congestion marks. May differ.
  uint32_t traffic_class;
  // Flow label, 20 bits. May differ.
  uint32_t flow_label;
  // Routers that a packet may pass, 1 to 255. 0: 64. May differ.
  uint32_t hop_limit;
  // POLYRAIL_ENDPOINT_ bits.
  uint32_t flags;
  // Messages only: queue pairs of each rail and direction. 0: 1.
  uint32_t queue_pairs_per_rail;
  // Messages only: buffers up to this many bytes go over one rail. 0: 65536. May differ.
  uint32_t split_threshold;
  // With rerouting, milliseconds: a rail is given new queue pairs at once, and, if that fails, again after so long, then
  // at growing intervals. 0: 10. May differ, as all that follow.
  uint64_t heal_first_ms;
  // And at the longest, since the time doubles. 0: 5000.
  uint64_t heal_longest_ms;
  // Requests are in flight on a rail, and it makes no headway, though others do: it is failed. 0: 10000;
  // POLYRAIL_NEVER.
  uint64_t stall_timeout_ms;
  // Requests or messages wait for rails that do not come back, or that come back and carry nothing: the connection
  // has failed. 0: 60000; POLYRAIL_NEVER.
  uint64_t rail_timeout_ms;
  // The peer does not say what arrived on a rail that failed: the connection has failed. 0: 60000;
  // POLYRAIL_NEVER.
  uint64_t fence_timeout_ms;
} polyrail_endpoint_options;

// A buffer that a message may land in.
typedef struct {
  // The memory; it stays registered, and is left alone, until the receive is tested to be done.
  polyrail_region *region;
  // Where in it.
  uint64_t offset;
  // Bytes that it holds.
  uint32_t length;
  // By which the sender finds it among the buffers of the receive.
  uint32_t tag;
} polyrail_buffer;

// A message that is done.
typedef struct {
  // sizeof(polyrail_message_info).
  uint32_t size;
  // Buffers of a receive; 0 of a send or a flush.
  uint32_t count;
  // Bytes that came for each.
  uint32_t lengths[POLYRAIL_MAX_BUFFERS];
  // A polyrail_memory, also if the call returned an error.
  uint32_t memory;
  // 0.
  uint32_t reserved;
} polyrail_message_info;

// A request that was reported.
typedef struct {
  // The caller's name for it.
  uint64_t id;
  // Whose it is.
  uint64_t peer;
  // A polyrail_status.
  uint32_t status;
  // A polyrail_opcode; of a receive, that of the peer's request, without "with immediate". Means nothing where
  // `status` is not 0.
  uint32_t opcode;
  // Bytes of the request; of a receive, those that a SEND brought. Over one rail, what the device says: of a WRITE
  // or SEND that is often 0.
  uint32_t bytes;
  // The immediate.
  uint32_t imm;
  // POLYRAIL_COMPLETION_ bits.
  uint32_t flags;
  // A polyrail_memory.
  uint32_t memory;
  // 0.
  uint64_t reserved[2];
} polyrail_completion;

// A request for a peer.
typedef struct {
  // The caller's name for it; comes back in its completion.
  uint64_t id;
  // A polyrail_opcode.
  uint32_t opcode;
  // POLYRAIL_REQUEST_ bits.
  uint32_t flags;
  // The memory here; it stays registered, and is left alone, until the request is reported.
  polyrail_region *region;
  // Where in it.
  uint64_t offset;
  // Bytes.
  uint32_t length;
  // The immediate of opcodes that have one.
  uint32_t imm;
  // The memory there; unused by SENDs.
  polyrail_remote *remote;
  // Where in it.
  uint64_t remote_offset;
  // What is compared with, or added.
  uint64_t compare_add;
  // What is swapped in.
  uint64_t swap;
} polyrail_request;

// A part of the memory here of one request.
typedef struct {
  // The memory.
  polyrail_region *region;
  // Where in it.
  uint64_t offset;
  // Bytes.
  uint32_t length;
  // 0.
  uint32_t reserved;
} polyrail_part;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The library's version. Those of the same major number, and before 1.0.0 of the same minor number, understand each
// other's structures.
uint32_t polyrail_version(void);

// What a code means, in a few words; never NULL. Valid for ever.
const char *polyrail_strerror(int32_t code);

// The words of the last call of this thread that returned an error: what, where, with which value. Empty if there
// was none; never NULL. Valid until another call of this thread returns an error.
const char *polyrail_last_error(void);

// From now on what happens to connections of this process is told to `logger`, with `context`, as far as it is of
// `level` (a polyrail_log_level) or a lower one: that they are made, that rails fail and come back, that links break, why
// connections end. NULL: nobody is told, as at the beginning. Once this returns, no thread is in an earlier `logger`.
// POLYRAIL_CODE_STATE: it was called by `logger`, or, in a program with Rust of its own, something else is told by
// `tracing` already.
polyrail_code polyrail_log(uint32_t level,
                           polyrail_logger logger,
                           void *context);

// Opens devices. `options` may be NULL.
polyrail_code polyrail_domain_open(const polyrail_domain_options *options, polyrail_domain **domain);

// The devices of a domain, in their order. Stores up to `capacity`, and in `count` how many there are.
polyrail_code polyrail_domain_devices(polyrail_domain *domain,
                                      polyrail_device_info *devices,
                                      size_t capacity,
                                      size_t *count);

// The devices of this machine, of a polyrail_backend, those that cannot be opened left out. Stores up to `capacity`,
// and in `count` how many there are. POLYRAIL_CODE_UNSUPPORTED: this library was built without real NICs.
polyrail_code polyrail_devices(uint32_t backend,
                               polyrail_device_info *devices,
                               size_t capacity,
                               size_t *count);

// Closes a domain. What was made of it stays, and keeps the devices open.
polyrail_code polyrail_domain_close(polyrail_domain *domain);

// Registers `length` bytes from `start` on with every device of the domain. The memory stays allocated until
// the region is closed. While requests or peers may write parts of it, nobody else touches those; while they may
// read, nobody writes. `access` is POLYRAIL_ACCESS_ bits. Memory may be registered any number of times.
polyrail_code polyrail_region_register(polyrail_domain *domain,
                                       void *start,
                                       size_t length,
                                       uint32_t access,
                                       polyrail_region **region);

// Registers a part of a dma-buf, such as memory of a GPU. `iova` is an address that has the same place in its page
// as `offset` has; usually the one that it has there. The file may be closed afterwards. Not with the software NIC.
polyrail_code polyrail_region_register_dmabuf(polyrail_domain *domain,
                                              int32_t fd,
                                              uint64_t offset,
                                              size_t length,
                                              uint64_t iova,
                                              uint32_t access,
                                              polyrail_region **region);

// What a peer needs to reach the region, as bytes that travel by whatever way: at most POLYRAIL_REMOTE_BYTES.
// Stores how many in `length`.
polyrail_code polyrail_region_export(polyrail_region *region, void *bytes, size_t capacity, size_t *length);

// Deregisters the memory, which is the caller's again; what names it and is under way fails. With
// POLYRAIL_CODE_STILL_ACCESSED it never is the caller's again, and the handle is closed all the same.
polyrail_code polyrail_region_close(polyrail_region *region);

// Memory of a peer's, from the bytes that polyrail_region_export made there.
polyrail_code polyrail_remote_import(const void *bytes, size_t length, polyrail_remote **remote);

// Forgets it.
polyrail_code polyrail_remote_close(polyrail_remote *remote);

// Begins to connect to a listener, such as "10.0.0.2:7471", in the background. Never waits; what becomes of it,
// the events of the peer tell to which the link is given. `options` may be NULL.
polyrail_code polyrail_link_open(const char *address,
                                 const polyrail_link_options *options,
                                 polyrail_link **link);

// The bytes of the other side's hello, of a link that was accepted: who asks. At most POLYRAIL_HELLO_BYTES.
polyrail_code polyrail_link_hello(polyrail_link *link, void *bytes, size_t capacity, size_t *length);

// Closes a link that was not given to a peer.
polyrail_code polyrail_link_close(polyrail_link *link);

// Begins to listen at an address such as "0.0.0.0:7471"; with port 0 the system chooses one. `options` may be NULL.
// As long as links that were accepted are in use, it should stay open, and be asked for new ones now and then:
// those that break are made anew by it.
polyrail_code polyrail_listener_open(const char *address,
                                     const polyrail_link_options *options,
                                     polyrail_listener **listener);

// Where it listens, as text with a 0 behind it. Stores in `length` the bytes without the 0.
polyrail_code polyrail_listener_address(polyrail_listener *listener,
                                        char *text,
                                        size_t capacity,
                                        size_t *length);

// The next link, whose other side has said hello: polyrail_link_hello. Never waits: POLYRAIL_CODE_NOT_NOW.
polyrail_code polyrail_listener_accept(polyrail_listener *listener, polyrail_link **link);

// Stops listening. Links that were accepted stay, and are not made anew.
polyrail_code polyrail_listener_close(polyrail_listener *listener);

// The card of this end of a connection: bytes for the other end, to be carried there by whatever way. At most
// POLYRAIL_CARD_BYTES. Stores how many in `length`.
polyrail_code polyrail_peers_card(polyrail_peers *peers,
                                  uint64_t peer,
                                  void *bytes,
                                  size_t capacity,
                                  size_t *length);

// Connects with the other end, whose card this is. Neither end posts, sends or offers buffers before both have
// connected, but both may post receives of requests before.
polyrail_code polyrail_peers_connect(polyrail_peers *peers,
                                     uint64_t peer,
                                     const void *card,
                                     size_t length);

// Connects over a link, which is closed with the peer; the handle of the link is of no use any more, whatever becomes
// of it, unless an error says that the call itself was wrong. `hello`, at most POLYRAIL_HELLO_BYTES, is what the other
// side is told. Never waits: both ends are polled until an event tells that it is done. Receives of requests may be
// posted before.
polyrail_code polyrail_peers_meet(polyrail_peers *peers,
                                  uint64_t peer,
                                  polyrail_link *link,
                                  const void *hello,
                                  size_t length);

// Sends a message over the peer's link, at most POLYRAIL_MESSAGE_BYTES. POLYRAIL_CODE_NOT_NOW: the two sides have not
// met yet, or too much waits to be taken by the other side: a side that has 256 events to take reads no more, and one
// that reads nothing for 9 seconds while messages wait may lose its link, which is made anew. It has no order with what
// goes over the rails.
polyrail_code polyrail_peers_say(polyrail_peers *peers,
                                 uint64_t peer,
                                 const void *bytes,
                                 size_t length);

// With rerouting, and without a link: what this end of a connection has to tell the other one, to be carried there
// in order, after every poll until it is POLYRAIL_CODE_NOT_NOW. At most POLYRAIL_MESSAGE_BYTES, and there must be
// room for as many.
polyrail_code polyrail_peers_next_control(polyrail_peers *peers,
                                          uint64_t peer,
                                          void *bytes,
                                          size_t capacity,
                                          size_t *length);

// What the other end's polyrail_peers_next_control has given. POLYRAIL_CODE_NOT_NOW: poll, and hand it over again.
polyrail_code polyrail_peers_control(polyrail_peers *peers,
                                     uint64_t peer,
                                     const void *bytes,
                                     size_t length);

// What carried those broke, and there is another way: both ends say so before anything goes over the new one.
polyrail_code polyrail_peers_control_lost(polyrail_peers *peers, uint64_t peer);

// Drives links and healing at once, which otherwise some of the polls do. Never waits for long: making a queue pair
// may take a driver milliseconds.
polyrail_code polyrail_peers_drive(polyrail_peers *peers);

// The oldest thing that happened to a peer and was not taken yet, with the bytes that came with it, which may be as
// many as POLYRAIL_MESSAGE_BYTES; POLYRAIL_CODE_TOO_SHORT leaves it where it is. Never waits:
// POLYRAIL_CODE_NOT_NOW.
polyrail_code polyrail_peers_next_event(polyrail_peers *peers,
                                        polyrail_event *event,
                                        void *bytes,
                                        size_t capacity);

// Where a connection stands.
polyrail_code polyrail_peers_info(polyrail_peers *peers, uint64_t peer, polyrail_peer_info *info);

// What every rail of a connection for requests did, or every queue pair of a connection for messages: those that send,
// then those that receive. Stores up to `capacity`, and in `count` how many there are.
polyrail_code polyrail_peers_rails(polyrail_peers *peers,
                                   uint64_t peer,
                                   polyrail_rail_info *rails,
                                   size_t capacity,
                                   size_t *count);

// Closes peers with their links. Nothing is reported any more, and no device accesses memory of requests or messages
// any more. Peers for messages wait for that: if it takes more than 10 seconds, POLYRAIL_CODE_STILL_ACCESSED is
// returned; the memory stays registered then, and is not the caller's again.
polyrail_code polyrail_peers_close(polyrail_peers *peers);

// Adds a peer, and stores its number, which no other ever has in this object. Its lowest 16 bits are those of no
// other at the same time, and are counted from 0 on. `options` may be NULL: those that the object was opened with;
// peers for messages all have those. The others go on meanwhile.
polyrail_code polyrail_peers_add(polyrail_peers *peers,
                                 const polyrail_endpoint_options *options,
                                 uint64_t *peer);

// Gives a connection up. What was posted to a peer for requests comes back, as flushed or as it ended, in the next
// polls; messages fail, as soon as no device accesses their memory any more.
polyrail_code polyrail_peers_fail(polyrail_peers *peers,
                                  uint64_t peer);

// Removes a peer, and its link, when no device accesses memory of its requests or messages any more. For requests that
// is at once: what was not reported never is; who wants the reports calls polyrail_peers_fail before, and polls until
// they are there: over several rails until `unreported` of polyrail_peers_info is 0, over a single one until there are
// as many as were posted. For messages the connection is given up, and POLYRAIL_CODE_NOT_NOW may be returned: poll, and
// call again. Afterwards its messages are no more.
polyrail_code polyrail_peers_remove(polyrail_peers *peers,
                                    uint64_t peer);

// Drives everything that waits for completions: takes up to `budget` of them; and now and then links and healing.
polyrail_code polyrail_messages_poll(polyrail_peers *peers,
                                     size_t budget);

// Offers up to POLYRAIL_MAX_BUFFERS buffers to the peer, whose next messages land in them, and stores the request.
// POLYRAIL_CODE_NOT_NOW: poll, and try again.
polyrail_code polyrail_messages_receive(polyrail_peers *peers,
                                        uint64_t peer,
                                        const polyrail_buffer *buffers,
                                        size_t count,
                                        uint64_t *request);

// Sends to the buffer with this tag among those that the peer has offered first, and stores the request.
// POLYRAIL_CODE_NOT_NOW: it has offered none yet, or there is no room; poll, and try again. POLYRAIL_CODE_RANGE: the
// buffer is shorter than the message, which can be sent to another one.
polyrail_code polyrail_messages_send(polyrail_peers *peers,
                                     uint64_t peer,
                                     polyrail_region *region,
                                     uint64_t offset,
                                     uint32_t length,
                                     uint32_t tag,
                                     uint64_t *request);

// Whether a request is done, in which case its memory is the caller's again, and it is of no use any more, unless
// `flags` has POLYRAIL_TEST_KEEP; POLYRAIL_CODE_NOT_NOW: it is not. With POLYRAIL_CODE_FAILED, or POLYRAIL_CODE_UNSUPPORTED
// of a flush, it never will be, its memory here is the caller's again, and it is of no use any more; with POLYRAIL_CODE_REQUEST there is no such request,
// or not any more. Any other code says nothing of the request. `info` may be NULL; what it says of the memory holds
// whatever the code.
polyrail_code polyrail_messages_test(polyrail_peers *peers,
                                     uint64_t request,
                                     uint32_t flags,
                                     polyrail_message_info *info);

// Begins to make all bytes of a receive visible to whoever reads that memory, such as a GPU, and turns the request,
// which was tested to be done and kept, into one that is done when they are. With POLYRAIL_ENDPOINT_FLUSHES only.
// POLYRAIL_CODE_NOT_NOW: poll, and try again.
polyrail_code polyrail_messages_flush(polyrail_peers *peers,
                                      uint64_t request);

// Forgets a receive that was kept.
polyrail_code polyrail_messages_forget(polyrail_peers *peers, uint64_t request);

// Makes a polling object for connections for messages over the devices of a domain, without peers yet. `options`,
// which may be NULL, are those of its peers, of which there are `most` at a time, or as many as have 512 places each in
// the devices' shared receive queues, if that is fewer: then polyrail_peers_add returns POLYRAIL_CODE_TOO_MANY.
polyrail_code polyrail_messages_open(polyrail_domain *domain,
                                     const polyrail_endpoint_options *options,
                                     uint32_t most,
                                     polyrail_peers **peers);

// Makes a polling object for connections for requests over the devices of a domain, without peers yet. `options`,
// which may be NULL, are those of its peers, unless they have their own. It has room for 6144 queue pairs: 1228 peers
// of 4 rails.
polyrail_code polyrail_peers_open(polyrail_domain *domain,
                                  const polyrail_endpoint_options *options,
                                  polyrail_peers **peers);

// Removes a peer for requests, whose connection has failed or not, and adds another one in its place, not connected yet, with the
// same lowest 16 bits of its number. `options` may be NULL.
polyrail_code polyrail_peers_replace(polyrail_peers *peers,
                                     uint64_t peer,
                                     const polyrail_endpoint_options *options,
                                     uint64_t *new_peer);

// Fails one rail of a peer for requests, such as one whose device is to be taken away; POLYRAIL_RAIL_NOTIFY. With rerouting others take
// over.
polyrail_code polyrail_peers_fail_rail(polyrail_peers *peers,
                                       uint64_t peer,
                                       uint32_t rail);

// Stores up to `capacity` requests that are done, of all peers, and in `count` how many; and drives everything that
// waits for completions, and now and then links and healing. `count` counts also if a code is returned: of a
// completion queue that broke, with peers that have failed with it. With a capacity of 0 no request is taken.
polyrail_code polyrail_peers_poll(polyrail_peers *peers,
                                  polyrail_completion *completions,
                                  size_t capacity,
                                  size_t *count);

// The same, and waits up to `timeout_ms` for a completion, or an event to be taken; POLYRAIL_NEVER: for ever. With
// POLYRAIL_ENDPOINT_EVENTS only, and room for one. Links and healing are driven meanwhile. While an event waits to be
// taken, this does not.
polyrail_code polyrail_peers_wait(polyrail_peers *peers,
                                  polyrail_completion *completions,
                                  size_t capacity,
                                  size_t *count,
                                  uint64_t timeout_ms);

// A file descriptor that can be read when there may be completions after polyrail_peers_poll_armed found none. It
// stays this object's, and there is none before a peer was added. With POLYRAIL_ENDPOINT_EVENTS only.
polyrail_code polyrail_peers_fd(polyrail_peers *peers,
                                int32_t *fd);

// polyrail_peers_poll, with room for one, and has the file descriptor tell of what comes after. If it stores none,
// wait for that; but not for longer than links and healing can wait for polyrail_peers_drive.
polyrail_code polyrail_peers_poll_armed(polyrail_peers *peers,
                                        polyrail_completion *completions,
                                        size_t capacity,
                                        size_t *count);

// Posts a request. POLYRAIL_CODE_NOT_NOW: poll, and post it again. If it returns POLYRAIL_CODE_OK, the request is
// reported, however it ends, as long as the peer is polled and not removed.
polyrail_code polyrail_peers_post(polyrail_peers *peers,
                                  uint64_t peer,
                                  const polyrail_request *request);

// Posts requests with one call and the fewest doorbells, and stores how many it took: the first ones, and none
// behind one that was refused, whose code is returned.
polyrail_code polyrail_peers_post_many(polyrail_peers *peers,
                                       uint64_t peer,
                                       const polyrail_request *requests,
                                       size_t count,
                                       size_t *posted);

// Posts a request whose bytes here are the parts, one after the other, at most POLYRAIL_MAX_PARTS; its own `region`,
// `offset` and `length` are not looked at.
polyrail_code polyrail_peers_post_parts(polyrail_peers *peers,
                                        uint64_t peer,
                                        const polyrail_request *request,
                                        const polyrail_part *parts,
                                        size_t count);

// Posts a receive: with `length` 0, and a NULL region, for a WRITE_WITH_IMM, otherwise for a SEND of at most that
// many bytes. POLYRAIL_CODE_NOT_NOW: poll, and post it again.
polyrail_code polyrail_peers_receive(polyrail_peers *peers,
                                     uint64_t peer,
                                     uint64_t id,
                                     polyrail_region *region,
                                     uint64_t offset,
                                     uint32_t length);

// Posts a receive for a SEND, whose bytes fill the parts, one after the other, at most POLYRAIL_MAX_PARTS, and no
// more than its device takes. POLYRAIL_CODE_NOT_NOW: poll, and post it again.
polyrail_code polyrail_peers_receive_parts(polyrail_peers *peers,
                                           uint64_t peer,
                                           uint64_t id,
                                           const polyrail_part *parts,
                                           size_t count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* POLYRAIL_H */
