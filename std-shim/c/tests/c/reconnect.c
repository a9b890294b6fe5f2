/* The link of two peers goes through a relay, which cuts it: it reconnects, and carries messages of programs and of rails.
 * Once it ends in order it is lost, and the peers go on without. */
#include "common.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

/* Ways through the relay at the same time. */
#define WAYS 8

/* A thread that listens and carries bytes between each that connects and the listener behind it. What is written to
 * its orders: 'c' cuts all ways, 'e' ends them and it. */
typedef struct {
  pthread_t thread;
  int listens, behind, orders[2];
  int ends[WAYS][2];
} relay;

static struct sockaddr_in loopback(int port) {
  struct sockaddr_in address;
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_port = htons((uint16_t)port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/* As one end closes. */
static void hang_up(int *ends) {
  if (ends[0] >= 0) close(ends[0]), close(ends[1]);
  ends[0] = ends[1] = -1;
}

/* As a network breaks. */
static void cut(int *ends) {
  const struct linger at_once = {1, 0};
  int end;
  for (end = 0; end < 2 && ends[0] >= 0; end++)
    CHECK(setsockopt(ends[end], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
  hang_up(ends);
}

static void take(relay *by) {
  struct sockaddr_in behind = loopback(by->behind);
  int way = 0, asks = accept(by->listens, NULL, NULL), on = socket(AF_INET, SOCK_STREAM, 0);
  while (way < WAYS && by->ends[way][0] >= 0) way++;
  if (asks < 0 || way == WAYS || connect(on, (struct sockaddr *)&behind, sizeof behind) != 0) {
    if (asks >= 0) close(asks);
    close(on);
    return;
  }
  by->ends[way][0] = asks;
  by->ends[way][1] = on;
}

static void carry(int *ends, int from) {
  char bytes[4096];
  ssize_t sent = 0, count = read(ends[from], bytes, sizeof bytes);
  while (count > 0 && sent >= 0 && sent < count) {
    ssize_t part = send(ends[!from], bytes + sent, (size_t)(count - sent), MSG_NOSIGNAL);
    sent = part < 0 ? -1 : sent + part;
  }
  if (count <= 0 || sent < 0) hang_up(ends);
}

static void *work(void *argument) {
  relay *by = (relay *)argument;
  struct pollfd fds[2 + 2 * WAYS];
  char order = 0;
  int way, from;
  while (order != 'e') {
    fds[0].fd = by->listens;
    fds[1].fd = by->orders[0];
    for (way = 0; way < WAYS; way++)
      for (from = 0; from < 2; from++) fds[2 + 2 * way + from].fd = by->ends[way][from];
    for (way = 0; way < 2 + 2 * WAYS; way++) fds[way].events = POLLIN, fds[way].revents = 0;
    poll(fds, 2 + 2 * WAYS, -1);
    for (way = 0; way < WAYS; way++)
      for (from = 0; from < 2; from++)
        if (by->ends[way][0] >= 0 && fds[2 + 2 * way + from].revents != 0) carry(by->ends[way], from);
    if (fds[1].revents != 0) {
      CHECK(read(by->orders[0], &order, 1) == 1);
      for (way = 0; way < WAYS; way++) order == 'c' ? cut(by->ends[way]) : hang_up(by->ends[way]);
    }
    if (fds[0].revents != 0 && order != 'e') take(by);
  }
  close(by->listens);
  return NULL;
}

static void order(relay *by, char what) {
  CHECK(write(by->orders[1], &what, 1) == 1);
}

/* Its port. */
static int start(relay *by, int behind) {
  struct sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  int way;
  by->behind = behind;
  CHECK(pipe(by->orders) == 0);
  for (way = 0; way < WAYS; way++) by->ends[way][0] = by->ends[way][1] = -1;
  by->listens = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(bind(by->listens, (struct sockaddr *)&address, sizeof address) == 0 && listen(by->listens, WAYS) == 0);
  CHECK(getsockname(by->listens, (struct sockaddr *)&address, &length) == 0);
  CHECK(pthread_create(&by->thread, NULL, work, by) == 0);
  return ntohs(address.sin_port);
}

static polyrail_peers *near, *far;
static uint64_t near_peer, far_peer;
static polyrail_listener *listener;
static char words[POLYRAIL_MESSAGE_BYTES];

/* The listener reconnects links when it is asked for new ones. */
static void drive(void) {
  polyrail_completion done;
  polyrail_link *none;
  size_t count = 0;
  OK(polyrail_peers_poll(near, &done, 1, &count));
  OK(polyrail_peers_poll(far, &done, 1, &count));
  IS(POLYRAIL_CODE_NOT_NOW, polyrail_listener_accept(listener, &none));
}

static polyrail_event expect(polyrail_peers *peers, polyrail_event_kind kind, const char *with) {
  polyrail_event event;
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  ZERO(event);
  UNTIL(code == POLYRAIL_CODE_OK, {
    drive();
    code = polyrail_peers_next_event(peers, &event, words, sizeof words);
  });
  words[event.length < sizeof words ? event.length : 0] = 0;
  if (event.kind != (uint32_t)kind || (with != NULL && strcmp(words, with) != 0))
    FAIL("event %u: %s", event.kind, words);
  return event;
}

static void exchange_words(void) {
  OK(polyrail_peers_say(near, near_peer, "there", 5));
  expect(far, POLYRAIL_EVENT_KIND_MESSAGE, "there");
  OK(polyrail_peers_say(far, far_peer, "and back", 8));
  expect(near, POLYRAIL_EVENT_KIND_MESSAGE, "and back");
}

static void expect_rail(polyrail_peers *peers, uint32_t rail) {
  CHECK(expect(peers, POLYRAIL_EVENT_KIND_RAIL_FAILED, NULL).rail == rail);
  CHECK(expect(peers, POLYRAIL_EVENT_KIND_RAIL_FENCED, NULL).rail == rail);
  CHECK(expect(peers, POLYRAIL_EVENT_KIND_RAIL_RETURNED, NULL).rail == rail);
}

int main(void) {
  static relay by;
  polyrail_domain *domain = open_domain("a0,a1");
  polyrail_endpoint_options options;
  polyrail_link *asks, *asked = NULL;
  char address[64];
  size_t length;
  int port;
  uint32_t rail;
  ZERO(options);
  options.rail_failure = POLYRAIL_RAIL_FAILURE_REROUTE;
  OK(polyrail_peers_open(domain, &options, &near));
  OK(polyrail_peers_open(domain, &options, &far));
  OK(polyrail_peers_add(near, NULL, &near_peer));
  OK(polyrail_peers_add(far, NULL, &far_peer));
  OK(polyrail_listener_open("127.0.0.1:0", NULL, &listener));
  OK(polyrail_listener_address(listener, address, sizeof address, &length));
  port = start(&by, atoi(strrchr(address, ':') + 1));
  snprintf(address, sizeof address, "127.0.0.1:%d", port);
  OK(polyrail_link_open(address, NULL, &asks));
  OK(polyrail_peers_meet(near, near_peer, asks, NULL, 0));
  UNTIL(asked != NULL, {
    polyrail_completion none;
    OK(polyrail_peers_poll(near, &none, 0, &length));
    polyrail_listener_accept(listener, &asked);
  });
  OK(polyrail_peers_meet(far, far_peer, asked, NULL, 0));
  expect(near, POLYRAIL_EVENT_KIND_CONNECTED, NULL);
  expect(far, POLYRAIL_EVENT_KIND_CONNECTED, NULL);
  exchange_words();
  for (rail = 1; rail <= 3; rail++) {
    order(&by, 'c');
    expect(near, POLYRAIL_EVENT_KIND_LINK_RESUMED, NULL);
    expect(far, POLYRAIL_EVENT_KIND_LINK_RESUMED, NULL);
    exchange_words();
    OK(polyrail_peers_fail_rail(near, near_peer, rail));
    expect_rail(near, rail);
    expect_rail(far, rail);
    UNTIL(info_of(near, near_peer).rails_in_service == 4 && info_of(far, far_peer).rails_in_service == 4, drive());
  }
  order(&by, 'e');
  CHECK(pthread_join(by.thread, NULL) == 0);
  expect(near, POLYRAIL_EVENT_KIND_LINK_LOST, NULL);
  expect(far, POLYRAIL_EVENT_KIND_LINK_LOST, NULL);
  CHECK(info_of(near, near_peer).rails_in_service == 4 && info_of(far, far_peer).rails_in_service == 4);
  OK(polyrail_listener_close(listener));
  OK(polyrail_peers_close(near));
  OK(polyrail_peers_close(far));
  OK(polyrail_domain_close(domain));
  printf("reconnect\n");
  return 0;
}
