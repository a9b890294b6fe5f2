/* Opens and closes everything many times, and counts what is left: files, threads, memory.
 *   again TIMES
 * What threads keep for their next allocation counts as theirs, so they keep nothing:
 * GLIBC_TUNABLES=glibc.malloc.tcache_count=0 */
#include "common.h"

#include <dirent.h>
#include <malloc.h>

static int entries(const char *path) {
  DIR *directory = opendir(path);
  int count = 0;
  CHECK(directory != NULL);
  while (readdir(directory) != NULL) count++;
  closedir(directory);
  return count;
}

typedef struct {
  int files, threads;
  size_t bytes;
} left;

static left count_left(void) {
  left counted = {entries("/proc/self/fd"), entries("/proc/self/task"), mallinfo2().uordblks + mallinfo2().hblkhd};
  return counted;
}

/* The least of several looks: threads that connected are about to end. */
static left count_settled(void) {
  left least = count_left();
  double begin = now();
  while (now() - begin < 0.05) {
    left counted = count_left();
    if (counted.files < least.files) least.files = counted.files;
    if (counted.threads < least.threads) least.threads = counted.threads;
    if (counted.bytes < least.bytes) least.bytes = counted.bytes;
  }
  return least;
}

/* Of 1000 times, 16 bytes each would be more. */
static int is_as_before(left now_left, left before) {
  return now_left.files == before.files && now_left.threads == before.threads && now_left.bytes < before.bytes + 16000;
}

static char words[POLYRAIL_MESSAGE_BYTES];

static void logger(void *lines, uint32_t level, const char *said) {
  CHECK(level >= POLYRAIL_LOG_LEVEL_ERROR && said[0] != 0);
  ++*(unsigned *)lines;
}

static void once(void) {
  static char card[POLYRAIL_CARD_BYTES];
  polyrail_domain *domain = open_domain("a0,a1");
  polyrail_peers *peers, *others;
  polyrail_peers *p2p;
  polyrail_listener *listener;
  polyrail_link *asks, *asked = NULL;
  polyrail_completion done;
  polyrail_event event;
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  char address[64];
  size_t length, count;
  uint64_t first, second, unused, message;
  int connected = 0;
  unsigned lines = 0;
  OK(polyrail_log(POLYRAIL_LOG_LEVEL_DEBUG, logger, &lines));
  OK(polyrail_peers_open(domain, NULL, &peers));
  OK(polyrail_peers_open(domain, NULL, &others));
  OK(polyrail_peers_add(peers, NULL, &first));
  OK(polyrail_peers_add(others, NULL, &second));
  OK(polyrail_messages_open(domain, NULL, 2, &p2p));
  OK(polyrail_peers_add(p2p, NULL, &message));
  OK(polyrail_peers_card(p2p, message, card, sizeof card, &length));
  OK(polyrail_peers_connect(p2p, message, card, length));
  OK(polyrail_listener_open("127.0.0.1:0", NULL, &listener));
  OK(polyrail_listener_address(listener, address, sizeof address, &length));
  OK(polyrail_link_open(address, NULL, &asks));
  OK(polyrail_peers_meet(peers, first, asks, "x", 1));
  UNTIL(code == POLYRAIL_CODE_OK, {
    OK(polyrail_peers_drive(peers));
    code = polyrail_listener_accept(listener, &asked);
  });
  OK(polyrail_peers_meet(others, second, asked, "y", 1));
  ZERO(event);
  UNTIL(connected == 2, {
    OK(polyrail_peers_drive(peers));
    OK(polyrail_peers_drive(others));
    connected += polyrail_peers_next_event(peers, &event, words, sizeof words) == POLYRAIL_CODE_OK;
    connected += polyrail_peers_next_event(others, &event, words, sizeof words) == POLYRAIL_CODE_OK;
  });
  memory from = make_memory(domain, 100000), to = make_memory(domain, 100000);
  polyrail_request request = request_of(1, POLYRAIL_OPCODE_WRITE, &from, 0, 100000, &to);
  fill(from.bytes, from.length, 1);
  OK(polyrail_peers_post(peers, first, &request));
  count = 0;
  UNTIL(count == 1, OK(polyrail_peers_poll(peers, &done, 1, &count)));
  CHECK(done.status == 0 && memcmp(from.bytes, to.bytes, from.length) == 0);
  /* Closed with requests that are under way, and others that failed. */
  OK(polyrail_peers_post(peers, first, &request));
  OK(polyrail_peers_receive(others, second, 2, to.region, 0, 10));
  IS(POLYRAIL_CODE_RANGE, polyrail_peers_receive(others, second, 2, to.region, 99999, 10));
  OK(polyrail_peers_fail(others, second));
  OK(polyrail_peers_add(others, NULL, &unused));
  /* Receives of a peer that is removed, and others that are closed with theirs. */
  polyrail_buffer buffer = {to.region, 0, 100, 0};
  for (count = 0; count < 16; count++) OK(polyrail_messages_receive(p2p, message, &buffer, 1, &unused));
  UNTIL(polyrail_peers_remove(p2p, message) == POLYRAIL_CODE_OK, OK(polyrail_messages_poll(p2p, 8)));
  OK(polyrail_peers_add(p2p, NULL, &message));
  OK(polyrail_peers_close(peers));
  OK(polyrail_peers_close(others));
  OK(polyrail_listener_close(listener));
  OK(polyrail_peers_close(p2p));
  OK(polyrail_log(POLYRAIL_LOG_LEVEL_NONE, NULL, NULL));
  CHECK(lines >= 2);
  free_memory(&from);
  free_memory(&to);
  OK(polyrail_domain_close(domain));
}

int main(int count, char **arguments) {
  int times = count > 1 ? atoi(arguments[1]) : 10, at;
  left before, after;
  double begin;
  for (at = 0; at < times / 10 + 1; at++) once();
  before = count_settled();
  for (at = 0; at < times; at++) once();
  for (begin = now(); !is_as_before(after = count_left(), before) && now() - begin < PATIENCE;) continue;
  printf("%d times: %d files, %d threads, %zu bytes; before: %d, %d, %zu\n", times, after.files, after.threads,
         after.bytes, before.files, before.threads, before.bytes);
  CHECK(is_as_before(after, before));
  return 0;
}
