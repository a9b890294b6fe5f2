/* Shared code of the test programs, which are valid C11 and C++17. */
#ifndef COMMON_H
#define COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <polyrail.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAIL(...)                                            \
  do {                                                       \
    fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);          \
    fprintf(stderr, __VA_ARGS__);                            \
    fprintf(stderr, " (%s)\n", polyrail_last_error());       \
    exit(1);                                                 \
  } while (0)

#define CHECK(condition) \
  do {                   \
    if (!(condition)) FAIL("not so: %s", #condition); \
  } while (0)

#define OK(call)                                                                \
  do {                                                                          \
    polyrail_code code_ = (call);                                               \
    if (code_ != POLYRAIL_CODE_OK) FAIL("%s: %s", #call, polyrail_strerror(code_)); \
  } while (0)

/* Errors have words. */
#define IS(expected, call)                                                                \
  do {                                                                                    \
    polyrail_code code_ = (call);                                                         \
    if (code_ != (expected))                                                              \
      FAIL("%s: %s, and should be %s", #call, polyrail_strerror(code_), polyrail_strerror(expected)); \
    if (code_ < 0 && polyrail_last_error()[0] == 0) FAIL("%s: no words", #call);          \
  } while (0)

#define PATIENCE 60.0

static inline double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

#define UNTIL(condition, step)                                    \
  do {                                                            \
    double begin_ = now();                                        \
    while (!(condition)) {                                        \
      step;                                                       \
      if (now() - begin_ > PATIENCE) FAIL("never: %s", #condition); \
    }                                                             \
  } while (0)

#define ZERO(structure)                          \
  do {                                           \
    memset(&(structure), 0, sizeof(structure));  \
    (structure).size = (uint32_t)sizeof(structure); \
  } while (0)

#define ALL_ACCESS                                                                              \
  (POLYRAIL_ACCESS_LOCAL_WRITE | POLYRAIL_ACCESS_REMOTE_WRITE | POLYRAIL_ACCESS_REMOTE_READ | \
   POLYRAIL_ACCESS_REMOTE_ATOMIC)

static inline int is_over_tcp(void) { return getenv("TCP") != NULL; }

/* Opens as many addresses of the loopback interface as the list has names. Each call opens others. */
static inline polyrail_domain *open_loopback(const char *devices) {
  static unsigned calls;
  polyrail_domain_options options;
  polyrail_domain *domain = NULL;
  char list[256] = "";
  unsigned number = 1;
  size_t length = 0;
  ZERO(options);
  calls++;
  for (;; devices++) {
    if (*devices != ',' && *devices != 0) continue;
    /* The prefix is optional. */
    length += (size_t)snprintf(list + length, sizeof list - length, "%s%s127.%u.0.%u", length ? "," : "",
                               number % 2 ? "tcp:" : "", (calls - 1) % 250 + 1, number);
    number++;
    if (*devices == 0) break;
  }
  options.backend = POLYRAIL_BACKEND_TCP;
  options.devices = list;
  OK(polyrail_domain_open(&options, &domain));
  CHECK(domain != NULL);
  return domain;
}

/* NICs in software, unless VERBS or TCP is in the environment. */
static inline polyrail_domain *open_domain(const char *devices) {
  polyrail_domain_options options;
  polyrail_domain *domain = NULL;
  if (is_over_tcp()) return open_loopback(devices);
  ZERO(options);
  options.backend = getenv("VERBS") ? POLYRAIL_BACKEND_VERBS : POLYRAIL_BACKEND_SOFTWARE;
  options.devices = devices;
  OK(polyrail_domain_open(&options, &domain));
  CHECK(domain != NULL);
  return domain;
}

/* Memory, here and as the peer sees it. */
typedef struct {
  unsigned char *bytes;
  size_t length;
  polyrail_region *region;
  polyrail_remote *remote;
} memory;

static inline memory make_memory(polyrail_domain *domain, size_t length) {
  unsigned char travels[POLYRAIL_REMOTE_BYTES];
  size_t count = 0;
  memory made;
  made.bytes = (unsigned char *)calloc(length, 1);
  made.length = length;
  CHECK(made.bytes != NULL);
  OK(polyrail_region_register(domain, made.bytes, length, ALL_ACCESS, &made.region));
  OK(polyrail_region_export(made.region, travels, sizeof travels, &count));
  OK(polyrail_remote_import(travels, count, &made.remote));
  return made;
}

static inline void free_memory(memory *used) {
  OK(polyrail_region_close(used->region));
  OK(polyrail_remote_close(used->remote));
  free(used->bytes);
}

/* Two peers, which may be of one object, are connected by cards. */
static inline void connect_cards(polyrail_peers *a, uint64_t peer_a, polyrail_peers *b, uint64_t peer_b) {
  static char card_a[POLYRAIL_CARD_BYTES], card_b[POLYRAIL_CARD_BYTES];
  size_t length_a = 0, length_b = 0;
  OK(polyrail_peers_card(a, peer_a, card_a, sizeof card_a, &length_a));
  OK(polyrail_peers_card(b, peer_b, card_b, sizeof card_b, &length_b));
  OK(polyrail_peers_connect(a, peer_a, card_b, length_b));
  OK(polyrail_peers_connect(b, peer_b, card_a, length_a));
}

static inline polyrail_peer_info info_of(polyrail_peers *peers, uint64_t peer) {
  polyrail_peer_info info;
  ZERO(info);
  OK(polyrail_peers_info(peers, peer, &info));
  return info;
}

static inline polyrail_request request_of(uint64_t id, polyrail_opcode opcode, memory *here, uint64_t offset,
                                          uint32_t length, memory *there) {
  polyrail_request request;
  memset(&request, 0, sizeof request);
  request.id = id;
  request.opcode = (uint32_t)opcode;
  request.region = here->region;
  request.offset = offset;
  request.length = length;
  request.remote = there->remote;
  request.remote_offset = offset;
  return request;
}

/* Numbers that look random, the same each time. */
static inline uint64_t next_random(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static inline void fill(unsigned char *bytes, size_t length, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  size_t at;
  for (at = 0; at + 8 <= length; at += 8) {
    uint64_t word = next_random(&state);
    memcpy(bytes + at, &word, 8);
  }
  for (; at < length; at++) bytes[at] = (unsigned char)next_random(&state);
}

#endif
