/* Two processes, each with two addresses of the loopback interface as devices, connect over a link: one writes to the
 * memory of the other, reads it back, and both send messages. A rail fails meanwhile.
 *   processes MIB */
#include "common.h"

#include <sys/wait.h>
#include <unistd.h>

#define CHUNK (1u << 20)
#define TAG 7

static polyrail_peers *peers, *p2p;
static char words[POLYRAIL_MESSAGE_BYTES];

static void step(void) {
  polyrail_completion none;
  size_t count = 0;
  OK(polyrail_peers_poll(peers, &none, 0, &count));
  OK(polyrail_messages_poll(p2p, 64));
}

/* Takes events of rails until one of another kind comes, which must be of this kind. */
static polyrail_event expect(polyrail_peers *of, polyrail_event_kind kind) {
  polyrail_event event;
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  ZERO(event);
  for (;;) {
    UNTIL(code == POLYRAIL_CODE_OK, {
      step();
      code = polyrail_peers_next_event(of, &event, words, sizeof words - 1);
      CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NOT_NOW);
    });
    code = POLYRAIL_CODE_NOT_NOW;
    words[event.length] = 0;
    if (event.kind == (uint32_t)kind) return event;
    if (event.kind < POLYRAIL_EVENT_KIND_RAIL_FAILED || event.kind == POLYRAIL_EVENT_KIND_FAILED)
      FAIL("event %u: %s", event.kind, words);
  }
}

static polyrail_domain *open_devices(const char *devices) {
  polyrail_domain_options options;
  polyrail_endpoint_options endpoint;
  polyrail_domain *domain;
  ZERO(options);
  options.backend = POLYRAIL_BACKEND_TCP;
  options.devices = devices;
  OK(polyrail_domain_open(&options, &domain));
  ZERO(endpoint);
  endpoint.rail_failure = POLYRAIL_RAIL_FAILURE_REROUTE;
  OK(polyrail_peers_open(domain, &endpoint, &peers));
  OK(polyrail_messages_open(domain, &endpoint, 1, &p2p));
  return domain;
}

static polyrail_region *registered(polyrail_domain *domain, unsigned char *bytes, size_t length) {
  polyrail_region *region;
  CHECK(bytes != NULL);
  OK(polyrail_region_register(domain, bytes, length, ALL_ACCESS, &region));
  return region;
}

static uint64_t met(polyrail_peers *of, polyrail_link *link, const void *hello, size_t length) {
  uint64_t peer;
  OK(polyrail_peers_add(of, NULL, &peer));
  OK(polyrail_peers_meet(of, peer, link, hello, length));
  return peer;
}

static polyrail_link *accepted(polyrail_listener *listener) {
  polyrail_link *link = NULL;
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  UNTIL(code == POLYRAIL_CODE_OK, {
    step();
    code = polyrail_listener_accept(listener, &link);
    CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NOT_NOW);
  });
  return link;
}

static void message(uint64_t request) {
  polyrail_message_info info;
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  ZERO(info);
  UNTIL(code == POLYRAIL_CODE_OK, {
    step();
    code = polyrail_messages_test(p2p, request, 0, &info);
    CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NOT_NOW);
  });
  CHECK(info.memory == POLYRAIL_MEMORY_DONE);
}

static void receive_message(uint64_t peer, polyrail_region *region, uint32_t length) {
  polyrail_buffer buffer = {region, 0, length, TAG};
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  uint64_t request = 0;
  UNTIL(code == POLYRAIL_CODE_OK, {
    code = polyrail_messages_receive(p2p, peer, &buffer, 1, &request);
    CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NOT_NOW);
    step();
  });
  message(request);
}

static void send_message(uint64_t peer, polyrail_region *region, uint32_t length) {
  polyrail_code code = POLYRAIL_CODE_NOT_NOW;
  uint64_t request = 0;
  UNTIL(code == POLYRAIL_CODE_OK, {
    code = polyrail_messages_send(p2p, peer, region, 0, length, TAG, &request);
    CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NOT_NOW);
    step();
  });
  message(request);
}

static void part(polyrail_domain *domain, polyrail_region *region, unsigned char *bytes) {
  OK(polyrail_peers_close(peers));
  OK(polyrail_peers_close(p2p));
  OK(polyrail_region_close(region));
  OK(polyrail_domain_close(domain));
  free(bytes);
}

/* Moves all chunks between the memory of this process and that of the other; a rail fails after half of them. */
static void move(uint64_t peer, uint32_t opcode, polyrail_region *region, polyrail_remote *remote, uint32_t chunks,
                 uint32_t rail) {
  uint32_t posted = 0, reported = 0;
  int has_failed = 0;
  while (reported < chunks) {
    polyrail_completion done[8];
    size_t count = 0, at;
    if (posted < chunks) {
      polyrail_request request;
      memset(&request, 0, sizeof request);
      request.id = posted;
      request.opcode = opcode;
      request.region = region;
      request.remote = remote;
      request.offset = request.remote_offset = (uint64_t)posted * CHUNK;
      request.length = CHUNK;
      polyrail_code code = polyrail_peers_post(peers, peer, &request);
      CHECK(code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_NOT_NOW);
      if (code == POLYRAIL_CODE_OK) posted++;
    }
    OK(polyrail_peers_poll(peers, done, 8, &count));
    for (at = 0; at < count; at++) {
      CHECK(done[at].id == reported && done[at].status == POLYRAIL_STATUS_SUCCESS);
      reported++;
    }
    if (!has_failed && reported >= chunks / 2) {
      OK(polyrail_peers_fail_rail(peers, peer, rail));
      has_failed = 1;
    }
  }
  UNTIL(info_of(peers, peer).rails_in_service == 4, step());
}

/* The process that moves. */
static int near(const char *address, uint32_t mib) {
  polyrail_domain *domain = open_devices("127.0.2.1,127.0.2.2");
  size_t length = (size_t)mib * CHUNK;
  unsigned char *bytes = (unsigned char *)malloc(length);
  polyrail_region *region = registered(domain, bytes, length);
  polyrail_remote *remote;
  polyrail_link *link;
  polyrail_request last;
  polyrail_completion done;
  size_t count;
  OK(polyrail_link_open(address, NULL, &link));
  uint64_t peer = met(peers, link, NULL, 0);
  polyrail_event event = expect(peers, POLYRAIL_EVENT_KIND_CONNECTED);
  /* Its hello is what is needed to access its memory. */
  OK(polyrail_remote_import(words, event.length, &remote));
  OK(polyrail_link_open(address, NULL, &link));
  uint64_t friend_ = met(p2p, link, NULL, 0);
  expect(p2p, POLYRAIL_EVENT_KIND_CONNECTED);

  fill(bytes, length, 1);
  move(peer, POLYRAIL_OPCODE_WRITE, region, remote, mib, 1);
  OK(polyrail_peers_say(peers, peer, "written", 7));
  expect(peers, POLYRAIL_EVENT_KIND_MESSAGE);
  memset(bytes, 0, length);
  move(peer, POLYRAIL_OPCODE_READ, region, remote, mib, 2);
  {
    unsigned char *expected = (unsigned char *)malloc(length);
    CHECK(expected != NULL);
    fill(expected, length, 2);
    CHECK(memcmp(bytes, expected, length) == 0);
    free(expected);
  }
  memset(&last, 0, sizeof last);
  last.opcode = POLYRAIL_OPCODE_WRITE_WITH_IMM;
  last.region = region;
  last.remote = remote;
  last.length = 8;
  last.imm = 0x1234;
  OK(polyrail_peers_post(peers, peer, &last));
  count = 0;
  UNTIL(count == 1, OK(polyrail_peers_poll(peers, &done, 1, &count)));
  CHECK(done.status == POLYRAIL_STATUS_SUCCESS);
  fill(bytes, length, 3);
  send_message(friend_, region, (uint32_t)length);
  receive_message(friend_, region, (uint32_t)length);
  CHECK(bytes[0] == 0xee && bytes[length - 1] == 0xee);
  OK(polyrail_peers_say(peers, peer, "done", 4));
  expect(peers, POLYRAIL_EVENT_KIND_LINK_LOST);
  OK(polyrail_remote_close(remote));
  part(domain, region, bytes);
  return 0;
}

/* The process whose memory is accessed. */
static void far(polyrail_listener *listener, uint32_t mib) {
  polyrail_domain *domain = open_devices("127.0.1.1,tcp:127.0.1.2");
  size_t length = (size_t)mib * CHUNK, count = 0, at;
  unsigned char *bytes = (unsigned char *)malloc(length), *expected = (unsigned char *)malloc(length);
  polyrail_region *region = registered(domain, bytes, length);
  polyrail_completion done;
  char travels[POLYRAIL_REMOTE_BYTES];
  OK(polyrail_region_export(region, travels, sizeof travels, &count));
  uint64_t peer = met(peers, accepted(listener), travels, count);
  OK(polyrail_peers_receive(peers, peer, 5, NULL, 0, 0));
  expect(peers, POLYRAIL_EVENT_KIND_CONNECTED);
  uint64_t friend_ = met(p2p, accepted(listener), NULL, 0);
  expect(p2p, POLYRAIL_EVENT_KIND_CONNECTED);

  expect(peers, POLYRAIL_EVENT_KIND_MESSAGE);
  CHECK(strcmp(words, "written") == 0 && expected != NULL);
  fill(expected, length, 1);
  CHECK(memcmp(bytes, expected, length) == 0);
  fill(bytes, length, 2);
  OK(polyrail_peers_say(peers, peer, "read", 4));
  count = 0;
  UNTIL(count == 1, {
    OK(polyrail_peers_poll(peers, &done, 1, &count));
    OK(polyrail_messages_poll(p2p, 64));
  });
  CHECK(done.id == 5 && done.status == POLYRAIL_STATUS_SUCCESS && done.imm == 0x1234);
  receive_message(friend_, region, (uint32_t)length);
  fill(expected, length, 3);
  CHECK(memcmp(bytes, expected, length) == 0);
  for (at = 0; at < length; at++) bytes[at] = 0xee;
  send_message(friend_, region, (uint32_t)length);
  expect(peers, POLYRAIL_EVENT_KIND_MESSAGE);
  CHECK(strcmp(words, "done") == 0);
  free(expected);
  part(domain, region, bytes);
}

int main(int count, char **arguments) {
  uint32_t mib = (uint32_t)(count > 1 ? atoi(arguments[1]) : 16);
  polyrail_listener *listener;
  char address[64], size[16];
  size_t length;
  int status = 0;
  pid_t child;
  if (count > 2) return near(arguments[2], mib);
  OK(polyrail_listener_open("127.0.0.1:0", NULL, &listener));
  OK(polyrail_listener_address(listener, address, sizeof address, &length));
  snprintf(size, sizeof size, "%u", mib);
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    execlp(arguments[0], arguments[0], size, address, (char *)NULL);
    _exit(127);
  }
  far(listener, mib);
  OK(polyrail_listener_close(listener));
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  printf("%u MiB each way between two processes, byte-identical\n", mib);
  return 0;
}
