/* Moves bytes over four rails, by WRITE and back by READ, and compares all of them.
 *   move MIB */
#include "common.h"

#define CHUNK (1u << 20)
#define MOST_CHUNKS 32
#define ROUND_MIB 32

static polyrail_peers *near, *far;

static size_t poll_both(polyrail_completion *done, size_t capacity) {
  size_t count = 0, others = 0;
  polyrail_completion other[8];
  OK(polyrail_peers_poll(near, done, capacity, &count));
  OK(polyrail_peers_poll(far, other, 0, &others));
  return count;
}

/* Posts a request for every chunk, and waits for all. */
static void move(uint64_t peer, polyrail_opcode opcode, memory *here, memory *there, size_t length) {
  polyrail_request requests[MOST_CHUNKS];
  polyrail_completion done[16];
  size_t count = (length + CHUNK - 1) / CHUNK, posted = 0, reported = 0, at;
  for (at = 0; at < count; at++) {
    size_t left = length - at * CHUNK;
    uint32_t bytes = left < CHUNK ? (uint32_t)left : CHUNK;
    requests[at] = request_of(at, opcode, here, at * CHUNK, bytes, there);
  }
  while (reported < count) {
    size_t taken = 0, came;
    polyrail_code code = polyrail_peers_post_many(near, peer, requests + posted, count - posted, &taken);
    if (code != POLYRAIL_CODE_OK && code != POLYRAIL_CODE_NOT_NOW) FAIL("%s", polyrail_strerror(code));
    posted += taken;
    came = poll_both(done, 16);
    for (at = 0; at < came; at++) {
      CHECK(done[at].status == POLYRAIL_STATUS_SUCCESS && done[at].memory == POLYRAIL_MEMORY_DONE);
      CHECK(done[at].id == reported && done[at].peer == peer);
      CHECK(done[at].opcode == (uint32_t)opcode && done[at].bytes == requests[reported].length);
      reported++;
    }
  }
}

int main(int count, char **arguments) {
  size_t total = (size_t)(count > 1 ? atoi(arguments[1]) : 16), moved = 0, rails = 0, at;
  polyrail_domain *here = open_domain("a0,a1,a2,a3"), *there = open_domain("b0, b1, b2, b3");
  polyrail_rail_info infos[8];
  polyrail_peer_info info;
  uint64_t near_peer, far_peer;
  uint64_t each[4] = {0, 0, 0, 0};
  OK(polyrail_peers_open(here, NULL, &near));
  OK(polyrail_peers_open(there, NULL, &far));
  OK(polyrail_peers_add(near, NULL, &near_peer));
  OK(polyrail_peers_add(far, NULL, &far_peer));
  connect_cards(near, near_peer, far, far_peer);

  size_t round = (size_t)ROUND_MIB << 20;
  if (round > total << 20) round = total << 20;
  memory from = make_memory(here, round), to = make_memory(there, round), back = make_memory(here, round);
  for (; moved < total << 20; moved += round) {
    /* A last chunk that is not whole. */
    size_t length = moved == 0 ? round - 12345 : round;
    polyrail_request last = request_of(99, POLYRAIL_OPCODE_WRITE_WITH_IMM, &from, 0, 8, &to);
    polyrail_completion done, notified;
    size_t came = 0;
    fill(from.bytes, round, moved + 1);
    OK(polyrail_peers_receive(far, far_peer, 7, NULL, 0, 0));
    move(near_peer, POLYRAIL_OPCODE_WRITE, &from, &to, length);
    last.imm = (uint32_t)moved ^ 0xabcdu;
    OK(polyrail_peers_post(near, near_peer, &last));
    UNTIL(came == 1, came = poll_both(&done, 1));
    CHECK(done.id == 99 && done.status == 0);
    came = 0;
    UNTIL(came == 1, OK(polyrail_peers_poll(far, &notified, 1, &came)));
    CHECK(notified.id == 7 && notified.peer == far_peer && notified.imm == ((uint32_t)moved ^ 0xabcdu));
    CHECK(notified.flags == (POLYRAIL_COMPLETION_IMM | POLYRAIL_COMPLETION_RECEIVE));
    CHECK(memcmp(from.bytes, to.bytes, length) == 0);
    memset(back.bytes, 0, round);
    move(near_peer, POLYRAIL_OPCODE_READ, &back, &to, length);
    CHECK(memcmp(from.bytes, back.bytes, length) == 0);
  }
  OK(polyrail_peers_rails(near, near_peer, infos, 8, &rails));
  CHECK(rails == 5 && infos[4].rail == POLYRAIL_RAIL_NOTIFY);
  for (at = 0; at < 4; at++) {
    each[at] = infos[at].bytes;
    CHECK(infos[at].rail == at && infos[at].errors == 0 && infos[at].state == POLYRAIL_RAIL_STATE_IN_SERVICE);
    if (is_over_tcp()) {
      char name[32];
      snprintf(name, sizeof name, "tcp:127.1.0.%u", (unsigned)at + 1);
      CHECK(strcmp(infos[at].device, name) == 0);
    } else {
      CHECK(infos[at].device[0] == 'a' && infos[at].device[1] == (char)('0' + at));
    }
    CHECK(each[at] >= moved / 4);
  }
  ZERO(info);
  OK(polyrail_peers_info(near, near_peer, &info));
  CHECK(info.state == POLYRAIL_STATE_READY && info.rails == 4 && info.rails_in_service == 4);
  CHECK(info.unreported == 0 && info.words[0] == 0);
  OK(polyrail_peers_close(near));
  OK(polyrail_peers_close(far));
  free_memory(&from);
  free_memory(&to);
  free_memory(&back);
  OK(polyrail_domain_close(here));
  OK(polyrail_domain_close(there));
  printf("%zu MiB each way over 4 rails, byte-identical\n", total);
  return 0;
}
