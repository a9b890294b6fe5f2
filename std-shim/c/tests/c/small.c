/* Everything is made and used on a thread with a stack of 128 KiB, as some runtimes' threads have, and what was made of a
 * domain goes on without it. */
#include "common.h"

#include <pthread.h>

#define STACK (128u << 10)
#define BYTES (1u << 20)

static void requests(void) {
  polyrail_domain *here = open_domain("a0,a1"), *there;
  polyrail_peers *near, *far;
  polyrail_completion done;
  uint64_t near_peer, far_peer;
  size_t count = 0;
  memory from = make_memory(here, BYTES);
  OK(polyrail_peers_open(here, NULL, &near));
  OK(polyrail_domain_close(here));
  /* No domain is open now. */
  there = open_domain("b0,b1");
  memory to = make_memory(there, BYTES);
  OK(polyrail_peers_open(there, NULL, &far));
  OK(polyrail_domain_close(there));
  OK(polyrail_peers_add(near, NULL, &near_peer));
  OK(polyrail_peers_add(far, NULL, &far_peer));
  OK(polyrail_peers_replace(far, far_peer, NULL, &far_peer));
  connect_cards(near, near_peer, far, far_peer);
  fill(from.bytes, BYTES, 1);
  polyrail_request request = request_of(7, POLYRAIL_OPCODE_WRITE, &from, 0, BYTES, &to);
  OK(polyrail_peers_post(near, near_peer, &request));
  UNTIL(count == 1, OK(polyrail_peers_poll(near, &done, 1, &count)));
  CHECK(done.id == 7 && done.status == 0 && memcmp(from.bytes, to.bytes, BYTES) == 0);
  OK(polyrail_peers_remove(near, near_peer));
  OK(polyrail_peers_close(near));
  OK(polyrail_peers_close(far));
  free_memory(&from);
  free_memory(&to);
}

static void messages(void) {
  static char card_a[POLYRAIL_CARD_BYTES], card_b[POLYRAIL_CARD_BYTES];
  polyrail_domain *domain = open_domain("a0,a1");
  polyrail_peers *p2p;
  uint64_t a, b, sent, received;
  size_t length_a, length_b;
  memory from = make_memory(domain, BYTES), to = make_memory(domain, BYTES);
  polyrail_buffer buffer = {to.region, 0, BYTES, 1};
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  OK(polyrail_messages_open(domain, NULL, 2, &p2p));
  OK(polyrail_domain_close(domain));
  OK(polyrail_peers_add(p2p, NULL, &a));
  OK(polyrail_peers_add(p2p, NULL, &b));
  OK(polyrail_peers_card(p2p, a, card_a, sizeof card_a, &length_a));
  OK(polyrail_peers_card(p2p, b, card_b, sizeof card_b, &length_b));
  OK(polyrail_peers_connect(p2p, a, card_b, length_b));
  OK(polyrail_peers_connect(p2p, b, card_a, length_a));
  fill(from.bytes, BYTES, 2);
  OK(polyrail_messages_receive(p2p, b, &buffer, 1, &received));
  UNTIL(code == POLYRAIL_CODE_OK, {
    OK(polyrail_messages_poll(p2p, 8));
    code = polyrail_messages_send(p2p, a, from.region, 0, BYTES, 1, &sent);
  });
  UNTIL(polyrail_messages_test(p2p, received, 0, NULL) == POLYRAIL_CODE_OK, OK(polyrail_messages_poll(p2p, 8)));
  UNTIL(polyrail_messages_test(p2p, sent, 0, NULL) == POLYRAIL_CODE_OK, OK(polyrail_messages_poll(p2p, 8)));
  CHECK(memcmp(from.bytes, to.bytes, BYTES) == 0);
  UNTIL(polyrail_peers_remove(p2p, a) == POLYRAIL_CODE_OK, OK(polyrail_messages_poll(p2p, 8)));
  OK(polyrail_peers_close(p2p));
  free_memory(&from);
  free_memory(&to);
}

static void *all(void *unused) {
  requests();
  messages();
  return unused;
}

int main(void) {
  pthread_attr_t attributes;
  pthread_t thread;
  CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, STACK) == 0);
  CHECK(pthread_create(&thread, &attributes, all, NULL) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(pthread_attr_destroy(&attributes) == 0);
  printf("small: with a stack of %u KiB\n", STACK >> 10);
  return 0;
}
