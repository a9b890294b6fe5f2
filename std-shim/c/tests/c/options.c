/* What kinds of requests do, and options of connections. */
#include "common.h"

#define BYTES (1u << 20)

static polyrail_domain *domain;
static memory from, to;

/* Two peers that are connected. */
typedef struct {
  polyrail_peers *near, *far;
  uint64_t near_peer, far_peer;
} pair;

static polyrail_endpoint_options plain(uint32_t rails) {
  polyrail_endpoint_options options;
  ZERO(options);
  options.rails = rails;
  return options;
}

static pair connect_pair(const polyrail_endpoint_options *near, const polyrail_endpoint_options *far) {
  pair made;
  OK(polyrail_peers_open(domain, near, &made.near));
  OK(polyrail_peers_open(domain, far, &made.far));
  OK(polyrail_peers_add(made.near, NULL, &made.near_peer));
  OK(polyrail_peers_add(made.far, NULL, &made.far_peer));
  connect_cards(made.near, made.near_peer, made.far, made.far_peer);
  return made;
}

static void close_pair(pair *used) {
  OK(polyrail_peers_close(used->near));
  OK(polyrail_peers_close(used->far));
}

/* The completion of an end that was polled for the other's progress: at most one, in these tests. */
static polyrail_completion waits;
static polyrail_peers *waits_at;

/* The next completion of one end. */
static polyrail_completion next(polyrail_peers *peers, polyrail_peers *other) {
  polyrail_completion done;
  size_t count = 0, others = 0;
  if (waits_at == peers) {
    waits_at = NULL;
    return waits;
  }
  UNTIL(count == 1, {
    OK(polyrail_peers_poll(peers, &done, 1, &count));
    OK(polyrail_peers_poll(other, &waits, waits_at == NULL, &others));
    if (others == 1) waits_at = other;
  });
  return done;
}

static uint64_t word(const memory *of, size_t at) {
  uint64_t value;
  memcpy(&value, of->bytes + at, sizeof value);
  return value;
}

static void carry_out(pair *by, polyrail_request *request) {
  polyrail_completion done;
  OK(polyrail_peers_post(by->near, by->near_peer, request));
  done = next(by->near, by->far);
  CHECK(done.id == request->id && done.status == 0 && done.memory == POLYRAIL_MEMORY_DONE);
  CHECK(done.opcode == request->opcode && done.bytes == 8);
}

static void atomics(uint32_t rails) {
  polyrail_endpoint_options options = plain(rails);
  pair both = connect_pair(&options, &options);
  polyrail_request request = request_of(1, POLYRAIL_OPCODE_FETCH_ADD, &from, 0, 8, &to);
  uint64_t value = 1000;
  memcpy(to.bytes + 8, &value, sizeof value);
  request.remote_offset = 8;
  request.compare_add = 5;
  carry_out(&both, &request);
  CHECK(word(&from, 0) == 1000 && word(&to, 8) == 1005);
  request.opcode = POLYRAIL_OPCODE_COMPARE_SWAP;
  request.compare_add = 1005;
  request.swap = 77;
  carry_out(&both, &request);
  CHECK(word(&from, 0) == 1005 && word(&to, 8) == 77);
  request.swap = 78;
  carry_out(&both, &request);
  CHECK(word(&from, 0) == 77 && word(&to, 8) == 77);
  request.remote_offset = 12;
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_post(both.near, both.near_peer, &request));
  request.remote_offset = 8;
  request.length = 4;
  IS(POLYRAIL_CODE_ARGUMENT, polyrail_peers_post(both.near, both.near_peer, &request));
  close_pair(&both);
}

/* A write that notifies the receiver: the completion there. */
static polyrail_completion told(pair *both, uint32_t imm) {
  polyrail_request request = request_of(2, POLYRAIL_OPCODE_WRITE_WITH_IMM, &from, 0, BYTES, &to);
  polyrail_completion done;
  request.imm = imm;
  fill(from.bytes, BYTES, imm);
  OK(polyrail_peers_receive(both->far, both->far_peer, 3, NULL, 0, 0));
  OK(polyrail_peers_post(both->near, both->near_peer, &request));
  done = next(both->far, both->near);
  CHECK(done.id == 3 && done.status == 0 && (done.flags & POLYRAIL_COMPLETION_RECEIVE));
  CHECK(memcmp(from.bytes, to.bytes, BYTES) == 0);
  CHECK(next(both->near, both->far).id == 2);
  return done;
}

static void schemes_and_immediates(void) {
  polyrail_endpoint_options options = plain(4), little = plain(4);
  static char card[POLYRAIL_CARD_BYTES];
  polyrail_completion done;
  size_t length;
  pair both = connect_pair(&options, &options);
  done = told(&both, 0x01020304);
  CHECK((done.flags & POLYRAIL_COMPLETION_IMM) && done.imm == 0x01020304);
  close_pair(&both);
  /* Two ends of different orders find that out when they connect. */
  little.flags = POLYRAIL_ENDPOINT_LITTLE_ENDIAN_IMM;
  OK(polyrail_peers_open(domain, &little, &both.near));
  OK(polyrail_peers_add(both.near, NULL, &both.near_peer));
  OK(polyrail_peers_add(both.near, &options, &both.far_peer));
  OK(polyrail_peers_card(both.near, both.far_peer, card, sizeof card, &length));
  IS(POLYRAIL_CODE_MISMATCH, polyrail_peers_connect(both.near, both.near_peer, card, length));
  OK(polyrail_peers_close(both.near));
  both = connect_pair(&little, &little);
  CHECK(told(&both, 0x01020304).imm == 0x01020304);
  close_pair(&both);
  /* Immediates are the scheme's own. */
  options.scheme = POLYRAIL_SCHEME_DQPLB;
  both = connect_pair(&options, &options);
  CHECK((told(&both, 5).flags & POLYRAIL_COMPLETION_IMM) == 0);
  polyrail_request request = request_of(4, POLYRAIL_OPCODE_SEND, &from, 0, 8, &to);
  IS(POLYRAIL_CODE_UNSUPPORTED, polyrail_peers_post(both.near, both.near_peer, &request));
  close_pair(&both);
}

static void fail_rails(pair *both) {
  uint32_t rail;
  for (rail = 0; rail < 2; rail++) OK(polyrail_peers_fail_rail(both->near, both->near_peer, rail));
}

/* All rails fail at once: by default that ends the connection, and with POLYRAIL_NO_RAIL_NEEDED it waits. */
static void no_rail_needed(void) {
  polyrail_endpoint_options options = plain(2);
  polyrail_completion none;
  size_t count;
  options.rail_failure = POLYRAIL_RAIL_FAILURE_REROUTE;
  pair both = connect_pair(&options, &options);
  fail_rails(&both);
  UNTIL(info_of(both.near, both.near_peer).state == POLYRAIL_STATE_FAILED,
        OK(polyrail_peers_poll(both.near, &none, 0, &count)));
  close_pair(&both);
  options.min_rails = POLYRAIL_NO_RAIL_NEEDED;
  both = connect_pair(&options, &options);
  fail_rails(&both);
  OK(polyrail_peers_poll(both.near, &none, 0, &count));
  CHECK(info_of(both.near, both.near_peer).state == POLYRAIL_STATE_DEGRADED);
  CHECK(info_of(both.near, both.near_peer).rails_in_service == 0);
  close_pair(&both);
}

/* A device with a limited rate needs at least this long. */
static void speed(void) {
  const uint64_t bytes_per_second = 10 << 20;
  polyrail_domain_options slow;
  polyrail_domain *before = domain;
  polyrail_endpoint_options options = plain(1);
  double begin;
  ZERO(slow);
  slow.backend = POLYRAIL_BACKEND_SOFTWARE;
  slow.devices = "slow";
  slow.software_bytes_per_second = bytes_per_second;
  OK(polyrail_domain_open(&slow, &domain));
  memory away = make_memory(domain, BYTES), back = make_memory(domain, BYTES);
  pair both = connect_pair(&options, &options);
  polyrail_request request = request_of(5, POLYRAIL_OPCODE_WRITE, &away, 0, BYTES, &back);
  begin = now();
  OK(polyrail_peers_post(both.near, both.near_peer, &request));
  CHECK(next(both.near, both.far).status == 0);
  /* A tenth of a second, less what a device may send ahead. */
  CHECK(now() - begin > 0.05);
  close_pair(&both);
  free_memory(&away);
  free_memory(&back);
  OK(polyrail_domain_close(domain));
  domain = before;
}

int main(void) {
  domain = open_domain("a0,a1");
  from = make_memory(domain, BYTES);
  to = make_memory(domain, BYTES);
  atomics(1);
  atomics(4);
  schemes_and_immediates();
  no_rail_needed();
  speed();
  free_memory(&from);
  free_memory(&to);
  OK(polyrail_domain_close(domain));
  printf("options\n");
  return 0;
}
