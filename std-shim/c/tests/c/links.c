/* Two sides connect over TCP, exchange messages, lose a rail that comes back, wait for completions, and part.
 *   links [MESSAGES]    this many messages at most, where the machine is so slow that one side would read nothing for
 *                       seconds while the other fills the link */
#include "common.h"

static polyrail_peers *near, *far;
static char words[POLYRAIL_MESSAGE_BYTES];

static void poll_both(void) {
  polyrail_completion done;
  size_t count = 0;
  OK(polyrail_peers_poll(near, &done, 1, &count));
  CHECK(count == 0);
  if (far != near) OK(polyrail_peers_poll(far, &done, 1, &count));
  CHECK(count == 0);
}

static polyrail_event next_event(polyrail_peers *peers) {
  polyrail_event event;
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  ZERO(event);
  UNTIL(code == POLYRAIL_CODE_OK, {
    code = polyrail_peers_next_event(peers, &event, words, sizeof words);
    CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NOT_NOW);
    if (code == POLYRAIL_CODE_NOT_NOW) poll_both();
  });
  return event;
}

static polyrail_event expect(polyrail_peers *peers, polyrail_event_kind kind, uint64_t peer) {
  polyrail_event event = next_event(peers);
  if (event.kind != (uint32_t)kind || event.peer != peer)
    FAIL("event %u of %llx: %.*s", event.kind, (unsigned long long)event.peer, (int)event.length, words);
  return event;
}

static polyrail_link *accept_link(polyrail_listener *listener) {
  polyrail_link *link = NULL;
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  UNTIL(code == POLYRAIL_CODE_OK, {
    poll_both();
    code = polyrail_listener_accept(listener, &link);
    CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NOT_NOW);
  });
  return link;
}

static const char *const TOKEN = "correct horse battery staple";

static void meet(const char *address, polyrail_listener *listener, uint64_t near_peer, uint64_t far_peer) {
  polyrail_link_options options;
  polyrail_link *asks, *asked;
  size_t length = 0;
  ZERO(options);
  options.token = TOKEN;
  OK(polyrail_link_open(address, &options, &asks));
  IS(POLYRAIL_CODE_STATE, polyrail_link_hello(asks, words, sizeof words, &length));
  OK(polyrail_peers_meet(near, near_peer, asks, "who asks", 8));
  IS(POLYRAIL_CODE_HANDLE, polyrail_link_close(asks));
  IS(POLYRAIL_CODE_NOT_NOW, polyrail_peers_say(near, near_peer, "too early", 9));
  asked = accept_link(listener);
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_link_hello(asked, words, 3, &length));
  OK(polyrail_link_hello(asked, words, sizeof words, &length));
  CHECK(length == 8 && memcmp(words, "who asks", 8) == 0);
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_link_peer_address(asked, words, 3, &length));
  OK(polyrail_link_peer_address(asked, words, sizeof words, &length));
  CHECK(strncmp(words, "127.0.0.1:", 10) == 0 && strlen(words) == length);
  OK(polyrail_peers_meet(far, far_peer, asked, NULL, 0));
  CHECK(expect(near, POLYRAIL_EVENT_KIND_CONNECTED, near_peer).length == 0);
  CHECK(expect(far, POLYRAIL_EVENT_KIND_CONNECTED, far_peer).length == 8);
}

/* Many messages, until the other side does not take more, and all of them arrive in order. */
static void say_many(uint64_t near_peer, uint64_t far_peer, uint32_t most) {
  static char message[POLYRAIL_MESSAGE_BYTES];
  uint32_t said = 0, heard = 0;
  polyrail_code code = POLYRAIL_CODE_OK;
  while (code == POLYRAIL_CODE_OK && said < most) {
    memcpy(message, &said, sizeof said);
    code = polyrail_peers_say(near, near_peer, message, sizeof message);
    if (code == POLYRAIL_CODE_OK) said++;
  }
  CHECK(said > 3 && (code == POLYRAIL_CODE_NOT_NOW || said == most));
  while (heard < said) {
    uint32_t number;
    polyrail_event event = expect(far, POLYRAIL_EVENT_KIND_MESSAGE, far_peer);
    CHECK(event.length == sizeof message);
    memcpy(&number, words, sizeof number);
    CHECK(number == heard);
    heard++;
  }
  OK(polyrail_peers_say(far, far_peer, NULL, 0));
  CHECK(expect(near, POLYRAIL_EVENT_KIND_MESSAGE, near_peer).length == 0);
}

static void expect_rail_events(polyrail_peers *peers, uint64_t peer, uint32_t rail) {
  const polyrail_event_kind kinds[] = {POLYRAIL_EVENT_KIND_RAIL_FAILED, POLYRAIL_EVENT_KIND_RAIL_FENCED,
                                       POLYRAIL_EVENT_KIND_RAIL_RETURNED};
  size_t at;
  for (at = 0; at < 3; at++) {
    polyrail_event event = expect(peers, kinds[at], peer);
    CHECK(event.rail == rail && event.length > 10);
  }
}

static void wait_for_one(memory *from, memory *to, uint64_t near_peer, uint64_t far_peer) {
  polyrail_request request = request_of(5, POLYRAIL_OPCODE_SEND_WITH_IMM, from, 0, 100, to);
  polyrail_completion done[2];
  size_t count = 0;
  int fd = -1;
  double begin = now();
  OK(polyrail_peers_wait(near, done, 2, &count, 20));
  CHECK(count == 0 && now() - begin > 0.015);
  OK(polyrail_peers_fd(near, &fd));
  CHECK(fd >= 0);
  OK(polyrail_peers_receive(far, far_peer, 6, to->region, 50, 200));
  request.imm = 42;
  OK(polyrail_peers_post(near, near_peer, &request));
  OK(polyrail_peers_wait(near, done, 2, &count, POLYRAIL_NEVER));
  CHECK(count == 1 && done[0].id == 5 && done[0].opcode == POLYRAIL_OPCODE_SEND);
  OK(polyrail_peers_wait(far, done, 2, &count, 10000));
  CHECK(count == 1 && done[0].id == 6 && done[0].bytes == 100 && done[0].imm == 42);
  CHECK(done[0].flags == (POLYRAIL_COMPLETION_RECEIVE | POLYRAIL_COMPLETION_IMM));
  CHECK(memcmp(to->bytes + 50, from->bytes, 100) == 0);
  OK(polyrail_peers_poll_armed(near, done, 2, &count));
  CHECK(count == 0);
}

/* An event that is not taken does not delay requests. */
static void wait_beside_an_event(memory *from, memory *to, uint64_t near_peer, uint64_t far_peer) {
  polyrail_request request = request_of(7, POLYRAIL_OPCODE_WRITE, from, 0, 100, to);
  polyrail_completion done;
  polyrail_event event;
  size_t count = 0;
  ZERO(event);
  OK(polyrail_peers_say(far, far_peer, "later", 5));
  UNTIL(polyrail_peers_next_event(near, &event, NULL, 0) == POLYRAIL_CODE_TOO_SHORT, poll_both());
  OK(polyrail_peers_post(near, near_peer, &request));
  UNTIL(count == 1, OK(polyrail_peers_wait(near, &done, 1, &count, 1000)));
  CHECK(done.id == 7 && done.status == 0);
  expect(near, POLYRAIL_EVENT_KIND_MESSAGE, near_peer);
}

/* The listener has refused one peer, for this reason. */
static void expect_refused(polyrail_listener *listener, const char *reason) {
  char line[256];
  size_t length = 0;
  IS(POLYRAIL_CODE_TOO_SHORT, polyrail_listener_next_refused(listener, line, 9, &length));
  CHECK(length > 9);
  OK(polyrail_listener_next_refused(listener, line, sizeof line, &length));
  CHECK(strlen(line) == length && strncmp(line, "127.0.0.1:", 10) == 0 && strstr(line, reason) != NULL);
  IS(POLYRAIL_CODE_NOT_NOW, polyrail_listener_next_refused(listener, line, sizeof line, &length));
}

int main(int count, char **arguments) {
  polyrail_domain *here = open_domain("a0,a1"), *there = open_domain("b0,b1");
  polyrail_endpoint_options options;
  polyrail_link_options link_options, other_options;
  polyrail_listener *listener;
  polyrail_link *link;
  char address[64];
  size_t length = 0;
  uint64_t near_peer, far_peer, second, third;
  polyrail_event event;
  ZERO(options);
  options.rail_failure = POLYRAIL_RAIL_FAILURE_REROUTE;
  options.flags = POLYRAIL_ENDPOINT_EVENTS;
  OK(polyrail_peers_open(here, &options, &near));
  OK(polyrail_peers_open(there, &options, &far));
  OK(polyrail_peers_add(near, NULL, &near_peer));
  OK(polyrail_peers_add(far, NULL, &far_peer));
  ZERO(link_options);
  link_options.token = TOKEN;
  OK(polyrail_listener_open("127.0.0.1:0", &link_options, &listener));
  OK(polyrail_listener_address(listener, address, sizeof address, &length));
  CHECK(strlen(address) == length && strncmp(address, "127.0.0.1:", 10) == 0);
  IS(POLYRAIL_CODE_NOT_NOW, polyrail_listener_accept(listener, &link));
  CHECK(info_of(near, near_peer).state == POLYRAIL_STATE_NEW);
  meet(address, listener, near_peer, far_peer);
  CHECK(info_of(near, near_peer).state == POLYRAIL_STATE_READY && info_of(near, near_peer).has_link == 1);
  say_many(near_peer, far_peer, count > 1 ? (uint32_t)atoi(arguments[1]) : 100000);

  /* A rail fails, and comes back by what the link carries. */
  memory from = make_memory(here, 1 << 20), to = make_memory(there, 1 << 20);
  fill(from.bytes, from.length, 3);
  OK(polyrail_peers_fail_rail(near, near_peer, 2));
  expect_rail_events(near, near_peer, 2);
  expect_rail_events(far, far_peer, 2);
  UNTIL(info_of(near, near_peer).rails_in_service == 4 && info_of(far, far_peer).rails_in_service == 4, poll_both());
  wait_for_one(&from, &to, near_peer, far_peer);
  wait_beside_an_event(&from, &to, near_peer, far_peer);

  /* A peer of its own object. */
  OK(polyrail_peers_add(near, NULL, &second));
  OK(polyrail_peers_add(near, NULL, &third));
  CHECK((second & 0xffff) == 1 && (third & 0xffff) == 2);
  OK(polyrail_link_open(address, &link_options, &link));
  OK(polyrail_peers_meet(near, second, link, NULL, 0));
  OK(polyrail_peers_meet(near, third, accept_link(listener), NULL, 0));
  event = next_event(near);
  CHECK(event.kind == POLYRAIL_EVENT_KIND_CONNECTED);
  event = next_event(near);
  CHECK(event.kind == POLYRAIL_EVENT_KIND_CONNECTED);
  OK(polyrail_peers_remove(near, second));
  expect(near, POLYRAIL_EVENT_KIND_LINK_LOST, third);
  OK(polyrail_peers_remove(near, third));

  /* A link that is refused: both sides know why. */
  OK(polyrail_peers_add(near, NULL, &second));
  OK(polyrail_link_open(address, &link_options, &link));
  OK(polyrail_peers_meet(near, second, link, NULL, 0));
  OK(polyrail_link_refuse(accept_link(listener), "nobody of this name lives here"));
  event = expect(near, POLYRAIL_EVENT_KIND_NOT_CONNECTED, second);
  words[event.length] = 0;
  CHECK(event.code == POLYRAIL_CODE_LINK && strstr(words, "nobody of this name lives here") != NULL);
  OK(polyrail_peers_remove(near, second));

  /* The first address is that of another process, which refuses. */
  polyrail_listener *stranger;
  char list[160];
  ZERO(other_options);
  other_options.token = "the token of another process";
  OK(polyrail_listener_open("127.0.0.1:0", &other_options, &stranger));
  OK(polyrail_listener_address(stranger, list, sizeof list, &length));
  snprintf(list + length, sizeof list - length, ", %s", address);
  OK(polyrail_peers_add(near, NULL, &second));
  OK(polyrail_peers_add(near, NULL, &third));
  OK(polyrail_link_open(list, &link_options, &link));
  OK(polyrail_peers_meet(near, second, link, NULL, 0));
  link = NULL;
  UNTIL(link != NULL, {
    polyrail_link *wrong;
    poll_both();
    IS(POLYRAIL_CODE_NOT_NOW, polyrail_listener_accept(stranger, &wrong));
    if (polyrail_listener_accept(listener, &link) != POLYRAIL_CODE_OK) link = NULL;
  });
  OK(polyrail_peers_meet(near, third, link, NULL, 0));
  for (int connected = 0; connected < 2; connected++)
    CHECK(next_event(near).kind == POLYRAIL_EVENT_KIND_CONNECTED);
  OK(polyrail_peers_remove(near, second));
  expect(near, POLYRAIL_EVENT_KIND_LINK_LOST, third);
  OK(polyrail_peers_remove(near, third));
  expect_refused(stranger, "the peer has another token than this side");
  OK(polyrail_listener_close(stranger));

  /* Without the token there is no answer; a missing listener is an event, too. */
  OK(polyrail_peers_add(near, NULL, &second));
  OK(polyrail_link_open(address, NULL, &link));
  OK(polyrail_peers_meet(near, second, link, NULL, 0));
  polyrail_event refused;
  ZERO(refused);
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  UNTIL(code == POLYRAIL_CODE_OK, {
    poll_both();
    IS(POLYRAIL_CODE_NOT_NOW, polyrail_listener_accept(listener, &link));
    code = polyrail_peers_next_event(near, &refused, words, sizeof words);
  });
  CHECK(refused.kind == POLYRAIL_EVENT_KIND_NOT_CONNECTED && refused.code == POLYRAIL_CODE_MISMATCH);
  expect_refused(listener, "this side has a token, but the peer sent no proof of a token");
  OK(polyrail_listener_close(listener));
  OK(polyrail_peers_replace(near, second, NULL, &third));
  CHECK((second & 0xffff) == (third & 0xffff) && second != third);
  OK(polyrail_link_open(address, NULL, &link));
  OK(polyrail_peers_meet(near, third, link, NULL, 0));
  event = expect(near, POLYRAIL_EVENT_KIND_NOT_CONNECTED, third);
  CHECK(event.code == POLYRAIL_CODE_LINK && event.length > 10);

  /* The other side leaves. */
  OK(polyrail_peers_close(far));
  far = near;
  expect(near, POLYRAIL_EVENT_KIND_LINK_LOST, near_peer);
  IS(POLYRAIL_CODE_STATE, polyrail_peers_say(near, near_peer, "anybody?", 8));
  OK(polyrail_peers_close(near));
  free_memory(&from);
  free_memory(&to);
  OK(polyrail_domain_close(here));
  OK(polyrail_domain_close(there));
  printf("links\n");
  return 0;
}
