/* Misuses every function: the answer is a code and words, never a crash, and what was there goes on. */
#include "common.h"

#include <pthread.h>

static char words[POLYRAIL_CARD_BYTES];
static size_t length;
static polyrail_domain *domain, *closed_domain;
static polyrail_peers *peers;
static uint64_t peer, other;
static memory used;
static int not_a_handle;

/* `call` with invalid handles `h`, or handles of another kind. */
#define HANDLES(type, wrong, call)                                              \
  do {                                                                          \
    type *h = NULL;                                                             \
    IS(POLYRAIL_CODE_NULL, call);                                               \
    h = (type *)(void *)(wrong);                                                \
    IS(POLYRAIL_CODE_KIND, call);                                               \
    h = (type *)(void *)closed_domain;                                          \
    IS(POLYRAIL_CODE_HANDLE, call);                                             \
    h = (type *)(void *)&not_a_handle;                                          \
    IS(POLYRAIL_CODE_HANDLE, call);                                             \
    h = (type *)(void *)~(uintptr_t)0;                                          \
    IS(POLYRAIL_CODE_HANDLE, call);                                             \
    h = (type *)(void *)((char *)(void *)(wrong) + 2000000);                    \
    IS(POLYRAIL_CODE_HANDLE, call);                                             \
  } while (0)

/* `call` with invalid peers `p`. */
#define PEERS(removed, call)                                     \
  do {                                                           \
    const uint64_t all[] = {0, 1, 0xffff, removed, UINT64_MAX};  \
    size_t at_;                                                  \
    for (at_ = 0; at_ < 5; at_++) {                              \
      uint64_t p = all[at_];                                     \
      IS(POLYRAIL_CODE_PEER, call);                              \
    }                                                            \
  } while (0)

static void misuse_the_library(void) {
  char text[16];
  size_t length = 0;
  CHECK(strcmp(polyrail_strerror(12345), polyrail_strerror(-12345)) == 0);
  CHECK(strcmp(polyrail_strerror(POLYRAIL_CODE_OK), polyrail_strerror(POLYRAIL_CODE_NULL)) != 0);
  CHECK(polyrail_last_error() != NULL);
  CHECK(polyrail_version() == POLYRAIL_VERSION);
  CHECK(strcmp(polyrail_status_str(12345), polyrail_status_str(UINT32_MAX)) == 0);
  CHECK(strcmp(polyrail_status_str(POLYRAIL_STATUS_FLUSHED), polyrail_status_str(POLYRAIL_STATUS_FATAL)) != 0);
  CHECK(strcmp(polyrail_event_kind_str(0), polyrail_event_kind_str(UINT32_MAX)) == 0);
  CHECK(strcmp(polyrail_event_kind_str(POLYRAIL_EVENT_KIND_LINK_LOST), "link lost") == 0);
  CHECK(strcmp(polyrail_state_str(12345), polyrail_state_str(UINT32_MAX)) == 0);
  CHECK(strcmp(polyrail_state_str(POLYRAIL_STATE_FAILED), "failed") == 0);
  CHECK(strcmp(polyrail_rail_state_str(12345), polyrail_rail_state_str(UINT32_MAX)) == 0);
  CHECK(strcmp(polyrail_rail_state_str(POLYRAIL_RAIL_STATE_DOWN), "down") == 0);
  IS(POLYRAIL_CODE_NULL, polyrail_printable(NULL, 1, text, sizeof text, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_printable("a", 1, NULL, sizeof text, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_printable("a", 1, text, sizeof text, NULL));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_printable("a", SIZE_MAX, text, sizeof text, &length));
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_printable("\n", 1, text, 2, &length));
  CHECK(length == 3);
  OK(polyrail_printable("\n", 1, text, sizeof text, &length));
  CHECK(length == 2 && strcmp(text, "\\n") == 0);
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_log(POLYRAIL_LOG_LEVEL_DEBUG + 1, NULL, NULL));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_log(UINT32_MAX, NULL, NULL));
  OK(polyrail_log(POLYRAIL_LOG_LEVEL_DEBUG, NULL, NULL));
}

/* Network interfaces as devices. */
static void misuse_tcp(void) {
  const char *bad[] = {"no such interface", "lo,tcp:127.0.0.1", "tcp:", "lo,,", "192.0.2.255", "tcp:tcp:lo"};
  polyrail_domain_options options;
  polyrail_device_info devices[64];
  polyrail_domain *made, *second;
  size_t at, length;
  int found = 0;
  ZERO(options);
  options.backend = POLYRAIL_BACKEND_TCP;
  for (at = 0; at < sizeof bad / sizeof *bad; at++) {
    options.devices = bad[at];
    IS(POLYRAIL_CODE_NO_DEVICE, polyrail_domain_open(&options, &made));
  }
  options.devices = "lo";
  options.software_bytes_per_second = 1;
  IS(POLYRAIL_CODE_UNSUPPORTED, polyrail_domain_open(&options, &made));
  options.software_bytes_per_second = 0;
  options.flags = POLYRAIL_DOMAIN_GID_INDEX;
  IS(POLYRAIL_CODE_UNSUPPORTED, polyrail_domain_open(&options, &made));
  options.flags = 0;
  options.devices = "lo,127.0.0.2";
  OK(polyrail_domain_open(&options, &made));
  OK(polyrail_domain_devices(made, devices, 64, &length));
  CHECK(length == 2 && strcmp(devices[0].name, "tcp:lo") == 0 && strcmp(devices[1].name, "tcp:127.0.0.2") == 0);
  CHECK(devices[0].ports == 1 && devices[0].numa_node == -1 && devices[0].mbps == 0 && devices[0].guid == 0);
  CHECK(memcmp(devices[1].address, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\2", 16) == 0);
  OK(polyrail_domain_close(made));
  /* A port that another domain has; if any process has it already, the first is refused, too. */
  options.tcp_port = 47471;
  polyrail_code code = polyrail_domain_open(&options, &made);
  CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NO_DEVICE);
  IS(POLYRAIL_CODE_NO_DEVICE, polyrail_domain_open(&options, &second));
  CHECK(strstr(polyrail_last_error(), ":47471") != NULL);
  if (code == POLYRAIL_CODE_OK) OK(polyrail_domain_close(made));
  OK(polyrail_devices(POLYRAIL_BACKEND_TCP, devices, 64, &length));
  for (at = 0; at < length && at < 64; at++) found += strcmp(devices[at].name, "tcp:lo") == 0;
  CHECK(found == 1);
  /* Without names: a host that no other host can reach has none. */
  ZERO(options);
  options.backend = POLYRAIL_BACKEND_TCP;
  code = polyrail_domain_open(&options, &made);
  CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NO_DEVICE);
  if (code != POLYRAIL_CODE_OK) return;
  OK(polyrail_domain_devices(made, devices, 64, &length));
  CHECK(length >= 1 && length <= POLYRAIL_MAX_DEVICES && strcmp(devices[0].name, "tcp:lo") != 0);
  OK(polyrail_domain_close(made));
}

static void misuse_domains(void) {
  struct {
    polyrail_domain_options options;
    uint64_t behind;
  } longer;
  polyrail_device_info device;
  polyrail_domain *made;
  const char *bad[] = {"a,a", "a,,b", ",", "0123456789012345678901234567890123456789012345678901234567890123456789"};
  size_t at;
  memset(&longer, 0, sizeof longer);
  longer.options.backend = POLYRAIL_BACKEND_SOFTWARE;
  IS(POLYRAIL_CODE_SIZE, polyrail_domain_open(&longer.options, &made));
  longer.options.size = 6;
  IS(POLYRAIL_CODE_SIZE, polyrail_domain_open(&longer.options, &made));
  longer.options.size = 1 << 20;
  IS(POLYRAIL_CODE_SIZE, polyrail_domain_open(&longer.options, &made));
  /* Of a later version, with an option that this one does not have. */
  longer.options.size = sizeof longer;
  longer.behind = 1;
  IS(POLYRAIL_CODE_SIZE, polyrail_domain_open(&longer.options, &made));
  longer.behind = 0;
  OK(polyrail_domain_open(&longer.options, &made));
  OK(polyrail_domain_close(made));
  /* Of an earlier one, which ended with the backend. */
  longer.options.size = 8;
  OK(polyrail_domain_open(&longer.options, &made));
  OK(polyrail_domain_close(made));
  IS(POLYRAIL_CODE_HANDLE, polyrail_domain_close(made));
  /* Of any size: no version had a size that ends within a pointer. */
  for (at = 0; at <= sizeof longer.options; at++) {
    longer.options.size = (uint32_t)at;
    longer.options.devices = "a";
    polyrail_code code = polyrail_domain_open(&longer.options, &made);
    CHECK(code == POLYRAIL_CODE_SIZE || code == POLYRAIL_CODE_NO_DEVICE || code == POLYRAIL_CODE_OK);
    CHECK((code == POLYRAIL_CODE_SIZE) == (at < 4 || at % 4 != 0 || at == 12 || at == 28 || at == 44));
    if (code == POLYRAIL_CODE_OK) OK(polyrail_domain_close(made));
  }
  longer.options.devices = NULL;
  longer.options.size = sizeof longer.options;
  IS(POLYRAIL_CODE_NULL, polyrail_domain_open(&longer.options, NULL));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_domain_open((polyrail_domain_options *)(void *)(words + 1), &made));
  longer.options.backend = 4;
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_domain_open(&longer.options, &made));
  longer.options.backend = POLYRAIL_BACKEND_SOFTWARE;
  longer.options.flags = 2;
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_domain_open(&longer.options, &made));
  longer.options.flags = POLYRAIL_DOMAIN_GID_INDEX;
  IS(POLYRAIL_CODE_UNSUPPORTED, polyrail_domain_open(&longer.options, &made));
  longer.options.gid_index = 256;
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_domain_open(&longer.options, &made));
  longer.options.flags = 0;
  longer.options.gid_index = 1;
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_domain_open(&longer.options, &made));
  longer.options.gid_index = 0;
  longer.options.devices = "1,2,3,4,5,6,7,8,9";
  IS(POLYRAIL_CODE_TOO_MANY, polyrail_domain_open(&longer.options, &made));
  longer.options.devices = "\xff\xfe";
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_domain_open(&longer.options, &made));
  for (at = 0; at < sizeof bad / sizeof *bad; at++) {
    longer.options.devices = bad[at];
    IS(POLYRAIL_CODE_NO_DEVICE, polyrail_domain_open(&longer.options, &made));
  }
  longer.options.devices = NULL;
  longer.options.reserved = 1;
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_domain_open(&longer.options, &made));
  longer.options.reserved = 0;
  longer.options.tcp_port = 65536;
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_domain_open(&longer.options, &made));
  longer.options.tcp_port = 65535;
  IS(POLYRAIL_CODE_UNSUPPORTED, polyrail_domain_open(&longer.options, &made));
  longer.options.tcp_port = 0;
  longer.options.near = "gpu0";
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_domain_open(&longer.options, &made));
  CHECK(strstr(polyrail_last_error(), "0000:3b:00.0") != NULL);
  longer.options.near = "thread";
  IS(POLYRAIL_CODE_UNSUPPORTED, polyrail_domain_open(&longer.options, &made));
  longer.options.devices = "soft0";
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_domain_open(&longer.options, &made));
  longer.options.near = NULL;
  misuse_tcp();
  /* Real NICs that are not there: whatever this machine has, not this one. */
  longer.options.backend = POLYRAIL_BACKEND_VERBS;
  longer.options.devices = "no_such_device";
  polyrail_code code = polyrail_domain_open(&longer.options, &made);
  CHECK(code == POLYRAIL_CODE_NO_DEVICE || code == POLYRAIL_CODE_UNSUPPORTED);
  CHECK(polyrail_last_error()[0] != 0);
  HANDLES(polyrail_domain, peers, polyrail_domain_close(h));
  HANDLES(polyrail_domain, peers, polyrail_domain_devices(h, &device, 1, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_domain_devices(domain, NULL, 1, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_domain_devices(domain, &device, 1, NULL));
  OK(polyrail_domain_devices(domain, NULL, 0, &length));
  CHECK(length == 2);
  char lines[1] = {1};
  HANDLES(polyrail_domain, peers, polyrail_domain_not_used(h, lines, sizeof lines, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_domain_not_used(domain, NULL, 1, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_domain_not_used(domain, lines, sizeof lines, NULL));
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_domain_not_used(domain, NULL, 0, &length));
  CHECK(length == 1);
  OK(polyrail_domain_not_used(domain, lines, sizeof lines, &length));
  CHECK(length == 0 && lines[0] == 0);
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_devices(4, &device, 1, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_devices(POLYRAIL_BACKEND_SOFTWARE, &device, 1, NULL));
  OK(polyrail_devices(POLYRAIL_BACKEND_SOFTWARE, &device, 1, &length));
  CHECK(length == 1 && strcmp(device.name, "soft0") == 0 && device.numa_node == -1);
}

static void misuse_memory(void) {
  polyrail_region *region;
  polyrail_remote *remote;
  unsigned char travels[POLYRAIL_REMOTE_BYTES];
  size_t at, whole;
  HANDLES(polyrail_domain, peers, polyrail_region_register(h, used.bytes, 1, 0, &region));
  HANDLES(polyrail_domain, peers, polyrail_region_register_dmabuf(h, 0, 0, 1, 0, 0, &region));
  IS(POLYRAIL_CODE_NULL, polyrail_region_register(domain, NULL, 1, 0, &region));
  IS(POLYRAIL_CODE_NULL, polyrail_region_register(domain, used.bytes, 1, 0, NULL));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_region_register(domain, used.bytes, 0, 0, &region));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_region_register(domain, used.bytes, SIZE_MAX, 0, &region));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_region_register(domain, used.bytes, 1, 1 << 5, &region));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_region_register(domain, used.bytes, 1, POLYRAIL_ACCESS_REMOTE_WRITE, &region));
  IS(POLYRAIL_CODE_UNSUPPORTED, polyrail_region_register(domain, used.bytes, 1, POLYRAIL_ACCESS_ON_DEMAND, &region));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_region_register_dmabuf(domain, -1, 0, 1, 0, 0, &region));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_region_register_dmabuf(domain, 0, 0, 0, 0, 0, &region));
  IS(POLYRAIL_CODE_UNSUPPORTED, polyrail_region_register_dmabuf(domain, 0, 0, 4096, 0, 0, &region));
  HANDLES(polyrail_region, peers, polyrail_region_export(h, travels, sizeof travels, &whole));
  IS(POLYRAIL_CODE_NULL, polyrail_region_export(used.region, travels, sizeof travels, NULL));
  IS(POLYRAIL_CODE_NULL, polyrail_region_export(used.region, NULL, sizeof travels, &whole));
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_region_export(used.region, travels, 5, &whole));
  CHECK(whole > 5 && whole <= sizeof travels);
  OK(polyrail_region_export(used.region, travels, whole, &whole));
  IS(POLYRAIL_CODE_NULL, polyrail_remote_import(NULL, whole, &remote));
  IS(POLYRAIL_CODE_NULL, polyrail_remote_import(travels, whole, NULL));
  for (at = 0; at < sizeof travels; at++)
    if (at != whole) IS(POLYRAIL_CODE_PROTOCOL, polyrail_remote_import(travels, at, &remote));
  travels[0]++;
  IS(POLYRAIL_CODE_PROTOCOL, polyrail_remote_import(travels, whole, &remote));
  HANDLES(polyrail_remote, peers, polyrail_remote_close(h));
  HANDLES(polyrail_region, peers, polyrail_region_close(h));
  /* The same memory any number of times. */
  OK(polyrail_region_register(domain, used.bytes, used.length, 0, &region));
  OK(polyrail_region_close(region));
  IS(POLYRAIL_CODE_HANDLE, polyrail_region_close(region));
}

static void misuse_links(void) {
  polyrail_listener *listener, *another;
  polyrail_link *link = NULL;
  polyrail_link_options options;
  char address[64];
  ZERO(options);
  IS(POLYRAIL_CODE_NULL, polyrail_listener_open(NULL, NULL, &listener));
  IS(POLYRAIL_CODE_NULL, polyrail_listener_open("127.0.0.1:0", NULL, NULL));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_listener_open("nowhere", NULL, &listener));
  IS(POLYRAIL_CODE_LINK, polyrail_listener_open("203.0.113.1:1", NULL, &listener));
  options.token = "too short";
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_listener_open("127.0.0.1:0", &options, &listener));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_link_open("127.0.0.1:1", &options, &link));
  options.size = 2;
  IS(POLYRAIL_CODE_SIZE, polyrail_link_open("127.0.0.1:1", &options, &link));
  options.size = offsetof(polyrail_link_options, token) + 4;
  IS(POLYRAIL_CODE_SIZE, polyrail_link_open("127.0.0.1:1", &options, &link));
  OK(polyrail_listener_open("127.0.0.1:0", NULL, &listener));
  HANDLES(polyrail_listener, peers, polyrail_listener_address(h, address, sizeof address, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_listener_address(listener, NULL, 1, &length));
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_listener_address(listener, address, 3, &length));
  OK(polyrail_listener_address(listener, address, sizeof address, &length));
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_listener_address(listener, address, length, &length));
  OK(polyrail_listener_address(listener, address, length, &length));
  IS(POLYRAIL_CODE_LINK, polyrail_listener_open(address, NULL, &another));
  HANDLES(polyrail_listener, peers, polyrail_listener_accept(h, &link));
  IS(POLYRAIL_CODE_NULL, polyrail_listener_accept(listener, NULL));
  IS(POLYRAIL_CODE_NOT_NOW, polyrail_listener_accept(listener, &link));
  HANDLES(polyrail_listener, peers, polyrail_listener_next_refused(h, address, sizeof address, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_listener_next_refused(listener, NULL, 1, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_listener_next_refused(listener, address, sizeof address, NULL));
  IS(POLYRAIL_CODE_NOT_NOW, polyrail_listener_next_refused(listener, NULL, 0, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_addresses("lo", 1, NULL, 1, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_addresses("lo", 1, address, sizeof address, NULL));
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_addresses("lo", 1, address, 5, &length));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_addresses("lo", 65536, address, sizeof address, &length));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_addresses("\xff", 1, address, sizeof address, &length));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_addresses("no such", 1, address, sizeof address, &length));
  uint32_t is_service;
  uint64_t toward;
  IS(POLYRAIL_CODE_NULL, polyrail_is_service_variable(NULL, "", &is_service));
  IS(POLYRAIL_CODE_NULL, polyrail_is_service_variable("", NULL, &is_service));
  IS(POLYRAIL_CODE_NULL, polyrail_is_service_variable("", "", NULL));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_is_service_variable("", "\xff", &is_service));
  OK(polyrail_is_service_variable("", "", &is_service));
  CHECK(is_service == 0);
  OK(polyrail_is_service_variable("POLYRAIL_PORT", "tcp://10.96.0.7:7471", &is_service));
  CHECK(is_service == 1);
  IS(POLYRAIL_CODE_NULL, polyrail_link_open(NULL, NULL, &link));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_link_open("127.0.0.1", NULL, &link));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_link_open("127.0.0.1:1,127.0.0.1:0", NULL, &link));
  IS(POLYRAIL_CODE_NULL, polyrail_link_open(address, NULL, NULL));
  HANDLES(polyrail_link, peers, polyrail_link_hello(h, words, sizeof words, &length));
  HANDLES(polyrail_link, peers, polyrail_link_peer_address(h, address, sizeof address, &length));
  HANDLES(polyrail_link, peers, polyrail_link_close(h));
  HANDLES(polyrail_link, peers, polyrail_link_refuse(h, "no"));
  HANDLES(polyrail_listener, peers, polyrail_listener_close(h));
  OK(polyrail_link_open(address, NULL, &link));
  IS(POLYRAIL_CODE_STATE, polyrail_link_hello(link, words, sizeof words, &length));
  IS(POLYRAIL_CODE_STATE, polyrail_link_peer_address(link, address, sizeof address, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_link_peer_address(link, NULL, 1, &length));
  IS(POLYRAIL_CODE_STATE, polyrail_link_refuse(link, "no"));
  IS(POLYRAIL_CODE_NULL, polyrail_link_refuse(link, NULL));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_link_refuse(link, "\xff"));
  HANDLES(polyrail_peers, domain, polyrail_peers_add_toward(h, NULL, link, &toward));
  HANDLES(polyrail_link, peers, polyrail_peers_add_toward(peers, NULL, h, &toward));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_add_toward(peers, NULL, link, NULL));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_add_toward(peers, NULL, link, &toward));
  HANDLES(polyrail_peers, domain, polyrail_peers_meet(h, peer, link, NULL, 0));
  HANDLES(polyrail_link, peers, polyrail_peers_meet(peers, other, h, NULL, 0));
  PEERS(peer + 1, polyrail_peers_meet(peers, p, link, NULL, 0));
  IS(POLYRAIL_CODE_TOO_MANY, polyrail_peers_meet(peers, other, link, words, POLYRAIL_HELLO_BYTES + 1));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_meet(peers, other, link, NULL, 1));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_meet(peers, peer, link, NULL, 0));
  OK(polyrail_link_close(link));
  IS(POLYRAIL_CODE_HANDLE, polyrail_link_close(link));
  OK(polyrail_listener_close(listener));
  IS(POLYRAIL_CODE_HANDLE, polyrail_listener_close(listener));
}

static void misuse_options(void) {
  /* Places of options, in numbers, and values that they cannot have. */
  const struct {
    size_t at;
    uint32_t value;
    polyrail_code peers, p2p;
  } bad[] = {
      {offsetof(polyrail_endpoint_options, rails), 9, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, scheme), 3, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, max_msg_size), 100, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, rail_failure), 3, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, min_rails), 9, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, max_inline_data), 1 << 30, POLYRAIL_CODE_DEVICE, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, path_mtu), 1500, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, timeout), 32, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, retry_cnt), 8, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, max_rd_atomic), 256, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, pkey_index), 1 << 16, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, service_level), 16, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, traffic_class), 256, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, flow_label), 1 << 20, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, hop_limit), 256, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, flags), 1u << 31, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, queue_pairs_per_rail), 17, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, split_threshold), 1, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_OK},
      {offsetof(polyrail_endpoint_options, flags), POLYRAIL_ENDPOINT_EVENTS, POLYRAIL_CODE_OK, POLYRAIL_CODE_ARGUMENT},
      {offsetof(polyrail_endpoint_options, flags), POLYRAIL_ENDPOINT_FLUSHES, POLYRAIL_CODE_ARGUMENT, POLYRAIL_CODE_OK},
  };
  polyrail_endpoint_options options;
  polyrail_peers *made;
  polyrail_peers *p2p;
  uint64_t added;
  size_t at;
  for (at = 0; at < sizeof bad / sizeof *bad; at++) {
    ZERO(options);
    memcpy((char *)&options + bad[at].at, &bad[at].value, sizeof bad[at].value);
    polyrail_code code = polyrail_peers_open(domain, &options, &made);
    if (code == POLYRAIL_CODE_OK) OK(polyrail_peers_close(made));
    if (code != bad[at].peers) FAIL("option at %zu: %s", bad[at].at, polyrail_strerror(code));
    IS(bad[at].peers, polyrail_peers_add(peers, &options, &added));
    if (bad[at].peers == POLYRAIL_CODE_OK) OK(polyrail_peers_remove(peers, added));
    code = polyrail_messages_open(domain, &options, 1, &p2p);
    if (code == POLYRAIL_CODE_OK) OK(polyrail_peers_close(p2p));
    if (code != bad[at].p2p) FAIL("option at %zu for messages: %s", bad[at].at, polyrail_strerror(code));
  }
  ZERO(options);
  options.size = 3;
  IS(POLYRAIL_CODE_SIZE, polyrail_peers_open(domain, &options, &made));
  IS(POLYRAIL_CODE_SIZE, polyrail_messages_open(domain, &options, 1, &p2p));
}

static void misuse_peers(void) {
  polyrail_peers *made;
  polyrail_completion done;
  polyrail_request request = request_of(1, POLYRAIL_OPCODE_WRITE, &used, 0, 64, &used), bad;
  polyrail_part part = {used.region, 0, 64, 0};
  polyrail_event event;
  polyrail_peer_info info;
  polyrail_rail_info rail;
  uint64_t removed, added;
  size_t count;
  int fd;
  ZERO(event);
  ZERO(info);
  OK(polyrail_peers_add(peers, NULL, &removed));
  OK(polyrail_peers_remove(peers, removed));
  HANDLES(polyrail_domain, peers, polyrail_peers_open(h, NULL, &made));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_open(domain, NULL, NULL));
  HANDLES(polyrail_peers, domain, polyrail_peers_close(h));
  HANDLES(polyrail_peers, domain, polyrail_peers_add(h, NULL, &added));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_add(peers, NULL, NULL));
  HANDLES(polyrail_peers, domain, polyrail_peers_remove(h, peer));
  PEERS(removed, polyrail_peers_remove(peers, p));
  HANDLES(polyrail_peers, domain, polyrail_peers_replace(h, peer, NULL, &added));
  PEERS(removed, polyrail_peers_replace(peers, p, NULL, &added));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_replace(peers, peer, NULL, NULL));
  HANDLES(polyrail_peers, domain, polyrail_peers_fail(h, peer));
  PEERS(removed, polyrail_peers_fail(peers, p));
  HANDLES(polyrail_peers, domain, polyrail_peers_fail_rail(h, peer, 0));
  PEERS(removed, polyrail_peers_fail_rail(peers, p, 0));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_fail_rail(peers, peer, 4));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_fail_rail(peers, peer, 256));
  HANDLES(polyrail_peers, domain, polyrail_peers_cancel(h, peer, 1, &count));
  PEERS(removed, polyrail_peers_cancel(peers, p, 1, &count));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_cancel(peers, peer, 1, NULL));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_cancel(peers, peer, 1, &count));

  HANDLES(polyrail_peers, domain, polyrail_peers_card(h, peer, words, sizeof words, &length));
  PEERS(removed, polyrail_peers_card(peers, p, words, sizeof words, &length));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_card(peers, peer, NULL, 1, &length));
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_peers_card(peers, peer, words, 10, &length));
  OK(polyrail_peers_card(peers, other, words, sizeof words, &length));
  HANDLES(polyrail_peers, domain, polyrail_peers_connect(h, peer, words, length));
  PEERS(removed, polyrail_peers_connect(peers, p, words, length));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_connect(peers, other, NULL, 1));
  IS(POLYRAIL_CODE_PROTOCOL, polyrail_peers_connect(peers, other, words, length - 1));
  IS(POLYRAIL_CODE_PROTOCOL, polyrail_peers_connect(peers, other, "{}", 2));
  IS(POLYRAIL_CODE_PROTOCOL, polyrail_peers_connect(peers, other, NULL, 0));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_connect(peers, peer, words, length));
  polyrail_endpoint_options two;
  ZERO(two);
  two.rails = 2;
  OK(polyrail_peers_add(peers, &two, &added));
  IS(POLYRAIL_CODE_MISMATCH, polyrail_peers_connect(peers, added, words, length));
  OK(polyrail_peers_remove(peers, added));

  HANDLES(polyrail_peers, domain, polyrail_peers_say(h, peer, "x", 1));
  PEERS(removed, polyrail_peers_say(peers, p, "x", 1));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_say(peers, peer, "x", 1));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_say(peers, peer, NULL, 1));
  IS(POLYRAIL_CODE_TOO_MANY, polyrail_peers_say(peers, peer, words, POLYRAIL_MESSAGE_BYTES + 1));
  HANDLES(polyrail_peers, domain, polyrail_peers_next_control(h, peer, words, sizeof words, &length));
  PEERS(removed, polyrail_peers_next_control(peers, p, words, sizeof words, &length));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_next_control(peers, peer, words, sizeof words, &length));
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_peers_next_control(peers, peer, words, 10, &length));
  HANDLES(polyrail_peers, domain, polyrail_peers_control(h, peer, "{}", 2));
  PEERS(removed, polyrail_peers_control(peers, p, "{}", 2));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_control(peers, peer, "{}", 2));
  HANDLES(polyrail_peers, domain, polyrail_peers_control_lost(h, peer));
  PEERS(removed, polyrail_peers_control_lost(peers, p));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_control_lost(peers, peer));
  HANDLES(polyrail_peers, domain, polyrail_peers_drive(h));
  HANDLES(polyrail_peers, domain, polyrail_peers_next_event(h, &event, words, sizeof words));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_next_event(peers, NULL, words, sizeof words));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_next_event(peers, &event, NULL, 1));
  event.size = 0;
  IS(POLYRAIL_CODE_SIZE, polyrail_peers_next_event(peers, &event, words, sizeof words));
  event.size = sizeof event;
  IS(POLYRAIL_CODE_NOT_NOW, polyrail_peers_next_event(peers, &event, words, sizeof words));
  HANDLES(polyrail_peers, domain, polyrail_peers_info(h, peer, &info));
  PEERS(removed, polyrail_peers_info(peers, p, &info));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_info(peers, peer, NULL));
  info.size = 7;
  IS(POLYRAIL_CODE_SIZE, polyrail_peers_info(peers, peer, &info));
  HANDLES(polyrail_peers, domain, polyrail_peers_rails(h, peer, &rail, 1, &count));
  PEERS(removed, polyrail_peers_rails(peers, p, &rail, 1, &count));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_rails(peers, peer, NULL, 1, &count));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_rails(peers, peer, &rail, 1, NULL));

  HANDLES(polyrail_peers, domain, polyrail_peers_post(h, peer, &request));
  PEERS(removed, polyrail_peers_post(peers, p, &request));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_post(peers, peer, NULL));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_post(peers, peer, (polyrail_request *)(void *)(words + 1)));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_post(peers, other, &request));
#define POST(expected, field, value)                          \
  do {                                                        \
    bad = request;                                            \
    bad.field = value;                                        \
    IS(expected, polyrail_peers_post(peers, peer, &bad));     \
    count = 9;                                                \
    IS(expected, polyrail_peers_post_many(peers, peer, &bad, 1, &count)); \
    CHECK(count == 0);                                        \
  } while (0)
  POST(POLYRAIL_CODE_ARGUMENT, opcode, 7);
  POST(POLYRAIL_CODE_ARGUMENT, flags, 1 << 1);
  POST(POLYRAIL_CODE_ARGUMENT, flags, POLYRAIL_REQUEST_REPORT_IN_ORDER | POLYRAIL_REQUEST_REPORT_WHEN_DONE);
  POST(POLYRAIL_CODE_NULL, region, NULL);
  POST(POLYRAIL_CODE_NULL, remote, NULL);
  POST(POLYRAIL_CODE_KIND, region, (polyrail_region *)(void *)used.remote);
  POST(POLYRAIL_CODE_KIND, remote, (polyrail_remote *)(void *)used.region);
  POST(POLYRAIL_CODE_HANDLE, region, (polyrail_region *)(void *)closed_domain);
  POST(POLYRAIL_CODE_RANGE, offset, used.length - 63);
  POST(POLYRAIL_CODE_RANGE, offset, UINT64_MAX);
  POST(POLYRAIL_CODE_RANGE, remote_offset, used.length - 63);
  POST(POLYRAIL_CODE_RANGE, length, (uint32_t)used.length + 1);
  POST(POLYRAIL_CODE_ARGUMENT, length, 0);
  POST(POLYRAIL_CODE_ARGUMENT, opcode, POLYRAIL_OPCODE_FETCH_ADD);
  bad = request;
  bad.length = 4096;
  bad.flags = POLYRAIL_REQUEST_INLINE;
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_post(peers, peer, &bad));
  HANDLES(polyrail_peers, domain, polyrail_peers_post_many(h, peer, &request, 1, &count));
  PEERS(removed, polyrail_peers_post_many(peers, p, &request, 1, &count));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_post_many(peers, peer, NULL, 1, &count));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_post_many(peers, peer, &request, 1, NULL));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_post_many(peers, peer, &request, SIZE_MAX, &count));
  OK(polyrail_peers_post_many(peers, peer, NULL, 0, &count));
  HANDLES(polyrail_peers, domain, polyrail_peers_post_parts(h, peer, &request, &part, 1));
  PEERS(removed, polyrail_peers_post_parts(peers, p, &request, &part, 1));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_post_parts(peers, peer, NULL, &part, 1));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_post_parts(peers, peer, &request, NULL, 1));
  IS(POLYRAIL_CODE_TOO_MANY, polyrail_peers_post_parts(peers, peer, &request, &part, 0));
  HANDLES(polyrail_peers, domain, polyrail_peers_receive_parts(h, peer, 1, &part, 1));
  PEERS(removed, polyrail_peers_receive_parts(peers, p, 1, &part, 1));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_receive_parts(peers, peer, 1, NULL, 1));
  IS(POLYRAIL_CODE_TOO_MANY, polyrail_peers_receive_parts(peers, peer, 1, &part, 0));
  part.reserved = 1;
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_post_parts(peers, peer, &request, &part, 1));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_receive_parts(peers, peer, 1, &part, 1));
  part.reserved = 0;
  part.offset = used.length;
  IS(POLYRAIL_CODE_RANGE, polyrail_peers_post_parts(peers, peer, &request, &part, 1));
  IS(POLYRAIL_CODE_RANGE, polyrail_peers_receive_parts(peers, peer, 1, &part, 1));
  HANDLES(polyrail_peers, domain, polyrail_peers_receive(h, peer, 1, NULL, 0, 0));
  PEERS(removed, polyrail_peers_receive(peers, p, 1, NULL, 0, 0));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_receive(peers, peer, 1, NULL, 0, 1));
  IS(POLYRAIL_CODE_RANGE, polyrail_peers_receive(peers, peer, 1, used.region, used.length, 1));
  polyrail_region *read_only;
  OK(polyrail_region_register(domain, used.bytes, 64, POLYRAIL_ACCESS_REMOTE_READ, &read_only));
  IS(POLYRAIL_CODE_ACCESS, polyrail_peers_receive(peers, peer, 1, read_only, 0, 64));
  bad = request;
  bad.region = read_only;
  bad.opcode = POLYRAIL_OPCODE_READ;
  IS(POLYRAIL_CODE_ACCESS, polyrail_peers_post(peers, peer, &bad));
  OK(polyrail_region_close(read_only));
  /* Of another domain. */
  polyrail_domain *elsewhere = open_domain("x");
  memory foreign = make_memory(elsewhere, 64);
  bad = request_of(1, POLYRAIL_OPCODE_WRITE, &foreign, 0, 64, &used);
  IS(POLYRAIL_CODE_KEYS, polyrail_peers_post(peers, peer, &bad));
  free_memory(&foreign);
  OK(polyrail_domain_close(elsewhere));

  HANDLES(polyrail_peers, domain, polyrail_peers_poll(h, &done, 1, &count));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_poll(peers, NULL, 1, &count));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_poll(peers, &done, 1, NULL));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_poll(peers, &done, SIZE_MAX, &count));
  OK(polyrail_peers_poll(peers, NULL, 0, &count));
  HANDLES(polyrail_peers, domain, polyrail_peers_wait(h, &done, 1, &count, 0));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_wait(peers, NULL, 0, &count, 0));
  HANDLES(polyrail_peers, domain, polyrail_peers_fd(h, &fd));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_fd(peers, NULL));
  HANDLES(polyrail_peers, domain, polyrail_peers_poll_armed(h, &done, 1, &count));
  /* A polled completion would be kept without another notification. */
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_poll_armed(peers, NULL, 0, &count));
  OK(polyrail_peers_open(domain, NULL, &made));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_wait(made, &done, 1, &count, 0));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_fd(made, &fd));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_poll_armed(made, &done, 1, &count));
  OK(polyrail_peers_close(made));
  IS(POLYRAIL_CODE_HANDLE, polyrail_peers_close(made));
}

static void misuse_messages(void) {
  polyrail_peers *p2p;
  polyrail_buffer buffer = {used.region, 0, 64, 1};
  polyrail_message_info info;
  polyrail_peer_info peer_info;
  polyrail_rail_info rail;
  polyrail_event event;
  polyrail_link *link;
  uint64_t one, two, removed, request;
  size_t count;
  ZERO(info);
  ZERO(peer_info);
  ZERO(event);
  HANDLES(polyrail_domain, peers, polyrail_messages_open(h, NULL, 2, &p2p));
  IS(POLYRAIL_CODE_NULL, polyrail_messages_open(domain, NULL, 2, NULL));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_messages_open(domain, NULL, 0, &p2p));
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_messages_open(domain, NULL, 1 << 16, &p2p));
  OK(polyrail_messages_open(domain, NULL, 3, &p2p));
  HANDLES(polyrail_peers, domain, polyrail_peers_add(h, NULL, &one));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_add(p2p, NULL, NULL));
  OK(polyrail_peers_add(p2p, NULL, &one));
  OK(polyrail_peers_add(p2p, NULL, &two));
  OK(polyrail_peers_add(p2p, NULL, &removed));
  IS(POLYRAIL_CODE_TOO_MANY, polyrail_peers_add(p2p, NULL, &request));
  HANDLES(polyrail_peers, domain, polyrail_peers_remove(h, removed));
  UNTIL(polyrail_peers_remove(p2p, removed) == POLYRAIL_CODE_OK, OK(polyrail_messages_poll(p2p, 8)));
  PEERS(removed, polyrail_peers_remove(p2p, p));
  HANDLES(polyrail_peers, domain, polyrail_peers_fail(h, one));
  PEERS(removed, polyrail_peers_fail(p2p, p));
  HANDLES(polyrail_peers, domain, polyrail_peers_card(h, one, words, sizeof words, &length));
  PEERS(removed, polyrail_peers_card(p2p, p, words, sizeof words, &length));
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_peers_card(p2p, one, words, 3, &length));
  HANDLES(polyrail_peers, domain, polyrail_peers_connect(h, one, words, length));
  PEERS(removed, polyrail_peers_connect(p2p, p, words, length));
  IS(POLYRAIL_CODE_PROTOCOL, polyrail_peers_connect(p2p, one, "{}", 2));
  /* The card of the other kind. */
  OK(polyrail_peers_card(peers, other, words, sizeof words, &length));
  IS(POLYRAIL_CODE_PROTOCOL, polyrail_peers_connect(p2p, one, words, length));
  IS(POLYRAIL_CODE_STATE, polyrail_messages_send(p2p, one, used.region, 0, 64, 1, &request));
  IS(POLYRAIL_CODE_STATE, polyrail_messages_receive(p2p, one, &buffer, 1, &request));
  OK(polyrail_link_open("127.0.0.1:1", NULL, &link));
  HANDLES(polyrail_peers, domain, polyrail_peers_meet(h, one, link, NULL, 0));
  HANDLES(polyrail_link, domain, polyrail_peers_meet(p2p, one, h, NULL, 0));
  PEERS(removed, polyrail_peers_meet(p2p, p, link, NULL, 0));
  IS(POLYRAIL_CODE_TOO_MANY, polyrail_peers_meet(p2p, one, link, words, POLYRAIL_HELLO_BYTES + 1));
  OK(polyrail_link_close(link));
  OK(polyrail_peers_card(p2p, one, words, sizeof words, &length));
  OK(polyrail_peers_connect(p2p, two, words, length));
  OK(polyrail_peers_card(p2p, two, words, sizeof words, &length));
  OK(polyrail_peers_connect(p2p, one, words, length));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_connect(p2p, one, words, length));

  HANDLES(polyrail_peers, domain, polyrail_peers_say(h, one, "x", 1));
  PEERS(removed, polyrail_peers_say(p2p, p, "x", 1));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_say(p2p, one, "x", 1));
  HANDLES(polyrail_peers, domain, polyrail_peers_next_control(h, one, words, sizeof words, &length));
  PEERS(removed, polyrail_peers_next_control(p2p, p, words, sizeof words, &length));
  IS(POLYRAIL_CODE_STATE, polyrail_peers_next_control(p2p, one, words, sizeof words, &length));
  HANDLES(polyrail_peers, domain, polyrail_peers_control(h, one, "{}", 2));
  PEERS(removed, polyrail_peers_control(p2p, p, "{}", 2));
  HANDLES(polyrail_peers, domain, polyrail_peers_control_lost(h, one));
  PEERS(removed, polyrail_peers_control_lost(p2p, p));
  HANDLES(polyrail_peers, domain, polyrail_peers_drive(h));
  HANDLES(polyrail_peers, domain, polyrail_peers_next_event(h, &event, words, sizeof words));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_next_event(p2p, NULL, words, sizeof words));
  HANDLES(polyrail_peers, domain, polyrail_peers_info(h, one, &peer_info));
  PEERS(removed, polyrail_peers_info(p2p, p, &peer_info));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_info(p2p, one, NULL));
  HANDLES(polyrail_peers, domain, polyrail_peers_rails(h, one, &rail, 1, &count));
  PEERS(removed, polyrail_peers_rails(p2p, p, &rail, 1, &count));
  IS(POLYRAIL_CODE_NULL, polyrail_peers_rails(p2p, one, &rail, 1, NULL));
  HANDLES(polyrail_peers, domain, polyrail_messages_poll(h, 1));

  HANDLES(polyrail_peers, domain, polyrail_messages_receive(h, one, &buffer, 1, &request));
  PEERS(removed, polyrail_messages_receive(p2p, p, &buffer, 1, &request));
  IS(POLYRAIL_CODE_NULL, polyrail_messages_receive(p2p, one, NULL, 1, &request));
  IS(POLYRAIL_CODE_NULL, polyrail_messages_receive(p2p, one, &buffer, 1, NULL));
  IS(POLYRAIL_CODE_TOO_MANY, polyrail_messages_receive(p2p, one, &buffer, 0, &request));
  buffer.offset = used.length;
  IS(POLYRAIL_CODE_RANGE, polyrail_messages_receive(p2p, one, &buffer, 1, &request));
  buffer.region = (polyrail_region *)(void *)domain;
  IS(POLYRAIL_CODE_KIND, polyrail_messages_receive(p2p, one, &buffer, 1, &request));
  HANDLES(polyrail_peers, domain, polyrail_messages_send(h, one, used.region, 0, 64, 1, &request));
  HANDLES(polyrail_region, domain, polyrail_messages_send(p2p, one, h, 0, 64, 1, &request));
  PEERS(removed, polyrail_messages_send(p2p, p, used.region, 0, 64, 1, &request));
  IS(POLYRAIL_CODE_NULL, polyrail_messages_send(p2p, one, used.region, 0, 64, 1, NULL));
  IS(POLYRAIL_CODE_RANGE, polyrail_messages_send(p2p, one, used.region, used.length, 1, 1, &request));
  IS(POLYRAIL_CODE_NOT_NOW, polyrail_messages_send(p2p, one, used.region, 0, 64, 1, &request));
  HANDLES(polyrail_peers, domain, polyrail_messages_test(h, 1, 0, &info));
  IS(POLYRAIL_CODE_REQUEST, polyrail_messages_test(p2p, 0, 0, NULL));
  IS(POLYRAIL_CODE_REQUEST, polyrail_messages_test(p2p, UINT64_MAX, 0, &info));
  CHECK(info.memory == POLYRAIL_MEMORY_QUIET);
  info.size = 1;
  IS(POLYRAIL_CODE_SIZE, polyrail_messages_test(p2p, 0, 0, &info));
  HANDLES(polyrail_peers, domain, polyrail_messages_flush(h, 1));
  IS(POLYRAIL_CODE_REQUEST, polyrail_messages_flush(p2p, 1));
  HANDLES(polyrail_peers, domain, polyrail_messages_forget(h, 1));
  IS(POLYRAIL_CODE_REQUEST, polyrail_messages_forget(p2p, 1));
  HANDLES(polyrail_peers, domain, polyrail_messages_cancel(h, 1));
  IS(POLYRAIL_CODE_REQUEST, polyrail_messages_cancel(p2p, 1));
  buffer.region = used.region;
  buffer.offset = 0;
  OK(polyrail_messages_receive(p2p, one, &buffer, 1, &request));
  IS(POLYRAIL_CODE_STATE, polyrail_messages_cancel(p2p, request));
  IS(POLYRAIL_CODE_STATE, polyrail_messages_flush(p2p, request));
  IS(POLYRAIL_CODE_STATE, polyrail_messages_forget(p2p, request));
  /* Its buffer may be written, whatever else is wrong. */
  ZERO(info);
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_messages_test(p2p, request, 2, &info));
  CHECK(info.memory == POLYRAIL_MEMORY_UNDER_WAY);
  info.memory = 0;
  HANDLES(polyrail_peers, domain, polyrail_messages_test(h, request, 0, &info));
  CHECK(info.memory == POLYRAIL_MEMORY_UNDER_WAY);
  info.memory = 0;
  IS(POLYRAIL_CODE_NOT_NOW, polyrail_messages_test(p2p, request, 0, &info));
  CHECK(info.memory == POLYRAIL_MEMORY_UNDER_WAY);
  UNTIL(polyrail_peers_remove(p2p, one) == POLYRAIL_CODE_OK, OK(polyrail_messages_poll(p2p, 8)));
  IS(POLYRAIL_CODE_REQUEST, polyrail_messages_test(p2p, request, 0, &info));
  CHECK(info.memory == POLYRAIL_MEMORY_QUIET);
  HANDLES(polyrail_peers, domain, polyrail_peers_close(h));
  OK(polyrail_peers_close(p2p));
  IS(POLYRAIL_CODE_HANDLE, polyrail_peers_close(p2p));
}

static void *waits(void *unused) {
  polyrail_completion done;
  size_t count = 0;
  polyrail_code code = POLYRAIL_CODE_BUSY;
  (void)unused;
  while (code == POLYRAIL_CODE_BUSY) code = polyrail_peers_wait(peers, &done, 1, &count, 5000);
  CHECK(code == POLYRAIL_CODE_OK);
  return NULL;
}

static polyrail_peers *driven;
static polyrail_listener *listening;
static polyrail_link *linked;
static int is_over;

static polyrail_code drive(void) { return polyrail_peers_drive(driven); }

static polyrail_code accept_none(void) {
  polyrail_link *none;
  return polyrail_listener_accept(listening, &none);
}

static polyrail_code ask_hello(void) {
  char bytes[8];
  size_t count;
  return polyrail_link_hello(linked, bytes, sizeof bytes, &count);
}

/* What another thread does all the time, and what it gets when it is alone. */
typedef struct {
  polyrail_code (*call)(void);
  polyrail_code alone;
} busy_work;

static void *keeps_busy(void *given) {
  const busy_work *work = (const busy_work *)given;
  uint32_t round = 0;
  while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
    polyrail_code code = work->call();
    CHECK(code == work->alone || code == POLYRAIL_CODE_BUSY);
    /* Rounds of uneven length: slices of a fixed one, such as valgrind's, must not all end outside of the call. */
    for (volatile uint32_t idle = round++ % 101; idle > 0; idle = idle - 1) {
    }
  }
  return NULL;
}

/* Lets the other thread run, which valgrind does not while this one spins. */
static void sleep_a_little(void) {
  struct timespec time = {0, 1000000};
  nanosleep(&time, NULL);
}

/* `call`, of an object that another thread uses now and then, is refused when it does. */
#define BUSY(call) UNTIL((call) == POLYRAIL_CODE_BUSY, sleep_a_little())

/* Does `what` while another thread does this work. */
#define BESIDE(work, what)                                               \
  do {                                                                   \
    pthread_t thread;                                                    \
    __atomic_store_n(&is_over, 0, __ATOMIC_RELEASE);                     \
    CHECK(pthread_create(&thread, NULL, keeps_busy, (void *)&work) == 0); \
    what;                                                                \
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);                     \
    CHECK(pthread_join(thread, NULL) == 0);                              \
    CHECK(work.call() == work.alone);                                    \
  } while (0)

/* Another thread is in a call that waits: nothing else of these peers can be called. */
static void misuse_peers_that_wait(void) {
  polyrail_completion done;
  polyrail_request request = request_of(1, POLYRAIL_OPCODE_WRITE, &used, 0, 64, &used);
  polyrail_part part = {used.region, 0, 64, 0};
  polyrail_event event;
  polyrail_peer_info info;
  polyrail_rail_info rail;
  uint64_t added;
  size_t count = 0;
  pthread_t thread;
  polyrail_link *link;
  int32_t fd;
  ZERO(event);
  ZERO(info);
  OK(polyrail_link_open("127.0.0.1:1", NULL, &link));
  CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
  BUSY(polyrail_peers_poll(peers, &done, 1, &count));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_add(peers, NULL, &added));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_remove(peers, peer));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_replace(peers, peer, NULL, &added));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_fail(peers, peer));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_fail_rail(peers, peer, 0));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_cancel(peers, peer, 1, &count));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_card(peers, peer, words, sizeof words, &length));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_connect(peers, other, "{}", 2));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_meet(peers, other, link, NULL, 0));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_control(peers, peer, "{}", 2));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_say(peers, peer, "x", 1));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_next_control(peers, peer, words, sizeof words, &length));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_control_lost(peers, peer));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_drive(peers));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_next_event(peers, &event, words, sizeof words));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_info(peers, peer, &info));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_rails(peers, peer, &rail, 1, &count));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_post(peers, peer, &request));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_post_many(peers, peer, &request, 1, &count));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_post_parts(peers, peer, &request, &part, 1));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_receive(peers, peer, 1, NULL, 0, 0));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_receive_parts(peers, peer, 1, &part, 1));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_wait(peers, &done, 1, &count, 0));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_fd(peers, &fd));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_poll_armed(peers, &done, 1, &count));
  IS(POLYRAIL_CODE_BUSY, polyrail_peers_close(peers));
  CHECK(pthread_join(thread, NULL) == 0);
  OK(polyrail_peers_poll(peers, &done, 1, &count));
  OK(polyrail_link_close(link));
}

/* Two threads at a time are one too many; one after the other is fine. */
static void misuse_threads(void) {
  const busy_work drives = {drive, POLYRAIL_CODE_OK}, accepts = {accept_none, POLYRAIL_CODE_NOT_NOW},
                  asks = {ask_hello, POLYRAIL_CODE_STATE};
  polyrail_event event;
  polyrail_peer_info info;
  polyrail_rail_info rail;
  polyrail_buffer buffer = {used.region, 0, 64, 1};
  uint64_t added, request;
  size_t count;
  char address[64];
  ZERO(event);
  ZERO(info);
  misuse_peers_that_wait();

  OK(polyrail_messages_open(domain, NULL, 2, &driven));
  OK(polyrail_link_open("127.0.0.1:1", NULL, &linked));
  /* Of no peer, so that they do nothing when they are not refused. */
  BESIDE(drives, {
    BUSY(polyrail_peers_drive(driven));
    BUSY(polyrail_messages_poll(driven, 1));
    BUSY(polyrail_peers_add(driven, NULL, &added));
    BUSY(polyrail_peers_remove(driven, 0));
    BUSY(polyrail_peers_fail(driven, 0));
    BUSY(polyrail_peers_card(driven, 0, words, sizeof words, &length));
    BUSY(polyrail_peers_connect(driven, 0, "{}", 2));
    BUSY(polyrail_peers_meet(driven, 0, linked, NULL, 0));
    BUSY(polyrail_peers_say(driven, 0, "x", 1));
    BUSY(polyrail_peers_next_control(driven, 0, words, sizeof words, &length));
    BUSY(polyrail_peers_control(driven, 0, "{}", 2));
    BUSY(polyrail_peers_control_lost(driven, 0));
    BUSY(polyrail_peers_next_event(driven, &event, words, sizeof words));
    BUSY(polyrail_peers_info(driven, 0, &info));
    BUSY(polyrail_peers_rails(driven, 0, &rail, 1, &count));
    BUSY(polyrail_messages_receive(driven, 0, &buffer, 1, &request));
    BUSY(polyrail_messages_send(driven, 0, used.region, 0, 64, 1, &request));
    BUSY(polyrail_messages_test(driven, 0, 0, NULL));
    BUSY(polyrail_messages_flush(driven, 0));
    BUSY(polyrail_messages_forget(driven, 0));
    BUSY(polyrail_messages_cancel(driven, 0));
  });
  OK(polyrail_link_close(linked));
  OK(polyrail_peers_close(driven));

  OK(polyrail_listener_open("127.0.0.1:0", NULL, &listening));
  BESIDE(accepts, {
    BUSY(accept_none());
    BUSY(polyrail_listener_address(listening, address, sizeof address, &length));
  });
  OK(polyrail_listener_address(listening, address, sizeof address, &length));
  OK(polyrail_link_open(address, NULL, &linked));
  BESIDE(asks, BUSY(ask_hello()));
  OK(polyrail_link_close(linked));
  OK(polyrail_listener_close(listening));
}

/* After all that, a request goes its way. */
static void use(polyrail_peers *far, uint64_t far_peer) {
  polyrail_request request = request_of(17, POLYRAIL_OPCODE_WRITE, &used, 0, 64, &used);
  polyrail_part parts[2] = {{used.region, 0, 100, 0}, {used.region, 1000, 28, 0}};
  polyrail_completion done;
  size_t count = 0;
  request.remote_offset = 4096;
  fill(used.bytes, 2000, 5);
  OK(polyrail_peers_post(peers, peer, &request));
  UNTIL(count == 1, OK(polyrail_peers_poll(peers, &done, 1, &count)));
  CHECK(done.id == 17 && done.status == 0 && memcmp(used.bytes, used.bytes + 4096, 64) == 0);
  count = 0;
  OK(polyrail_peers_post_parts(peers, peer, &request, parts, 2));
  UNTIL(count == 1, OK(polyrail_peers_poll(peers, &done, 1, &count)));
  CHECK(done.bytes == 128 && memcmp(used.bytes, used.bytes + 4096, 100) == 0);
  CHECK(memcmp(used.bytes + 1000, used.bytes + 4096 + 100, 28) == 0);
  polyrail_part landing[2] = {{used.region, 9000, 3, 0}, {used.region, 8000, 125, 0}};
  OK(polyrail_peers_receive_parts(far, far_peer, 23, landing, 2));
  request.opcode = POLYRAIL_OPCODE_SEND;
  OK(polyrail_peers_post_parts(peers, peer, &request, parts, 2));
  count = 0;
  UNTIL(count == 1, OK(polyrail_peers_poll(peers, &done, 1, &count)));
  CHECK(done.id == 17 && done.status == 0);
  count = 0;
  UNTIL(count == 1, OK(polyrail_peers_poll(far, &done, 1, &count)));
  CHECK(done.id == 23 && done.bytes == 128 && memcmp(used.bytes, used.bytes + 9000, 3) == 0);
  CHECK(memcmp(used.bytes + 3, used.bytes + 8000, 97) == 0);
  CHECK(memcmp(used.bytes + 1000, used.bytes + 8097, 28) == 0);
  request.opcode = POLYRAIL_OPCODE_WRITE;
  /* An access that the peer does not permit: the request fails, then the connection, and both are reported. */
  memory gone = make_memory(domain, 4096);
  request.remote = gone.remote;
  request.remote_offset = 0;
  OK(polyrail_region_close(gone.region));
  count = 0;
  OK(polyrail_peers_post(peers, peer, &request));
  UNTIL(count == 1, OK(polyrail_peers_poll(peers, &done, 1, &count)));
  CHECK(done.status == POLYRAIL_STATUS_REMOTE_ACCESS && done.memory == POLYRAIL_MEMORY_REMOTE_MAY_CHANGE);
  polyrail_peer_info info;
  polyrail_event event;
  ZERO(info);
  ZERO(event);
  OK(polyrail_peers_info(peers, peer, &info));
  CHECK(info.state == POLYRAIL_STATE_FAILED && strstr(info.words, "REM_ACCESS_ERR") != NULL);
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_peers_next_event(peers, &event, NULL, 0));
  OK(polyrail_peers_next_event(peers, &event, words, sizeof words));
  CHECK(event.kind == POLYRAIL_EVENT_KIND_FAILED && event.code == POLYRAIL_CODE_FAILED && event.length > 10);
  IS(POLYRAIL_CODE_FAILED, polyrail_peers_post(peers, peer, &request));
  OK(polyrail_remote_close(gone.remote));
  free(gone.bytes);
}

int main(void) {
  polyrail_endpoint_options options;
  uint64_t far_peer;
  polyrail_peers *far;
  domain = open_domain("a0,a1");
  closed_domain = open_domain("closed");
  OK(polyrail_domain_close(closed_domain));
  ZERO(options);
  options.flags = POLYRAIL_ENDPOINT_EVENTS;
  OK(polyrail_peers_open(domain, &options, &peers));
  OK(polyrail_peers_open(domain, NULL, &far));
  OK(polyrail_peers_add(peers, NULL, &peer));
  OK(polyrail_peers_add(peers, NULL, &other));
  OK(polyrail_peers_add(far, NULL, &far_peer));
  connect_cards(peers, peer, far, far_peer);
  used = make_memory(domain, 1 << 16);
  misuse_the_library();
  misuse_domains();
  misuse_memory();
  misuse_links();
  misuse_options();
  misuse_peers();
  misuse_messages();
  misuse_threads();
  use(far, far_peer);
  OK(polyrail_peers_close(peers));
  OK(polyrail_peers_close(far));
  free_memory(&used);
  OK(polyrail_domain_close(domain));
  printf("misuse\n");
  return 0;
}
