/* libpolyrail: many RDMA queue pairs and NICs as one.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Made by cbindgen from std-shim/c/src; do not edit.
 *
 * The functions are in the order of use: texts of errors, and the log; devices (polyrail_domain_);
 * memory (polyrail_region_, polyrail_remote_); ways to other processes (polyrail_listener_,
 * polyrail_link_); connections (polyrail_peers_open or polyrail_messages_open, _add, _meet,
 * _next_event); requests (_post, _receive, _poll) or messages (polyrail_messages_); the state of
 * connections; their ends.
 *
 * Every call returns a polyrail_code, and stores results through pointers. Unless documented
 * otherwise, a call that returns an error has changed nothing.
 *
 * Handles are checked. A handle that is NULL, closed, made up or of another kind is an error, and so
 * is a handle that another thread uses in a call, except that domains, regions and remotes may be
 * used by any number of threads at a time. Other pointers cannot be checked: they are NULL or valid
 * during the call.
 *
 * Structures that begin with `size` are zeroed and given their sizeof. New versions only append
 * fields, whose default is 0.
 *
 * Memory of a request belongs to the devices from the call that posts the request until the request
 * is reported, or tested to be done. The field `memory` of the result says which accesses are still
 * possible then.
 *
 * No call waits longer than drivers do, except polyrail_peers_wait, polyrail_peers_close of peers
 * for messages, and polyrail_listener_open, which looks up the address if it is a name. No call
 * unwinds or exits.
 *
 * After fork() only the parent may use its objects: in the child, every call with one of them,
 * also one that closes it, returns POLYRAIL_CODE_FORKED and does nothing. */

#ifndef POLYRAIL_H
#define POLYRAIL_H

#include <stddef.h>
#include <stdint.h>

// The version of this header: major << 16 | minor << 8 | patch.
#define POLYRAIL_VERSION (1 << 8)

// Maximum length of a device's name in bytes, including the terminating 0.
#define POLYRAIL_NAME_BYTES 64

// Maximum length of a device's PCI path in bytes, including the terminating 0.
#define POLYRAIL_PATH_BYTES 128

// Maximum number of devices in a domain, and of rails in a connection.
#define POLYRAIL_MAX_DEVICES 8

// Maximum number of buffers of a message.
#define POLYRAIL_MAX_BUFFERS 8

// Maximum number of parts of a request.
#define POLYRAIL_MAX_PARTS 16

// Maximum length of an exported region in bytes: see polyrail_region_export.
#define POLYRAIL_REMOTE_BYTES 64

// Maximum length of a connection card in bytes.
#define POLYRAIL_CARD_BYTES 16384

// Maximum length of the caller's part of a hello in bytes.
#define POLYRAIL_HELLO_BYTES 2048

// Maximum length of a message over a link in bytes.
#define POLYRAIL_MESSAGE_BYTES 4096

// Maximum number of addresses that polyrail_addresses stores.
#define POLYRAIL_MAX_ADDRESSES 128

// Maximum length of these addresses as text in bytes, including the terminating 0.
#define POLYRAIL_ADDRESSES_BYTES 8192

// Maximum length of a text in bytes, including the terminating 0.
#define POLYRAIL_WORDS_BYTES 256

// `gid_index` of the domain's options is used.
#define POLYRAIL_DOMAIN_GID_INDEX 1

// Requests of this side may write the memory: READs, receives, results of atomics.
#define POLYRAIL_ACCESS_LOCAL_WRITE (1 << 0)

// Peers may write the memory. Requires POLYRAIL_ACCESS_LOCAL_WRITE.
#define POLYRAIL_ACCESS_REMOTE_WRITE (1 << 1)

// Peers may read the memory.
#define POLYRAIL_ACCESS_REMOTE_READ (1 << 2)

// Peers may execute atomics on the memory. Requires POLYRAIL_ACCESS_LOCAL_WRITE.
#define POLYRAIL_ACCESS_REMOTE_ATOMIC (1 << 3)

// On-demand paging: pages are not pinned, and devices wait for missing pages.
#define POLYRAIL_ACCESS_ON_DEMAND (1 << 6)

// Relaxed ordering: devices may write the memory in any order.
#define POLYRAIL_ACCESS_RELAXED_ORDERING (1 << 20)

// For times in options: never.
#define POLYRAIL_NEVER UINT64_MAX

// For `min_rails`: no rail has to be in service.
#define POLYRAIL_NO_RAIL_NEEDED UINT32_MAX

// For `cancel_grace_us`: rails are fenced at once.
#define POLYRAIL_NO_GRACE UINT32_MAX

// For `retry_cnt`: no retries.
#define POLYRAIL_NO_RETRY UINT32_MAX

// Immediates are little endian on the wire, as the reference implementation sends them.
#define POLYRAIL_ENDPOINT_LITTLE_ENDIAN_IMM (1 << 0)

// WRITEs and READs are reported as soon as they are done, not in posting order. May differ.
#define POLYRAIL_ENDPOINT_REPORT_WHEN_DONE (1 << 1)

// SENDs and atomics may overtake WRITEs and READs that were posted before them. May differ.
#define POLYRAIL_ENDPOINT_UNORDERED (1 << 2)

// Requests only: completions make a file descriptor readable, which waiting requires. The first
// connection on a device decides for all connections there. May differ.
#define POLYRAIL_ENDPOINT_EVENTS (1 << 3)

// Messages only: received messages can be flushed, which takes one more queue pair on each device.
// May differ.
#define POLYRAIL_ENDPOINT_FLUSHES (1 << 4)

// Starts after all requests posted before have ended.
#define POLYRAIL_REQUEST_FENCE (1 << 0)

// Solicited event: also wakes a peer that waits only for such completions.
#define POLYRAIL_REQUEST_SOLICITED (1 << 2)

// The bytes are copied before the call returns. Only for WRITE and SEND up to `max_inline_data`;
// not from a dma-buf.
#define POLYRAIL_REQUEST_INLINE (1 << 3)

// Reported as soon as it is done, even before earlier requests.
#define POLYRAIL_REQUEST_REPORT_WHEN_DONE (1 << 16)

// Reported in posting order.
#define POLYRAIL_REQUEST_REPORT_IN_ORDER (1 << 17)

// `imm` is valid.
#define POLYRAIL_COMPLETION_IMM (1 << 0)

// The completion is of a receive. Unknown for requests that failed over a single rail.
#define POLYRAIL_COMPLETION_RECEIVE (1 << 1)

// Number of the rail that carries only notifications.
#define POLYRAIL_RAIL_NOTIFY 255

// Keeps the receive after it is done, for a flush, until polyrail_messages_forget.
#define POLYRAIL_TEST_KEEP (1 << 0)

// Result of a call: 0, "not now", or a negative error. The message of an error is kept for the
// thread that made the call: see `polyrail_last_error`.
typedef enum {
  // Done.
  POLYRAIL_CODE_OK = 0,
  // Not now: there is no room, or nothing has arrived yet. Nothing changed; poll, and call
  // again. Not an error.
  POLYRAIL_CODE_NOT_NOW = 1,
  // A required pointer is NULL.
  POLYRAIL_CODE_NULL = -1,
  // A handle that was closed, or never existed.
  POLYRAIL_CODE_HANDLE = -2,
  // A handle of another kind; or peers for messages in a call for requests, or vice versa.
  POLYRAIL_CODE_KIND = -3,
  // Another thread is in a call with the same object.
  POLYRAIL_CODE_BUSY = -4,
  // An earlier call with this object returned POLYRAIL_CODE_PANIC: it can only be closed.
  POLYRAIL_CODE_POISONED = -5,
  // An internal error of this library. The object of the call can only be closed.
  POLYRAIL_CODE_PANIC = -6,
  // An invalid argument, option or flag.
  POLYRAIL_CODE_ARGUMENT = -7,
  // The `size` of a structure does not fit any version of it.
  POLYRAIL_CODE_SIZE = -8,
  // Offset and length do not lie within the memory.
  POLYRAIL_CODE_RANGE = -9,
  // The caller's memory is too short for the result. The required number of bytes was stored in
  // `length`.
  POLYRAIL_CODE_TOO_SHORT = -10,
  // Too many bytes, buffers, peers or objects.
  POLYRAIL_CODE_TOO_MANY = -11,
  // Unknown peer number, or the peer was removed.
  POLYRAIL_CODE_PEER = -12,
  // Unknown request, or the request has ended.
  POLYRAIL_CODE_REQUEST = -13,
  // Invalid in this state: not connected yet, connected already, or no completion channel.
  POLYRAIL_CODE_STATE = -14,
  // The connection to the peer failed. Remove the peer, or replace it.
  POLYRAIL_CODE_FAILED = -15,
  // The memory was registered without the access that the request requires.
  POLYRAIL_CODE_ACCESS = -16,
  // The memory is not registered with a device that the request uses: it belongs to another
  // domain.
  POLYRAIL_CODE_KEYS = -17,
  // Not supported by this build, backend or device.
  POLYRAIL_CODE_UNSUPPORTED = -18,
  // Unknown device, or the device cannot be used.
  POLYRAIL_CODE_NO_DEVICE = -19,
  // A device or its driver refused.
  POLYRAIL_CODE_DEVICE = -20,
  // The system has no memory, file descriptor or thread left.
  POLYRAIL_CODE_SYSTEM = -21,
  // A device may still access the memory until the process ends: do not reuse the memory.
  POLYRAIL_CODE_STILL_ACCESSED = -22,
  // The peer's address does not match this side's options, or the two sides do not have the same
  // token.
  POLYRAIL_CODE_MISMATCH = -23,
  // Malformed bytes from a peer.
  POLYRAIL_CODE_PROTOCOL = -24,
  // A link could not be made, or broke.
  POLYRAIL_CODE_LINK = -25,
  // The object belongs to the process that this one is a fork of. Nothing was released or sent.
  POLYRAIL_CODE_FORKED = -26,
  // This side or the peer took the message back. Its memory belongs to the caller again; that of
  // a receive may have been written in part.
  POLYRAIL_CODE_TAKEN_BACK = -27,
} polyrail_code;

// How much is logged: events of this level and of lower ones.
typedef enum {
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
} polyrail_log_level;

// A kind of hardware.
typedef enum {
  // Real NICs.
  POLYRAIL_BACKEND_DEFAULT = 0,
  // Real NICs through libibverbs, which is loaded on first use.
  POLYRAIL_BACKEND_VERBS = 1,
  // NICs in software, within this process, for tests and first tries. All of them reach each
  // other.
  POLYRAIL_BACKEND_SOFTWARE = 2,
  // Network interfaces: queue pairs are TCP connections. Between any two Linux hosts or
  // processes, without RDMA devices. Bytes on the network are not encrypted.
  POLYRAIL_BACKEND_TCP = 3,
} polyrail_backend;

// How a receiver is notified that a WRITE_WITH_IMM has arrived.
typedef enum {
  // SPRAY.
  POLYRAIL_SCHEME_DEFAULT = 0,
  // A separate notification, which carries the immediate, once all data is acknowledged.
  POLYRAIL_SCHEME_SPRAY = 1,
  // Numbered fragments. Over several rails, immediates of the user, SENDs and atomics are not
  // supported.
  POLYRAIL_SCHEME_DQPLB = 2,
} polyrail_scheme;

// What the failure of a rail does.
typedef enum {
  // It ends the connection.
  POLYRAIL_RAIL_FAILURE_DEFAULT = 0,
  // It ends the connection.
  POLYRAIL_RAIL_FAILURE_FATAL = 1,
  // Other rails take over, and no request is lost. The rail gets new queue pairs until it is
  // back in service.
  POLYRAIL_RAIL_FAILURE_REROUTE = 2,
} polyrail_rail_failure;

// What decides how much of the data each rail carries.
typedef enum {
  // As POLYRAIL_RAIL_WEIGHTS_AUTO.
  POLYRAIL_RAIL_WEIGHTS_DEFAULT = 0,
  // As POLYRAIL_RAIL_WEIGHTS_RATES, if the rates of all ports that rails use are known and
  // differ, else as POLYRAIL_RAIL_WEIGHTS_EQUAL.
  POLYRAIL_RAIL_WEIGHTS_AUTO = 1,
  // Rails take turns, so each carries the same.
  POLYRAIL_RAIL_WEIGHTS_EQUAL = 2,
  // The rail that would finish first comes next: its outstanding bytes are divided by the rate of
  // its port. If a rate is unknown, all rates count as equal.
  POLYRAIL_RAIL_WEIGHTS_RATES = 3,
  // As POLYRAIL_RAIL_WEIGHTS_RATES, with rates that are measured: the bytes that a rail completes
  // in the time in which it has requests in flight. Only connections that reroute rails measure;
  // others keep the rates of ports.
  POLYRAIL_RAIL_WEIGHTS_MEASURED = 4,
} polyrail_rail_weights;

// What happened to a peer.
typedef enum {
  // Both ends are connected over the link. The bytes are the other side's hello.
  POLYRAIL_EVENT_KIND_CONNECTED = 1,
  // A message arrived over the link. The bytes are the message.
  POLYRAIL_EVENT_KIND_MESSAGE = 2,
  // The link was reconnected. Messages sent before may be lost, in either direction.
  POLYRAIL_EVENT_KIND_LINK_RESUMED = 3,
  // The link is gone: the other side removed or closed the peer, its process ended, or the link
  // could not be reconnected. The event does not tell which: a program that ends in order sends
  // a last message with polyrail_peers_say, whose event is before this one. The connection goes
  // on, but failed rails do not return. The bytes are a text with the reason, and `code` is its
  // code.
  POLYRAIL_EVENT_KIND_LINK_LOST = 4,
  // The two sides could not connect. The bytes are a text with the reason, and `code` is its
  // code.
  POLYRAIL_EVENT_KIND_NOT_CONNECTED = 5,
  // A rail failed. The bytes are a text with the reason, and `code` is POLYRAIL_CODE_DEVICE.
  POLYRAIL_EVENT_KIND_RAIL_FAILED = 6,
  // The requests in flight on a failed rail were posted again. The bytes are a text.
  POLYRAIL_EVENT_KIND_RAIL_FENCED = 7,
  // A rail is back in service. The bytes are a text.
  POLYRAIL_EVENT_KIND_RAIL_RETURNED = 8,
  // The connection failed, for example because its other end was closed or its process ended.
  // This event, and receives that fail, may come before a last message and
  // POLYRAIL_EVENT_KIND_LINK_LOST. The bytes are a text with the reason, and `code` is
  // POLYRAIL_CODE_FAILED.
  POLYRAIL_EVENT_KIND_FAILED = 9,
} polyrail_event_kind;

// What a request does.
typedef enum {
  // Writes to the peer's memory.
  POLYRAIL_OPCODE_WRITE = 0,
  // Writes to the peer's memory, and completes a receive there, which contains the immediate.
  // With length 0 and a NULL region, nothing is written.
  POLYRAIL_OPCODE_WRITE_WITH_IMM = 1,
  // Sends into the buffer of the peer's next receive.
  POLYRAIL_OPCODE_SEND = 2,
  // Like SEND, with an immediate.
  POLYRAIL_OPCODE_SEND_WITH_IMM = 3,
  // Reads the peer's memory.
  POLYRAIL_OPCODE_READ = 4,
  // Replaces 8 aligned bytes at the peer with `swap` if they equal `compare_add`, and stores
  // their old value in the local memory.
  POLYRAIL_OPCODE_COMPARE_SWAP = 5,
  // Adds `compare_add` to 8 aligned bytes at the peer, and stores their old value in the local
  // memory.
  POLYRAIL_OPCODE_FETCH_ADD = 6,
} polyrail_opcode;

// How a request ended, with the numbers of enum ibv_wc_status, except for the last one. Drivers may
// return others.
typedef enum {
  // It was carried out.
  POLYRAIL_STATUS_SUCCESS = 0,
  // A local buffer is shorter than the message.
  POLYRAIL_STATUS_LOCAL_LENGTH = 1,
  // An internal error of the local queue pair.
  POLYRAIL_STATUS_LOCAL_QP = 2,
  // A local key does not permit the access.
  POLYRAIL_STATUS_LOCAL_PROTECTION = 4,
  // The connection failed before the request was executed.
  POLYRAIL_STATUS_FLUSHED = 5,
  // The peer sent an invalid response.
  POLYRAIL_STATUS_BAD_RESPONSE = 7,
  // A local buffer became inaccessible while data was arriving.
  POLYRAIL_STATUS_LOCAL_ACCESS = 8,
  // The peer's device found the request invalid.
  POLYRAIL_STATUS_REMOTE_INVALID = 9,
  // The peer's memory does not permit the access, or is shorter.
  POLYRAIL_STATUS_REMOTE_ACCESS = 10,
  // The peer's device could not execute the request.
  POLYRAIL_STATUS_REMOTE_OPERATION = 11,
  // The peer's device never answered, or over TCP its process or device is gone (vendor code
  // 0x41; 0x45: nothing was acknowledged in time).
  POLYRAIL_STATUS_RETRIES_EXCEEDED = 12,
  // The peer posted no receive in time.
  POLYRAIL_STATUS_RECEIVER_NOT_READY = 13,
  // The device failed.
  POLYRAIL_STATUS_FATAL = 19,
  // The peer's device did not answer in time.
  POLYRAIL_STATUS_RESPONSE_TIMEOUT = 20,
  // An error that no other code describes.
  POLYRAIL_STATUS_GENERAL = 21,
  // The caller took the request back. Its first `bytes` bytes may have been written, and no
  // others; nothing is written for it any more. Its receiver was not notified and will not be.
  POLYRAIL_STATUS_CANCELLED = 65536,
} polyrail_status;

// Whether the memory of a request may still be accessed.
typedef enum {
  // The request is done. Nothing accesses the memory of either end for it any more.
  POLYRAIL_MEMORY_DONE = 0,
  // The request failed. Nothing accesses the memory of either end for it any more. How much of
  // it was carried out is unknown.
  POLYRAIL_MEMORY_QUIET = 1,
  // The request failed, and nothing accesses the local memory for it any more. The peer's memory
  // may still be written until the peer has removed the connection at its end.
  POLYRAIL_MEMORY_REMOTE_MAY_CHANGE = 2,
  // Devices may still access the memory: the request is in progress, or its state is unknown.
  POLYRAIL_MEMORY_UNDER_WAY = 3,
} polyrail_memory;

// State of a connection.
typedef enum {
  // Not connected.
  POLYRAIL_STATE_NEW = 0,
  // The two sides are connecting over a link.
  POLYRAIL_STATE_MEETING = 1,
  // Connected.
  POLYRAIL_STATE_READY = 2,
  // Connected, with at least one failed rail.
  POLYRAIL_STATE_DEGRADED = 3,
  // The connection failed: pending requests are flushed, and new ones are refused.
  POLYRAIL_STATE_FAILED = 4,
} polyrail_state;

// State of a rail.
typedef enum {
  // The rail carries requests.
  POLYRAIL_RAIL_STATE_IN_SERVICE = 0,
  // The rail failed, and its last completions are awaited.
  POLYRAIL_RAIL_STATE_DRAINING = 1,
  // This side has learned which requests arrived.
  POLYRAIL_RAIL_STATE_FENCED = 2,
  // Both sides have learned which requests arrived; a new queue pair may replace the old one.
  POLYRAIL_RAIL_STATE_DOWN = 3,
  // A new queue pair is being connected.
  POLYRAIL_RAIL_STATE_JOINING = 4,
} polyrail_rail_state;

// Devices of one backend, opened together. Memory is registered with a domain, and connections use
// its devices. May be used by many threads at the same time.
typedef struct polyrail_domain polyrail_domain;

// A TCP connection to another process, over which two sides connect their queue pairs, before it
// is passed to a peer. One thread at a time.
typedef struct polyrail_link polyrail_link;

// A TCP address at which links of peers are accepted. One thread at a time.
typedef struct polyrail_listener polyrail_listener;

// Connections with many peers, which are polled together: for requests (WRITE, READ, SEND,
// atomics), or for messages, whose receiver chooses where their data goes. One thread at a time.
typedef struct polyrail_peers polyrail_peers;

// Local memory, registered with every device of a domain. May be used by many threads at the same
// time.
typedef struct polyrail_region polyrail_region;

// Memory of a peer: its address and keys. May be used by many threads at the same time.
typedef struct polyrail_remote polyrail_remote;

// Receives log lines: the context passed to polyrail_log, a polyrail_log_level, and a text without
// a newline, which is valid during the call. Called by any thread that is in a call or drives a
// link, also by several at a time. It must return, and must not call the library, because the
// objects that the line is about are in a call.
typedef void (*polyrail_logger)(void *context, uint32_t level, const char *words);

// A device of a machine or a domain.
typedef struct {
  // Its name.
  char name[POLYRAIL_NAME_BYTES];
  // Its PCI function and the bridges above it, with the nearest bridge last; empty if it is not
  // on PCI.
  char pci_path[POLYRAIL_PATH_BYTES];
  // Its GUID; 0 over TCP.
  uint64_t guid;
  // Sum of the rates of its active ports in Mbit/s, or the rate of its PCI link if that is less;
  // 0: unknown.
  uint64_t mbps;
  // The nearest NUMA node; -1: unknown.
  int32_t numa_node;
  // Number of active ports; over TCP 1 if the interface is up and has carrier, otherwise 0.
  uint32_t ports;
  // Its IP address in network order over TCP, otherwise 0. IPv4: ::ffff:10.0.0.1.
  uint8_t address[16];
  // Reserved; 0.
  uint64_t reserved[2];
} polyrail_device_info;

// Options of a domain. `size` is sizeof; everything else may be 0.
typedef struct {
  // sizeof(polyrail_domain_options).
  uint32_t size;
  // A polyrail_backend.
  uint32_t backend;
  // Names of devices, separated by commas, such as "mlx5_0,mlx5_1:2,mlx5_2:1@3", where 2 and 1
  // are ports, and 3 is an index in the port's GID table, instead of `gid_index`. Over TCP,
  // interfaces or their addresses, with the address for peers behind @ if it is another one
  // (NAT): "eth0,tcp:eth1,10.0.2.1,eth2@192.0.2.1:7500"; "eth0:99" is a label of an address of
  // eth0, not a port, and means eth0 whether the label exists or not. Rails are distributed over
  // them in turn. NULL: with verbs, all usable devices, at most 8; with the software NIC,
  // "soft0"; over TCP, the interfaces with carrier at which other hosts reach this one, at most
  // 8. Software devices of different domains are different devices, even under the same name.
  const char *devices;
  // With POLYRAIL_DOMAIN_GID_INDEX: index of the address in every port's GID table. Otherwise
  // chosen automatically, among the addresses of this network namespace.
  uint32_t gid_index;
  // POLYRAIL_DOMAIN_ bits.
  uint32_t flags;
  // Software NIC only: rate of each device in bytes per second; 0: unlimited.
  uint64_t software_bytes_per_second;
  // Over TCP only: the TCP port at which each device accepts connections of queue pairs, 1 to
  // 65535, for firewalls. 0: the system chooses one. An address and port belong to one domain at
  // a time.
  uint32_t tcp_port;
  // Reserved; 0.
  uint32_t reserved;
  // RDMA devices only, without `devices`: what the first devices are to be near to. "thread": the
  // processors that the calling thread may use, unless they are those of all NUMA nodes; or the
  // PCI address of a GPU, such as "0000:3b:00.0", in any notation of lspci, nvidia-smi and CUDA;
  // or "nothing", so that devices are in the order of their names. NULL: "thread". The two ends
  // may have different orders if one of them calls polyrail_peers_add_toward, which pairs devices
  // by their networks; otherwise name the devices, or choose "nothing", at both ends. Do so, too,
  // where networks do not show the pairs: each device has a network of its own, such as a /31 or
  // /32; devices have link-local addresses only; several InfiniBand fabrics have the same subnet
  // prefix; or a host has more than 8 usable devices, of which each end opens its nearest.
  const char *near;
} polyrail_domain_options;

// Options of links. `size` is sizeof; everything else may be 0.
typedef struct {
  // sizeof(polyrail_link_options).
  uint32_t size;
  // Milliseconds within which the TCP connection has to be established, also while this host has
  // no file descriptor or thread for it. 0: 10000.
  uint32_t connect_ms;
  // Milliseconds that the peer may take for one message, and for its part of connecting; this
  // side begins to connect for four fifths of them while a port is down or no path to the peer
  // is found. If the link breaks while the peer connects, the peer has up to `reconnect_ms`
  // more. 0: 10000.
  uint32_t message_ms;
  // Milliseconds within which a broken link has to be reconnected, at the address that answered
  // or another one of the peer. Between two calls that drive the link, at most 500 ms are
  // counted: a program that drives it once a second waits twice as long. 0: 60000.
  uint32_t reconnect_ms;
  // A secret of at least 16 bytes that both sides must have; NULL: none is required. It is never
  // sent.
  const char *token;
} polyrail_link_options;

// Options of connections, for requests and for messages. Both ends need the same values, except
// for options marked "May differ". `size` is sizeof; everything else may be 0. The call that takes
// the options refuses values that cannot work on its devices.
typedef struct {
  // sizeof(polyrail_endpoint_options).
  uint32_t size;
  // Rails, 1 to 8. 0: 4 for requests, 2 for messages. They use the devices of the domain in
  // turn; devices beyond the number of rails carry nothing.
  uint32_t rails;
  // A polyrail_scheme: 0 (SPRAY), POLYRAIL_SCHEME_SPRAY or POLYRAIL_SCHEME_DQPLB. Requests only.
  uint32_t scheme;
  // Maximum length of a fragment in bytes, a multiple of 128. 0: 65536. Requests only. The
  // smaller value of the two ends applies.
  uint32_t max_msg_size;
  // Maximum number of outstanding requests on one queue pair. 0: 100. Requests only. May differ.
  uint32_t max_msgs_per_qp;
  // A polyrail_rail_failure.
  uint32_t rail_failure;
  // With rerouting: the connection fails if fewer rails are in service. 0: 1;
  // POLYRAIL_NO_RAIL_NEEDED: without rails, it waits until one returns. May differ.
  uint32_t min_rails;
  // Requests only, without rerouting: maximum length of an inline request in bytes. 0: 64. May
  // differ.
  uint32_t max_inline_data;
  // Path MTU in bytes: 256, 512, 1024, 2048 or 4096. 0: the MTU of the ports. May differ.
  uint32_t path_mtu;
  // The acknowledgement timeout is 4.096 us * 2^timeout, 1 to 31. 0: 18. May differ.
  uint32_t timeout;
  // Retries before an unanswered request fails, 1 to 7; POLYRAIL_NO_RETRY: none. 0: 7. May
  // differ.
  uint32_t retry_cnt;
  // Maximum number of outstanding READs and atomics in either direction. 0: 16. May differ.
  uint32_t max_rd_atomic;
  // Index of the partition key in the port's table. May differ.
  uint32_t pkey_index;
  // Service level, 0 to 15. May differ.
  uint32_t service_level;
  // Traffic class, 0 to 255: on RoCE v2 the DSCP times 4, plus two bits for congestion marks.
  // May differ.
  uint32_t traffic_class;
  // Flow label, 20 bits. May differ.
  uint32_t flow_label;
  // Hop limit of packets, 1 to 255. 0: 64. May differ.
  uint32_t hop_limit;
  // POLYRAIL_ENDPOINT_ bits.
  uint32_t flags;
  // Messages only: queue pairs of each rail and direction. 0: 1.
  uint32_t queue_pairs_per_rail;
  // Messages only: longer buffers are split over rails, in bytes. 0: 65536. May differ.
  uint32_t split_threshold;
  // With rerouting: a failed rail gets a new queue pair at once. If that fails, it is tried
  // again after this many milliseconds, then at growing intervals. 0: 10. This and all following
  // options may differ.
  uint64_t heal_first_ms;
  // Maximum of these intervals, which double. 0: 5000.
  uint64_t heal_longest_ms;
  // A rail fails that completes nothing for this time, with something in flight. If its oldest
  // request takes a receive of the peer's (a SEND, a notification, a fragment of DQPLB), the
  // peer may be late: then the rail fails only while other rails complete requests or have none.
  // If the connection would fail without the rail, it stays until other requests have waited for
  // rail_timeout_ms, too. 0: 10000; POLYRAIL_NEVER.
  uint64_t stall_timeout_ms;
  // The connection fails after requests or messages have waited this long for rails that do not
  // return, or that return but carry nothing. 0: 60000; POLYRAIL_NEVER.
  uint64_t rail_timeout_ms;
  // The connection fails if the peer does not report within this time what arrived on a rail
  // that failed. 0: 60000; POLYRAIL_NEVER.
  uint64_t fence_timeout_ms;
  // A polyrail_rail_weights, for what this side sends.
  uint32_t rail_weights;
  // With rerouting: how long what is in flight of a request that is taken back is awaited before
  // the rails that carry it are fenced, in microseconds. 0: 500; POLYRAIL_NO_GRACE: not at all.
  uint32_t cancel_grace_us;
  // Rates in Mbit/s of each port of the domain's devices, in the devices' order, that replace
  // those of the ports; 0: the port's own. polyrail_domain_devices reports the sum over the
  // ports of a device. Only the ratios matter.
  uint32_t device_mbps[POLYRAIL_MAX_DEVICES];
} polyrail_endpoint_options;

// What happened to a peer.
typedef struct {
  // sizeof(polyrail_event).
  uint32_t size;
  // A polyrail_event_kind.
  uint32_t kind;
  // The peer's number.
  uint64_t peer;
  // Length of the event's bytes, which the call stores in the memory passed to it.
  uint64_t length;
  // For events of rails: number of the rail, or POLYRAIL_RAIL_NOTIFY.
  uint32_t rail;
  // For events of failures, a polyrail_code; otherwise 0.
  int32_t code;
} polyrail_event;

// A request for a peer.
typedef struct {
  // Chosen by the caller, and returned in the completion.
  uint64_t id;
  // A polyrail_opcode.
  uint32_t opcode;
  // POLYRAIL_REQUEST_ bits.
  uint32_t flags;
  // The local memory. It must stay registered, and must not be used otherwise, until the request
  // is reported.
  polyrail_region *region;
  // Where in it.
  uint64_t offset;
  // Bytes.
  uint32_t length;
  // The immediate of opcodes that have one.
  uint32_t imm;
  // The peer's memory; unused by SENDs.
  polyrail_remote *remote;
  // Where in it.
  uint64_t remote_offset;
  // The operand that is compared or added.
  uint64_t compare_add;
  // The new value of a compare-and-swap.
  uint64_t swap;
} polyrail_request;

// A part of a request's local memory.
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

// A completed request.
typedef struct {
  // The `id` of the request.
  uint64_t id;
  // The peer's number.
  uint64_t peer;
  // A polyrail_status.
  uint32_t status;
  // A polyrail_opcode. For a receive, the opcode of the peer's request, without "with
  // immediate". Undefined if `status` is not 0.
  uint32_t opcode;
  // Length of the request in bytes; of a request that was taken back, those that may have been
  // written; for a receive, of the SEND that arrived. Over one rail, the
  // value of the device, which is often 0 for a WRITE or SEND.
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

// A buffer for a received message.
typedef struct {
  // The memory. It must stay registered, and must not be used otherwise, until a test returns
  // that the receive is done.
  polyrail_region *region;
  // Where in it.
  uint64_t offset;
  // Its length in bytes.
  uint32_t length;
  // The tag by which the sender selects the buffer among those of the receive.
  uint32_t tag;
} polyrail_buffer;

// A completed message.
typedef struct {
  // sizeof(polyrail_message_info).
  uint32_t size;
  // Number of buffers of a receive; 0 for a send or a flush.
  uint32_t count;
  // Bytes received into each buffer.
  uint32_t lengths[POLYRAIL_MAX_BUFFERS];
  // A polyrail_memory, also if the call returned an error.
  uint32_t memory;
  // 0.
  uint32_t reserved;
} polyrail_message_info;

// The state of a connection.
typedef struct {
  // sizeof(polyrail_peer_info).
  uint32_t size;
  // A polyrail_state.
  uint32_t state;
  // Number of rails.
  uint32_t rails;
  // Number of rails in service; 0 if the connection failed.
  uint32_t rails_in_service;
  // Requests and notification receives that were accepted and not yet reported. 0 over a single
  // rail, where only the device counts them. For messages: requests that no test has reported as
  // done.
  uint32_t unreported;
  // 1 if the peer has a link, otherwise 0.
  uint32_t has_link;
  // Why the connection failed, or else the text of the first event
  // POLYRAIL_EVENT_KIND_RAIL_FAILED; empty if there was none.
  char words[POLYRAIL_WORDS_BYTES];
} polyrail_peer_info;

// State and counters of one rail. For messages: of one queue pair; sending queue pairs come first,
// then receiving ones.
typedef struct {
  // Name of the device.
  char device[POLYRAIL_NAME_BYTES];
  // Number of the rail, or POLYRAIL_RAIL_NOTIFY.
  uint32_t rail;
  // A polyrail_rail_state.
  uint32_t state;
  // Number of its present queue pair.
  uint32_t qp_num;
  // How often the queue pair was replaced: 0 for the first one.
  uint32_t generation;
  // Payload bytes posted.
  uint64_t bytes;
  // Requests posted.
  uint64_t requests;
  // Batches of requests passed to the driver, each with one write to a doorbell.
  uint64_t doorbells;
  // Completions polled.
  uint64_t completions;
  // Failed completions.
  uint64_t errors;
  // How often it failed and other rails took over. 0 for messages, whose failures are events.
  uint64_t failures;
  // Requests that were in flight at these failures and were posted again. 0 for messages, whose
  // failures are events.
  uint64_t posted_again;
  // 0.
  uint64_t reserved[2];
} polyrail_rail_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the library's version. Versions with the same major number (before 1.0.0, with the same
// minor number) understand each other's structures.
uint32_t polyrail_version(void);

// Returns what a code means, in a few words. Never NULL, and never freed.
const char *polyrail_strerror(int32_t code);

// Returns the message of the last call of this thread that returned an error: the reason, the
// place and the values. Empty if there was none; never NULL. Valid until another call of this
// thread returns an error.
const char *polyrail_last_error(void);

// Returns what the status of a completion (a polyrail_status, or another number of a driver)
// means, in a few words. Never NULL, and never freed.
const char *polyrail_status_str(uint32_t status);

// Returns what the kind of an event (a polyrail_event_kind) means, in a few words.
// Never NULL, and never freed.
const char *polyrail_event_kind_str(uint32_t kind);

// Returns what the state of a connection (a polyrail_state) means, in a few words.
// Never NULL, and never freed.
const char *polyrail_state_str(uint32_t state);

// Returns what the state of a rail (a polyrail_rail_state) means, in a few words.
// Never NULL, and never freed.
const char *polyrail_rail_state_str(uint32_t state);

// Stores text from elsewhere, such as the name that a peer gave or the bytes of an event, so that
// it is safe to print: control characters and those that hide or reorder others become escapes
// like `\n` and `\u{202e}`, and bytes that are not UTF-8 become U+FFFD. The stored text ends with
// a 0 byte, which `length` does not count. It has at most 6 times as many bytes as `text`.
polyrail_code polyrail_printable(const void *text,
                                 size_t text_length,
                                 char *printable,
                                 size_t capacity,
                                 size_t *length);

// Sets the function that receives log lines about the connections of this process: when they are
// made, when rails fail and return, when links break, and why connections end. `logger` receives
// lines of `level` (a polyrail_log_level) and lower levels, together with `context`. NULL, the
// initial value: nothing is logged. After this returns, no thread is in an earlier `logger`.
// POLYRAIL_CODE_STATE: `logger` itself made this call, or Rust code of the program has already set
// another subscriber of `tracing`. POLYRAIL_CODE_FORKED: the parent of this process has called
// this.
polyrail_code polyrail_log(uint32_t level, polyrail_logger logger, void *context);

// Returns the devices of this machine for a polyrail_backend, without those that cannot be opened.
// Stores up to `capacity` of them, and their total number in `count`. POLYRAIL_CODE_UNSUPPORTED:
// this library was built without real NICs, or without TCP.
polyrail_code polyrail_devices(uint32_t backend,
                               polyrail_device_info *devices,
                               size_t capacity,
                               size_t *count);

// Opens devices. `options` may be NULL.
polyrail_code polyrail_domain_open(const polyrail_domain_options *options, polyrail_domain **domain);

// Returns the devices of a domain, in their order. Stores up to `capacity` of them, and their
// total number in `count`.
polyrail_code polyrail_domain_devices(polyrail_domain *domain,
                                      polyrail_device_info *devices,
                                      size_t capacity,
                                      size_t *count);

// Stores one line for each device and active port of this machine that was not named, and that the
// domain leaves out because it cannot be used, or because there are more than
// POLYRAIL_MAX_DEVICES: `mlx5_1: ` and the reason. Empty if there is none. Devices without an
// active port, and interfaces without carrier, are not among them. The stored text ends with a 0
// byte, which `length` does not count. POLYRAIL_CODE_TOO_SHORT: `length` is the capacity that is
// needed.
polyrail_code polyrail_domain_not_used(polyrail_domain *domain, char *lines, size_t capacity, size_t *length);

// Closes a domain. Objects made from it stay valid, and keep the devices open.
polyrail_code polyrail_domain_close(polyrail_domain *domain);

// Registers `length` bytes from `start` with every device of the domain. The memory must stay
// allocated until the region is closed. The program must not access parts that requests or peers
// may write, and must not write parts that they may read. `access` is POLYRAIL_ACCESS_ bits.
// Memory may be registered any number of times.
polyrail_code polyrail_region_register(polyrail_domain *domain,
                                       void *start,
                                       size_t length,
                                       uint32_t access,
                                       polyrail_region **region);

// Registers a part of a dma-buf, such as memory of a GPU. `iova` is the address by which requests
// name the first byte, usually the GPU's own. It must have the same offset within its page as
// `offset`. The file may be closed afterwards. Real NICs only.
polyrail_code polyrail_region_register_dmabuf(polyrail_domain *domain,
                                              int32_t fd,
                                              uint64_t offset,
                                              size_t length,
                                              uint64_t iova,
                                              uint32_t access,
                                              polyrail_region **region);

// Exports what a peer needs to access the region: at most POLYRAIL_REMOTE_BYTES, which the program
// sends to the peer. Stores their number in `length`.
polyrail_code polyrail_region_export(polyrail_region *region, void *bytes, size_t capacity, size_t *length);

// Deregisters the memory, which then belongs to the caller again. Requests in progress that use it
// fail. POLYRAIL_CODE_STILL_ACCESSED: devices may still access the memory until the process ends;
// the handle is closed nevertheless.
polyrail_code polyrail_region_close(polyrail_region *region);

// Makes a handle for a peer's memory from the bytes that polyrail_region_export made there.
polyrail_code polyrail_remote_import(const void *bytes, size_t length, polyrail_remote **remote);

// Closes the handle of a peer's memory.
polyrail_code polyrail_remote_close(polyrail_remote *remote);

// Begins to listen at an address such as "10.0.0.2:7471"; with port 0, the system chooses the
// port. "*:7471" listens at all addresses of this host, IPv4 and, if the system has it, IPv6.
// `options` may be NULL. While accepted links are in use, keep the listener open and call
// polyrail_listener_accept regularly: an accepted link that breaks reconnects through the
// listener. POLYRAIL_CODE_ARGUMENT: the address is not HOST:PORT.
polyrail_code polyrail_listener_open(const char *address,
                                     const polyrail_link_options *options,
                                     polyrail_listener **listener);

// Stores the address of the listener as text that ends with a 0 byte, and in `length` the number
// of bytes without the 0 byte.
polyrail_code polyrail_listener_address(polyrail_listener *listener,
                                        char *text,
                                        size_t capacity,
                                        size_t *length);

// Stores the next link whose peer has sent its hello, unless the peer has closed it since without
// a reason; see polyrail_link_hello. Never waits: returns POLYRAIL_CODE_NOT_NOW if there is no
// such link.
polyrail_code polyrail_listener_accept(polyrail_listener *listener, polyrail_link **link);

// Stores a line about a peer whose link polyrail_listener_accept has ended before its hello: its
// address and the reason, such as another token. Peers that just closed the connection are not
// reported. The line ends with a 0 byte, which `length` does not count. POLYRAIL_CODE_NOT_NOW:
// there is none. POLYRAIL_CODE_TOO_SHORT: `length` is the capacity that is needed. The last 16
// lines are kept until they are stored here. polyrail_log reports all.
polyrail_code polyrail_listener_next_refused(polyrail_listener *listener,
                                             char *line,
                                             size_t capacity,
                                             size_t *length);

// Stops listening. Accepted links stay open, but no longer reconnect if they break.
polyrail_code polyrail_listener_close(polyrail_listener *listener);

// Stores the addresses at which other hosts reach a listener of this host at `port`, such as
// "10.0.0.2:7471,10.0.1.2:7471", for polyrail_link_open, with a 0 byte at the end, and in
// `length` the number of bytes without it: at most POLYRAIL_MAX_ADDRESSES addresses, the best
// first, which take at most POLYRAIL_ADDRESSES_BYTES. Link-local addresses, and those of bridges
// without a NIC and of interfaces without carrier, are last. Loopback addresses are left out, and
// without any other address the call fails, unless `interface` names the network interface. NULL
// or "": all interfaces. POLYRAIL_CODE_ARGUMENT: no network interface of this name has an address.
polyrail_code polyrail_addresses(const char *interface,
                                 uint32_t port,
                                 char *addresses,
                                 size_t capacity,
                                 size_t *length);

// Begins to connect to a listener, such as "10.0.0.2:7471", in the background, and returns at
// once. `address` may be a list of addresses of one listener, separated by commas, the best first.
// Names are looked up meanwhile, and tried last. Attempts begin 250 ms apart, or sooner if there
// are many addresses or an attempt fails, and go on until the peer answers, for `connect_ms` in
// all, also while this host has no file descriptor or thread for them; an address that refuses, as
// that of a listener that is not open yet, is not tried again. If another process answers
// instead, the remaining addresses are tried; likewise if the process that answers has not proved
// the token and sends nothing for half of the time that is left, for at least 1 s and at most four
// fifths of `message_ms`. Such a process may be a busy peer: its address is tried again after the
// others, which have half of the time that is left then. The address that has answered when
// `connect_ms` is over has `message_ms` for its answer. Pass the link to polyrail_peers_meet: the
// events of that peer report whether the link connected. `options` may be NULL.
// POLYRAIL_CODE_ARGUMENT: an address is not HOST:PORT.
polyrail_code polyrail_link_open(const char *address,
                                 const polyrail_link_options *options,
                                 polyrail_link **link);

// Stores the bytes of the peer's hello, at most POLYRAIL_HELLO_BYTES, by which the program can
// identify the peer. The link must have been accepted by a listener.
polyrail_code polyrail_link_hello(polyrail_link *link, void *bytes, size_t capacity, size_t *length);

// Stores the address from which the peer of an accepted link connected, such as "10.0.0.2:40112",
// as text that ends with a 0 byte, and in `length` the number of bytes without the 0 byte.
polyrail_code polyrail_link_peer_address(polyrail_link *link, char *text, size_t capacity, size_t *length);

// Closes a link that was not passed to polyrail_peers_meet.
polyrail_code polyrail_link_close(polyrail_link *link);

// Closes an accepted link that the program does not use, and sends the other side the reason: its
// event POLYRAIL_EVENT_KIND_NOT_CONNECTED contains it. Longer reasons are cut off.
polyrail_code polyrail_link_refuse(polyrail_link *link, const char *reason);

// Creates a polling object for connections for requests over the devices of a domain, without
// peers. `options`, which may be NULL, apply to peers that are added without options of their own.
// Options with which no peer can be added on these devices are refused. The object has room for
// 6144 queue pairs, which is enough for 1228 peers of 4 rails.
polyrail_code polyrail_peers_open(polyrail_domain *domain,
                                  const polyrail_endpoint_options *options,
                                  polyrail_peers **peers);

// Creates a polling object for connections for messages over the devices of a domain, without
// peers. `options`, which may be NULL, apply to all its peers. Options with which no peer can be
// added on these devices are refused. At most `most` peers can exist at a time. Each needs 512
// places in the devices' shared receive queues, so small queues limit the number further. Beyond
// either limit polyrail_peers_add returns POLYRAIL_CODE_TOO_MANY.
polyrail_code polyrail_messages_open(polyrail_domain *domain,
                                     const polyrail_endpoint_options *options,
                                     uint32_t most,
                                     polyrail_peers **peers);

// Adds a peer, and stores its number, which is never used again in this object. The lowest 16 bits
// of the number are a small index, counted from 0, which differs from the indices of all other
// present peers. If `options` is NULL, the options apply that the object was opened with; for
// messages it must be NULL. Other peers keep working meanwhile.
polyrail_code polyrail_peers_add(polyrail_peers *peers,
                                 const polyrail_endpoint_options *options,
                                 uint64_t *peer);

// Adds a peer as polyrail_peers_add does, for the other side of a link that a listener accepted.
// Its rails use the devices of the domain in the order of the other side's devices, so that both
// ends of a rail are in one network: hosts may list their interfaces in different orders. If no
// device is in a network of the other side's, the order is that of the domain; so it is if rails
// cannot use the devices in pairs in turn, which is a line of the log, with the reason.
// Messages also keep the order of the domain if some of its devices have no counterpart, or more
// rails than others.
// POLYRAIL_CODE_MISMATCH: no device here can reach one of the other side's; the message names
// both. The link stays the caller's; pass it to polyrail_peers_meet.
polyrail_code polyrail_peers_add_toward(polyrail_peers *peers,
                                        const polyrail_endpoint_options *options,
                                        polyrail_link *link,
                                        uint64_t *peer);

// Connects over a link. The link then belongs to the peer, and is closed with it. Its handle is
// invalid after this call, even if the connection fails; it stays valid only if the call is
// refused because of its arguments or the peer's state. `hello`, at most POLYRAIL_HELLO_BYTES, is
// sent to the other side. Never waits: poll both ends until an event reports that they are
// connected; a loop that sleeps between its polls calls polyrail_peers_drive in each turn.
// Receives of requests may be posted earlier; a poll may store their completions before the event
// POLYRAIL_EVENT_KIND_CONNECTED is taken. Options that do not match (POLYRAIL_CODE_MISMATCH) are
// the result of this call if the link was accepted by a listener, and otherwise the event
// POLYRAIL_EVENT_KIND_NOT_CONNECTED. After either, the peer is as before: its receives stay
// posted, and it may meet over another link.
polyrail_code polyrail_peers_meet(polyrail_peers *peers,
                                  uint64_t peer,
                                  polyrail_link *link,
                                  const void *hello,
                                  size_t length);

// Stores the card of this end of a connection in `bytes`, and its length, at most
// POLYRAIL_CARD_BYTES, in `length`. The caller carries the card to the other end in any way.
polyrail_code polyrail_peers_card(polyrail_peers *peers,
                                  uint64_t peer,
                                  void *bytes,
                                  size_t capacity,
                                  size_t *length);

// Connects with the other end, which made this card. Neither end may post, send or offer buffers
// before both ends have connected; only receives of requests may be posted earlier. Waits while
// the device connects queue pairs, for about a second over RoCE if no path to the peer is found;
// polyrail_peers_meet does not. If the call fails because a port is down or no path to the other
// end is found, it may be repeated with the same card, and connects the rest: the code is
// POLYRAIL_CODE_DEVICE, and the message of the error names the reason.
polyrail_code polyrail_peers_connect(polyrail_peers *peers, uint64_t peer, const void *card, size_t length);

// Sends a message of at most POLYRAIL_MESSAGE_BYTES over the peer's link. POLYRAIL_CODE_NOT_NOW:
// the two sides are not connected yet, or the peer has too many unread messages. While 64 events
// of a peer are not taken, no messages of this peer are read; if none are read for 9 seconds while
// messages wait, the link may break and reconnect. Messages are not ordered with requests and
// messages over the rails.
polyrail_code polyrail_peers_say(polyrail_peers *peers, uint64_t peer, const void *bytes, size_t length);

// Stores the next repair message for the other end, if the peer's rails are rerouted and it has no
// link. After every poll, call this until it returns POLYRAIL_CODE_NOT_NOW, and carry the messages
// to the other end in order. `capacity` must be at least POLYRAIL_MESSAGE_BYTES, the maximum
// length of a message.
polyrail_code polyrail_peers_next_control(polyrail_peers *peers,
                                          uint64_t peer,
                                          void *bytes,
                                          size_t capacity,
                                          size_t *length);

// Handles a message that polyrail_peers_next_control stored at the other end.
// POLYRAIL_CODE_NOT_NOW: the message was not taken; poll, and pass it again.
polyrail_code polyrail_peers_control(polyrail_peers *peers, uint64_t peer, const void *bytes, size_t length);

// Reports that the channel which carried these messages broke and was replaced. Both ends must
// call this before any message goes over the new channel.
polyrail_code polyrail_peers_control_lost(polyrail_peers *peers, uint64_t peer);

// Takes the oldest event of all peers, and stores it with its bytes, at most
// POLYRAIL_MESSAGE_BYTES; text that is longer is cut. Never waits. POLYRAIL_CODE_NOT_NOW: there is
// no event. POLYRAIL_CODE_TOO_SHORT: the bytes exceed `capacity`; the event was not taken.
polyrail_code polyrail_peers_next_event(polyrail_peers *peers,
                                        polyrail_event *event,
                                        void *bytes,
                                        size_t capacity);

// Drives links and repairs rails immediately, instead of in one of the next polls. Never waits for
// long, but a driver may take milliseconds to create a queue pair.
polyrail_code polyrail_peers_drive(polyrail_peers *peers);

// Takes back all WRITEs and READs of a peer that have this `id` and are under way, and stores
// their number. Nothing more of them is posted, and each is reported by a later poll: as
// POLYRAIL_STATUS_CANCELLED with the number of bytes that may have been written, or as a success
// if it was done in time. Until then, its memory belongs to the devices. What is in flight is
// awaited for cancel_grace_us; then the rails that carry it are fenced and get new queue pairs.
// Other requests are not affected, except that they may take longer.
//
// POLYRAIL_CODE_REQUEST: no such request is under way, or it is done but for its report, its
// receiver is being notified, it is being taken back already, or it is a SEND or an atomic.
// POLYRAIL_CODE_STATE: without rerouting (POLYRAIL_RAIL_FAILURE_REROUTE, at least 2 rails).
// POLYRAIL_CODE_UNSUPPORTED: the peer has a version of this library that cannot do so. Peers for
// requests only: POLYRAIL_CODE_KIND for messages.
polyrail_code polyrail_peers_cancel(polyrail_peers *peers, uint64_t peer, uint64_t id, size_t *count);

// Posts a request. POLYRAIL_CODE_NOT_NOW: poll, and post it again. After POLYRAIL_CODE_OK the
// request is reported, whether it succeeds or fails, as long as the peer is polled and not
// removed. Peers for requests only: POLYRAIL_CODE_KIND for messages.
polyrail_code polyrail_peers_post(polyrail_peers *peers, uint64_t peer, const polyrail_request *request);

// Posts requests with one call and the fewest doorbells, and stores the number of posted requests
// in `posted`. The first refused request and all behind it are not posted, and the code of the
// refusal is returned. Peers for requests only: POLYRAIL_CODE_KIND for messages.
polyrail_code polyrail_peers_post_many(polyrail_peers *peers,
                                       uint64_t peer,
                                       const polyrail_request *requests,
                                       size_t count,
                                       size_t *posted);

// Posts a request whose local bytes are the parts, one after the other, at most
// POLYRAIL_MAX_PARTS. The `region`, `offset` and `length` of the request itself are ignored. Peers
// for requests only: POLYRAIL_CODE_KIND for messages.
polyrail_code polyrail_peers_post_parts(polyrail_peers *peers,
                                        uint64_t peer,
                                        const polyrail_request *request,
                                        const polyrail_part *parts,
                                        size_t count);

// Posts a receive. With a NULL region and `length` 0 it is for a WRITE_WITH_IMM, otherwise for a
// SEND of at most `length` bytes. POLYRAIL_CODE_NOT_NOW: poll, and post it again. Peers for
// requests only: POLYRAIL_CODE_KIND for messages.
polyrail_code polyrail_peers_receive(polyrail_peers *peers,
                                     uint64_t peer,
                                     uint64_t id,
                                     polyrail_region *region,
                                     uint64_t offset,
                                     uint32_t length);

// Posts a receive for a SEND whose bytes fill the parts, one after the other. The number of parts
// is at most POLYRAIL_MAX_PARTS, and at most what the device supports. POLYRAIL_CODE_NOT_NOW:
// poll, and post it again. Peers for requests only: POLYRAIL_CODE_KIND for messages.
polyrail_code polyrail_peers_receive_parts(polyrail_peers *peers,
                                           uint64_t peer,
                                           uint64_t id,
                                           const polyrail_part *parts,
                                           size_t count);

// Stores up to `capacity` completions of all peers, and in `count` their number. Drives everything
// that waits for completions; some polls also drive links and repair rails. A loop that sleeps
// between its polls calls polyrail_peers_drive in each turn. `count` is valid even if the returned
// code reports that a completion queue broke and that peers failed with it. With a capacity of 0,
// no completion is taken. Peers for requests only: POLYRAIL_CODE_KIND for messages, which
// polyrail_messages_poll polls.
polyrail_code polyrail_peers_poll(polyrail_peers *peers,
                                  polyrail_completion *completions,
                                  size_t capacity,
                                  size_t *count);

// Polls as polyrail_peers_poll does, and waits up to `timeout_ms`, or without a limit if that is
// POLYRAIL_NEVER, until there is a completion or an event. Requires POLYRAIL_ENDPOINT_EVENTS, and
// a capacity of at least 1. Drives links and repairs rails meanwhile. Does not wait while there is
// an event that was not taken. Peers for requests only: POLYRAIL_CODE_KIND for messages.
polyrail_code polyrail_peers_wait(polyrail_peers *peers,
                                  polyrail_completion *completions,
                                  size_t capacity,
                                  size_t *count,
                                  uint64_t timeout_ms);

// Stores a file descriptor that becomes readable when there may be completions after
// polyrail_peers_poll_armed stored none. It belongs to the object, exists once a peer was added,
// and is the same from then on; only wait for it, do not read from it. Links, events and listeners
// do not make it readable: polyrail_peers_poll_armed says how long to wait. Requires
// POLYRAIL_ENDPOINT_EVENTS. Peers for requests only: POLYRAIL_CODE_KIND for messages.
polyrail_code polyrail_peers_fd(polyrail_peers *peers, int32_t *fd);

// Polls as polyrail_peers_poll does, and arms the file descriptor for later completions. Requires
// a capacity of at least 1. If no completion is stored, the caller may wait for the file
// descriptor, but not longer than links and repairs may wait for polyrail_peers_drive: one second,
// or less if messages of polyrail_peers_say and peers that connect are not to wait that long.
// Peers for requests only: POLYRAIL_CODE_KIND for messages.
polyrail_code polyrail_peers_poll_armed(polyrail_peers *peers,
                                        polyrail_completion *completions,
                                        size_t capacity,
                                        size_t *count);

// Takes a message or a receive back that is under way. polyrail_messages_test returns what became
// of it: POLYRAIL_CODE_TAKEN_BACK, or POLYRAIL_CODE_OK if it was delivered in time. The peer's
// request has the same result. Until then, its memory belongs to the devices. A receive that is
// taken back is used up: the peer's next message goes to the one behind it. What is in flight is
// awaited for cancel_grace_us; then the queue pairs that carry it are fenced and replaced. Both
// ends must go on with polls.
//
// POLYRAIL_CODE_REQUEST: there is no such request, it is done but for its test, or it is being
// taken back already. POLYRAIL_CODE_STATE: without rerouting (POLYRAIL_RAIL_FAILURE_REROUTE).
// POLYRAIL_CODE_UNSUPPORTED: the peer has a version of this library that cannot do so.
// POLYRAIL_CODE_FAILED: the connection failed; polyrail_messages_test returns that, too.
polyrail_code polyrail_messages_cancel(polyrail_peers *peers, uint64_t request);

// Offers up to POLYRAIL_MAX_BUFFERS buffers for the peer's next messages, and stores the number of
// the request. If the peer has another offer already, a later poll sends this one. Nothing of a
// receive is transferred before each of its buffers has found its send: a sender must send to all
// of them before it waits for one. POLYRAIL_CODE_NOT_NOW: poll, and try again.
polyrail_code polyrail_messages_receive(polyrail_peers *peers,
                                        uint64_t peer,
                                        const polyrail_buffer *buffers,
                                        size_t count,
                                        uint64_t *request);

// Sends a message to the buffer with this tag in the peer's next receive, and stores the number of
// the request. POLYRAIL_CODE_NOT_NOW: that receive has no unmatched buffer with this tag, or there
// is no room; poll, and try again. POLYRAIL_CODE_RANGE: the message is longer than the buffer, but
// may be sent to another buffer. It is not done before all buffers of that receive have a send.
polyrail_code polyrail_messages_send(polyrail_peers *peers,
                                     uint64_t peer,
                                     polyrail_region *region,
                                     uint64_t offset,
                                     uint32_t length,
                                     uint32_t tag,
                                     uint64_t *request);

// Takes up to `budget` completions, and drives everything that waits for them. Some polls also
// drive links and repair rails. A loop that sleeps between its polls calls polyrail_peers_drive in
// each turn: no function waits for messages.
polyrail_code polyrail_messages_poll(polyrail_peers *peers, size_t budget);

// Tests whether a request is done. POLYRAIL_CODE_OK: it is done, and its memory belongs to the
// caller again. Its number is invalid from then on, unless `flags` has POLYRAIL_TEST_KEEP and it
// is a receive. POLYRAIL_CODE_NOT_NOW: it is not done yet. POLYRAIL_CODE_FAILED,
// POLYRAIL_CODE_TAKEN_BACK, or POLYRAIL_CODE_UNSUPPORTED of a flush: it will never be done, its
// local memory belongs to the caller again, and its number is invalid. POLYRAIL_CODE_REQUEST: there is no such request, or it
// was already returned. Other codes do not describe the request. `info` may be NULL; its `memory`
// is correct whatever the code.
polyrail_code polyrail_messages_test(polyrail_peers *peers,
                                     uint64_t request,
                                     uint32_t flags,
                                     polyrail_message_info *info);

// Starts a flush, which makes all bytes of a receive visible to all readers of its memory, such as
// a GPU. The receive must have been tested to be done, with POLYRAIL_TEST_KEEP. From then on the
// request stands for the flush, and is done when the flush is. Requires POLYRAIL_ENDPOINT_FLUSHES.
// POLYRAIL_CODE_NOT_NOW: poll, and try again.
polyrail_code polyrail_messages_flush(polyrail_peers *peers, uint64_t request);

// Releases the number of a receive that was kept by POLYRAIL_TEST_KEEP.
polyrail_code polyrail_messages_forget(polyrail_peers *peers, uint64_t request);

// Stores the state of a connection.
polyrail_code polyrail_peers_info(polyrail_peers *peers, uint64_t peer, polyrail_peer_info *info);

// Stores the state and counters of every rail of a connection for requests, or of every queue pair
// of a connection for messages: first the queue pairs that send, then the queue pairs that
// receive. Stores up to `capacity` entries, and in `count` the number of all.
polyrail_code polyrail_peers_rails(polyrail_peers *peers,
                                   uint64_t peer,
                                   polyrail_rail_info *rails,
                                   size_t capacity,
                                   size_t *count);

// Fails one rail of a peer for requests, for example before its device is removed. `rail` may be
// POLYRAIL_RAIL_NOTIFY. With rerouting, other rails take over.
polyrail_code polyrail_peers_fail_rail(polyrail_peers *peers, uint64_t peer, uint32_t rail);

// Fails a connection. The next polls report what was posted to a peer for requests, as flushed or
// with its real status. Messages fail as soon as no device accesses their memory any more.
polyrail_code polyrail_peers_fail(polyrail_peers *peers, uint64_t peer);

// Removes a peer for requests, failed or not, and adds a new peer in its place, which is not
// connected. The numbers of the two peers have the same lowest 16 bits. `options` may be NULL.
polyrail_code polyrail_peers_replace(polyrail_peers *peers,
                                     uint64_t peer,
                                     const polyrail_endpoint_options *options,
                                     uint64_t *new_peer);

// Removes a peer and its link as soon as no device can access the memory of its requests or
// messages. A peer for requests is removed immediately, and its unreported requests are never
// reported. To receive these reports, first call polyrail_peers_fail and poll: over several rails
// until `unreported` of polyrail_peers_info is 0, over a single rail until as many requests are
// reported as were posted. A peer for messages is failed first, as by polyrail_peers_fail, and
// POLYRAIL_CODE_NOT_NOW may be returned: poll, and call again. After success its messages are
// discarded without a report.
polyrail_code polyrail_peers_remove(polyrail_peers *peers, uint64_t peer);

// Closes a polling object, with all its peers and their links. Messages that polyrail_peers_say
// has accepted are still sent, unless the link is broken, or the peer has not read for so long
// that the system has no room for them. The other sides may see their receives fail before these
// messages arrive. Afterwards nothing is reported any more, and no device accesses memory of
// requests or messages. With peers for messages the call waits until that is so. If this takes
// more than 10 seconds, it returns POLYRAIL_CODE_STILL_ACCESSED: the memory then stays registered,
// and does not belong to the caller again.
polyrail_code polyrail_peers_close(polyrail_peers *peers);

// Stores in `is_service` 1 if Kubernetes made the environment variable for a Service, otherwise 0.
// A Service named `polyrail` has variables such as POLYRAIL_PORT=tcp://10.96.0.7:7471, which begin
// like settings of plugins.
polyrail_code polyrail_is_service_variable(const char *name, const char *value, uint32_t *is_service);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* POLYRAIL_H */
