/* Sends a message from one process to another over TCP. In two terminals of one host, or on two hosts:
 *   cc message.c -o message $(pkg-config --cflags --libs polyrail)
 *   ./message receive 127.0.0.1:7571                # first
 *   ./message send 127.0.0.1:7571 "hello, world"
 * A last argument names the devices, such as lo; by default they are the network interfaces of the host. */
#include <polyrail.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 4096, TAG = 7 };

static polyrail_peers *peers;

/* Ends the program after an error. POLYRAIL_CODE_NOT_NOW is not an error. */
static polyrail_code check(polyrail_code code, const char *call) {
  if (code >= 0) return code;
  fprintf(stderr, "%s: %s: %s\n", call, polyrail_strerror(code), polyrail_last_error());
  exit(1);
}
#define CHECK(call) check(call, #call)

/* Polls until the next event of the peer, and returns its kind. The connection may fail if the peer may close it. */
static uint32_t next_event(int may_end) {
  static char bytes[POLYRAIL_MESSAGE_BYTES], text[6 * POLYRAIL_MESSAGE_BYTES + 1];
  polyrail_event event;
  size_t length;
  memset(&event, 0, sizeof event);
  event.size = sizeof event;
  while (CHECK(polyrail_peers_next_event(peers, &event, bytes, sizeof bytes)) == POLYRAIL_CODE_NOT_NOW)
    CHECK(polyrail_messages_poll(peers, 16));
  if (event.kind == POLYRAIL_EVENT_KIND_NOT_CONNECTED || (event.kind == POLYRAIL_EVENT_KIND_FAILED && !may_end)) {
    /* The text may contain what the peer sent. */
    CHECK(polyrail_printable(bytes, event.length, text, sizeof text, &length));
    fprintf(stderr, "%s: %s\n", polyrail_strerror(event.code), text);
    exit(1);
  }
  return event.kind;
}

/* Polls until a message is sent or received, and returns its length. */
static uint32_t wait_for(uint64_t request) {
  polyrail_message_info info;
  memset(&info, 0, sizeof info);
  info.size = sizeof info;
  while (CHECK(polyrail_messages_test(peers, request, 0, &info)) == POLYRAIL_CODE_NOT_NOW)
    CHECK(polyrail_messages_poll(peers, 16));
  return info.lengths[0];
}

int main(int count, char **arguments) {
  static char memory[ROOM];
  polyrail_domain_options options;
  polyrail_domain *domain;
  polyrail_region *region;
  polyrail_listener *listener = NULL;
  polyrail_link *link;
  uint64_t peer, request;
  int sends = count > 3 && strcmp(arguments[1], "send") == 0 && strlen(arguments[3]) < ROOM;
  if (!sends && (count < 3 || strcmp(arguments[1], "receive") != 0)) {
    fprintf(stderr, "message receive HOST:PORT [DEVICES]\nmessage send HOST:PORT TEXT [DEVICES]\n");
    return 2;
  }

  /* Devices, and memory that they may access. */
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.backend = POLYRAIL_BACKEND_TCP;
  options.devices = arguments[sends ? 4 : 3];
  CHECK(polyrail_domain_open(&options, &domain));
  CHECK(polyrail_region_register(domain, memory, ROOM, POLYRAIL_ACCESS_LOCAL_WRITE | POLYRAIL_ACCESS_REMOTE_WRITE, &region));

  /* A connection with one peer. The side that answers pairs its devices with those of the other. */
  CHECK(polyrail_messages_open(domain, NULL, 1, &peers));
  if (sends) {
    CHECK(polyrail_link_open(arguments[2], NULL, &link));
    CHECK(polyrail_peers_add(peers, NULL, &peer));
  } else {
    CHECK(polyrail_listener_open(arguments[2], NULL, &listener));
    while (CHECK(polyrail_listener_accept(listener, &link)) == POLYRAIL_CODE_NOT_NOW) {
    }
    CHECK(polyrail_peers_add_toward(peers, NULL, link, &peer));
  }
  CHECK(polyrail_peers_meet(peers, peer, link, NULL, 0));
  while (next_event(0) != POLYRAIL_EVENT_KIND_CONNECTED) {
  }

  /* The receiver offers a buffer, and the sender names it by its tag. */
  if (sends) {
    uint32_t length = (uint32_t)strlen(arguments[3]);
    memcpy(memory, arguments[3], length);
    while (CHECK(polyrail_messages_send(peers, peer, region, 0, length, TAG, &request)) == POLYRAIL_CODE_NOT_NOW)
      CHECK(polyrail_messages_poll(peers, 16));
    wait_for(request);
  } else {
    polyrail_buffer buffer = {region, 0, ROOM, TAG};
    while (CHECK(polyrail_messages_receive(peers, peer, &buffer, 1, &request)) == POLYRAIL_CODE_NOT_NOW)
      CHECK(polyrail_messages_poll(peers, 16));
    printf("%.*s\n", (int)wait_for(request), memory);
    /* The sender closes first: then it knows that its message has arrived. */
    uint32_t kind;
    do {
      kind = next_event(1);
    } while (kind != POLYRAIL_EVENT_KIND_LINK_LOST && kind != POLYRAIL_EVENT_KIND_FAILED);
  }

  CHECK(polyrail_peers_close(peers));
  if (listener != NULL) CHECK(polyrail_listener_close(listener));
  CHECK(polyrail_region_close(region));
  CHECK(polyrail_domain_close(domain));
  return 0;
}
