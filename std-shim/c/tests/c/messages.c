/* Messages between two ends: several buffers of a receive, tags in another order, none and many bytes, flushes, one
 * that is too long, and an end that is given up. Connected by cards, or over a link.
 *   messages [link] */
#include "common.h"

#define BYTES (3u << 20)

static polyrail_peers *near, *far;
static uint64_t near_peer, far_peer;

static void poll_both(void) {
  OK(polyrail_messages_poll(near, 64));
  OK(polyrail_messages_poll(far, 64));
}

static polyrail_event next_event(polyrail_peers *p2p, char *bytes, size_t capacity) {
  polyrail_event event;
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  ZERO(event);
  UNTIL(code == POLYRAIL_CODE_OK, {
    poll_both();
    code = polyrail_peers_next_event(p2p, &event, bytes, capacity);
    CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NOT_NOW);
  });
  return event;
}

static void connect_by_cards(void) {
  static char card_a[POLYRAIL_CARD_BYTES], card_b[POLYRAIL_CARD_BYTES];
  size_t length_a = 0, length_b = 0;
  OK(polyrail_peers_card(near, near_peer, card_a, sizeof card_a, &length_a));
  OK(polyrail_peers_card(far, far_peer, card_b, sizeof card_b, &length_b));
  OK(polyrail_peers_connect(near, near_peer, card_b, length_b));
  OK(polyrail_peers_connect(far, far_peer, card_a, length_a));
}

static void connect_by_link(void) {
  polyrail_listener *listener;
  polyrail_link *asks, *asked = NULL;
  char address[64], words[POLYRAIL_MESSAGE_BYTES];
  size_t length;
  polyrail_event event;
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  OK(polyrail_listener_open("127.0.0.1:0", NULL, &listener));
  OK(polyrail_listener_address(listener, address, sizeof address, &length));
  OK(polyrail_link_open(address, NULL, &asks));
  OK(polyrail_peers_meet(near, near_peer, asks, "near", 4));
  UNTIL(code == POLYRAIL_CODE_OK, {
    poll_both();
    code = polyrail_listener_accept(listener, &asked);
  });
  OK(polyrail_link_hello(asked, words, sizeof words, &length));
  CHECK(length == 4 && memcmp(words, "near", 4) == 0);
  OK(polyrail_peers_meet(far, far_peer, asked, "far", 3));
  event = next_event(near, words, sizeof words);
  CHECK(event.kind == POLYRAIL_EVENT_KIND_CONNECTED && event.peer == near_peer);
  CHECK(event.length == 3 && memcmp(words, "far", 3) == 0);
  event = next_event(far, words, sizeof words);
  CHECK(event.kind == POLYRAIL_EVENT_KIND_CONNECTED && event.length == 4);
  OK(polyrail_peers_say(far, far_peer, "hello", 5));
  event = next_event(near, words, sizeof words);
  CHECK(event.kind == POLYRAIL_EVENT_KIND_MESSAGE && event.length == 5 && memcmp(words, "hello", 5) == 0);
  OK(polyrail_listener_close(listener));
}

static uint64_t send_some(memory *from, uint64_t offset, uint32_t length, uint32_t tag) {
  uint64_t request = 0;
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  UNTIL(code == POLYRAIL_CODE_OK, {
    code = polyrail_messages_send(near, near_peer, from->region, offset, length, tag, &request);
    CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NOT_NOW);
    poll_both();
  });
  return request;
}

static polyrail_message_info finish(polyrail_peers *p2p, uint64_t request, uint32_t flags) {
  polyrail_message_info info;
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  ZERO(info);
  UNTIL(code == POLYRAIL_CODE_OK, {
    poll_both();
    code = polyrail_messages_test(p2p, request, flags, &info);
    CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NOT_NOW);
  });
  CHECK(info.memory == POLYRAIL_MEMORY_DONE);
  return info;
}

static polyrail_buffer buffer_of(memory *to, uint64_t offset, uint32_t length, uint32_t tag) {
  polyrail_buffer buffer;
  buffer.region = to->region;
  buffer.offset = offset;
  buffer.length = length;
  buffer.tag = tag;
  return buffer;
}

int main(int count, char **arguments) {
  polyrail_domain *here = open_domain("rxeA0,rxeA1"), *there = open_domain("rxeB0,rxeB1");
  polyrail_endpoint_options options;
  polyrail_buffer buffers[3];
  polyrail_message_info info;
  polyrail_peer_info peer_info;
  polyrail_rail_info rails[8];
  uint64_t receive, sends[3], request;
  size_t rail_count;
  int round;
  (void)arguments;
  ZERO(options);
  options.flags = POLYRAIL_ENDPOINT_FLUSHES;
  OK(polyrail_messages_open(here, &options, 4, &near));
  OK(polyrail_messages_open(there, &options, 4, &far));
  OK(polyrail_peers_add(near, NULL, &near_peer));
  OK(polyrail_peers_add(far, NULL, &far_peer));
  if (count > 1)
    connect_by_link();
  else
    connect_by_cards();
  memory from = make_memory(here, BYTES), to = make_memory(there, 2 * BYTES);

  for (round = 0; round < 20; round++) {
    fill(from.bytes, BYTES, (uint64_t)round);
    memset(to.bytes, 0, to.length);
    buffers[0] = buffer_of(&to, 0, BYTES, 1);
    buffers[1] = buffer_of(&to, BYTES, 1000, 2);
    buffers[2] = buffer_of(&to, BYTES + 4096, 0, 3);
    OK(polyrail_messages_receive(far, far_peer, buffers, 3, &receive));
    IS(POLYRAIL_CODE_NOT_NOW, polyrail_messages_test(far, receive, 0, NULL));
    sends[2] = send_some(&from, 5, 0, 3);
    sends[0] = send_some(&from, 0, BYTES - (uint32_t)round, 1);
    sends[1] = send_some(&from, 77, 999, 2);
    info = finish(far, receive, POLYRAIL_TEST_KEEP);
    CHECK(info.count == 3 && info.lengths[0] == BYTES - (uint32_t)round);
    CHECK(info.lengths[1] == 999 && info.lengths[2] == 0);
    CHECK(memcmp(to.bytes, from.bytes, info.lengths[0]) == 0);
    CHECK(memcmp(to.bytes + BYTES, from.bytes + 77, 999) == 0);
    CHECK(to.bytes[BYTES + 999] == 0);
    if (round % 2) {
      OK(polyrail_messages_flush(far, receive));
      info = finish(far, receive, 0);
      CHECK(info.count == 0);
    } else {
      OK(polyrail_messages_forget(far, receive));
    }
    IS(POLYRAIL_CODE_REQUEST, polyrail_messages_test(far, receive, 0, NULL));
    finish(near, sends[0], 0);
    finish(near, sends[1], 0);
    finish(near, sends[2], 0);
    IS(POLYRAIL_CODE_REQUEST, polyrail_messages_test(near, sends[0], 0, NULL));
  }

  /* Too long for the buffer: an error at the sender, and the buffer waits for another one. */
  buffers[0] = buffer_of(&to, 0, 10, 1);
  OK(polyrail_messages_receive(far, far_peer, buffers, 1, &receive));
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  UNTIL(code == POLYRAIL_CODE_RANGE, {
    poll_both();
    code = polyrail_messages_send(near, near_peer, from.region, 0, 11, 1, &request);
    CHECK(code == POLYRAIL_CODE_RANGE || code == POLYRAIL_CODE_NOT_NOW);
  });
  sends[0] = send_some(&from, 0, 10, 1);
  info = finish(far, receive, 0);
  CHECK(info.count == 1 && info.lengths[0] == 10);
  finish(near, sends[0], 0);

  OK(polyrail_peers_rails(near, near_peer, rails, 8, &rail_count));
  CHECK(rail_count == 4 && rails[0].bytes > BYTES && rails[1].bytes > BYTES && rails[1].rail == 1);
  CHECK(strcmp(rails[0].device, is_over_tcp() ? "tcp:127.1.0.1" : "rxeA0") == 0 &&
        strcmp(rails[1].device, is_over_tcp() ? "tcp:127.1.0.2" : "rxeA1") == 0);
  ZERO(peer_info);
  OK(polyrail_peers_info(near, near_peer, &peer_info));
  CHECK(peer_info.state == POLYRAIL_STATE_READY && peer_info.rails == 2 && peer_info.rails_in_service == 2);
  CHECK(peer_info.unreported == 0 && peer_info.has_link == (count > 1));

  /* Given up: what waits fails, its memory is the caller's, and the peer can be removed. */
  OK(polyrail_messages_receive(far, far_peer, buffers, 1, &receive));
  OK(polyrail_peers_fail(far, far_peer));
  code = POLYRAIL_CODE_NOT_NOW;
  ZERO(info);
  UNTIL(code == POLYRAIL_CODE_FAILED, {
    poll_both();
    code = polyrail_messages_test(far, receive, 0, &info);
    CHECK(code == POLYRAIL_CODE_FAILED || code == POLYRAIL_CODE_NOT_NOW);
  });
  CHECK(info.memory == POLYRAIL_MEMORY_QUIET);
  OK(polyrail_peers_info(far, far_peer, &peer_info));
  CHECK(peer_info.state == POLYRAIL_STATE_FAILED && peer_info.words[0] != 0);
  char words[POLYRAIL_MESSAGE_BYTES];
  CHECK(next_event(far, words, sizeof words).kind == POLYRAIL_EVENT_KIND_FAILED);
  code = POLYRAIL_CODE_NOT_NOW;
  UNTIL(code == POLYRAIL_CODE_OK, {
    poll_both();
    code = polyrail_peers_remove(far, far_peer);
  });
  IS(POLYRAIL_CODE_PEER, polyrail_peers_info(far, far_peer, &peer_info));
  if (count > 1) CHECK(next_event(near, words, sizeof words).kind == POLYRAIL_EVENT_KIND_LINK_LOST);

  OK(polyrail_peers_close(near));
  OK(polyrail_peers_close(far));
  free_memory(&from);
  free_memory(&to);
  OK(polyrail_domain_close(here));
  OK(polyrail_domain_close(there));
  printf("messages %s\n", count > 1 ? "over a link" : "by cards");
  return 0;
}
