/* A rail fails while data moves between peers without a link, and comes back by what the program carries. */
#include "common.h"

#define BYTES (8u << 20)

/* Lines of each level, and what those of some kind are. */
static struct {
  unsigned of[POLYRAIL_LOG_LEVEL_DEBUG + 1], connected, failed, back;
} told;

static void logger(void *context, uint32_t level, const char *words) {
  CHECK(context == &told && level >= POLYRAIL_LOG_LEVEL_ERROR && level <= POLYRAIL_LOG_LEVEL_DEBUG);
  CHECK(words[0] != 0 && strchr(words, '\n') == NULL);
  IS(POLYRAIL_CODE_STATE, polyrail_log(0, NULL, NULL));
  told.of[level]++;
  told.connected += level == POLYRAIL_LOG_LEVEL_INFO && strncmp(words, "connected qp=", 13) == 0 && strstr(words, " rails=4") != NULL;
  told.failed += level == POLYRAIL_LOG_LEVEL_WARN && strstr(words, " device=") != NULL;
  told.back += level == POLYRAIL_LOG_LEVEL_INFO && strstr(words, "is back in service") != NULL;
}

static polyrail_peers *near, *far;
static uint64_t near_peer, far_peer;
static unsigned carried;

static void carry(polyrail_peers *from, uint64_t from_peer, polyrail_peers *to, uint64_t to_peer) {
  static char told[POLYRAIL_MESSAGE_BYTES];
  size_t length = 0;
  while (polyrail_peers_next_control(from, from_peer, told, sizeof told, &length) == POLYRAIL_CODE_OK) {
    OK(polyrail_peers_control(to, to_peer, told, length));
    carried++;
  }
}

static size_t poll_both(polyrail_completion *done, size_t capacity) {
  polyrail_completion none;
  size_t count = 0, others = 0;
  OK(polyrail_peers_poll(near, done, capacity, &count));
  OK(polyrail_peers_poll(far, &none, 1, &others));
  CHECK(others == 0);
  carry(near, near_peer, far, far_peer);
  carry(far, far_peer, near, near_peer);
  return count;
}

int main(void) {
  polyrail_domain *here = open_domain("a0,a1"), *there = open_domain("b0,b1");
  polyrail_endpoint_options options;
  polyrail_completion done[8];
  polyrail_rail_info rails[8];
  size_t count, length, failed = 0;
  char card[8];
  uint32_t rail, posted, reported;
  OK(polyrail_log(POLYRAIL_LOG_LEVEL_DEBUG, logger, &told));
  ZERO(options);
  options.rail_failure = POLYRAIL_RAIL_FAILURE_REROUTE;
  OK(polyrail_peers_open(here, &options, &near));
  OK(polyrail_peers_open(there, &options, &far));
  OK(polyrail_peers_add(near, NULL, &near_peer));
  OK(polyrail_peers_add(far, NULL, &far_peer));
  connect_cards(near, near_peer, far, far_peer);
  length = 0;
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_peers_next_control(near, near_peer, card, 5, &length));
  CHECK(length == POLYRAIL_MESSAGE_BYTES);
  IS(POLYRAIL_CODE_PROTOCOL, polyrail_peers_control(far, far_peer, "{}", 2));
  memory from = make_memory(here, BYTES), to = make_memory(there, BYTES);
  for (rail = 0; rail < 4; rail++) {
    fill(from.bytes, BYTES, rail);
    for (posted = 0, reported = 0; reported < 8;) {
      if (posted < 8) {
        polyrail_request request = request_of(posted, POLYRAIL_OPCODE_WRITE, &from, (BYTES / 8) * posted, BYTES / 8, &to);
        polyrail_code code = polyrail_peers_post(near, near_peer, &request);
        CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NOT_NOW);
        posted += code == POLYRAIL_CODE_OK;
        if (posted == 4) OK(polyrail_peers_fail_rail(rail % 2 ? far : near, rail % 2 ? far_peer : near_peer, rail));
      }
      count = poll_both(done, 8);
      for (size_t at = 0; at < count; at++) CHECK(done[at].status == 0 && done[at].id == reported++);
    }
    CHECK(memcmp(from.bytes, to.bytes, BYTES) == 0);
    /* For the last rail, only failures are logged. */
    if (rail == 3) OK(polyrail_log(POLYRAIL_LOG_LEVEL_WARN, logger, &told));
    UNTIL(info_of(near, near_peer).rails_in_service == 4 && info_of(far, far_peer).rails_in_service == 4, poll_both(done, 8));
    /* What carries the messages breaks when there is nothing to lose. */
    OK(polyrail_peers_control_lost(near, near_peer));
    OK(polyrail_peers_control_lost(far, far_peer));
  }
  OK(polyrail_peers_rails(near, near_peer, rails, 8, &count));
  for (size_t at = 0; at < count; at++) failed += rails[at].failures > 0 && rails[at].generation > 0;
  CHECK(failed >= 4 && carried > 8);
  CHECK(told.connected == 2 && told.failed >= 8 && told.back >= 6 && told.of[POLYRAIL_LOG_LEVEL_ERROR] == 0);
  OK(polyrail_peers_close(near));
  OK(polyrail_peers_close(far));
  free_memory(&from);
  free_memory(&to);
  OK(polyrail_domain_close(here));
  OK(polyrail_domain_close(there));
  printf("heal: %u messages carried; lines of each level: %u, %u, %u, %u\n", carried, told.of[1], told.of[2], told.of[3],
         told.of[4]);
  return 0;
}
