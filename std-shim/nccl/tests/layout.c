/* The layouts of NCCL's network plugins, versions 8 to 12, as a compiler for C sees them, and the plugin as a program in C
 * does.
 *     layout PLUGIN
 * With -DNCCL_HEADERS and the directory of the public headers (plugins/net/example/nccl) in the search path, the numbers
 * are checked against those as well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define POINTERS(n) ((n) * sizeof(void *))

struct merged4 { int count, devices[4]; };
struct merged8 { int count, devices[8]; };

struct properties8 {
  const char *name, *pci_path;
  uint64_t guid;
  int ptr_support, reg_is_global, speed, port;
  float latency;
  int max_comms, max_recvs, type, version;
};

struct properties9 {
  const char *name, *pci_path;
  uint64_t guid;
  int ptr_support, reg_is_global, force_flush, speed, port;
  float latency;
  int max_comms, max_recvs, type, version;
  struct merged4 merged;
  size_t max_p2p, max_coll;
};

struct properties11 {
  const char *name, *pci_path;
  uint64_t guid;
  int ptr_support, reg_is_global, force_flush, speed, port;
  float latency;
  int max_comms, max_recvs, type, version;
  struct merged4 merged;
  size_t max_p2p, max_coll;
  int max_multi;
};

struct properties12 {
  const char *name, *pci_path;
  uint64_t guid;
  int ptr_support, reg_is_global, force_flush, speed, port;
  float latency;
  int max_comms, max_recvs, type, version;
  struct merged8 merged;
  size_t max_p2p, max_coll;
  int max_multi;
  int16_t rail, plane;
};

_Static_assert(sizeof(struct properties8) == 64, "version 8");
_Static_assert(offsetof(struct properties8, speed) == 32, "speed in version 8");
_Static_assert(offsetof(struct properties8, version) == 56, "netDeviceVersion in version 8");
_Static_assert(sizeof(struct properties9) == 104, "version 9");
_Static_assert(offsetof(struct properties9, force_flush) == 32, "forceFlush in version 9");
_Static_assert(offsetof(struct properties9, merged) == 64, "vProps in version 9");
_Static_assert(offsetof(struct properties9, max_p2p) == 88, "maxP2pBytes in version 9");
_Static_assert(sizeof(struct properties11) == 112, "version 11");
_Static_assert(offsetof(struct properties11, max_multi) == 104, "maxMultiRequestSize in version 11");
_Static_assert(sizeof(struct properties12) == 128, "version 12");
_Static_assert(offsetof(struct properties12, merged) == 64, "vProps in version 12");
_Static_assert(offsetof(struct properties12, max_p2p) == 104, "maxP2pBytes in version 12");
_Static_assert(offsetof(struct properties12, plane) == 126, "planeId in version 12");

#ifdef NCCL_HEADERS
#include "net.h"
#define SAME(ours, theirs, member, its) \
  _Static_assert(offsetof(struct ours, member) == offsetof(theirs, its), #theirs "." #its)
#define COMMON(ours, theirs) \
  _Static_assert(sizeof(struct ours) == sizeof(theirs), #theirs); \
  SAME(ours, theirs, name, name); \
  SAME(ours, theirs, pci_path, pciPath); \
  SAME(ours, theirs, guid, guid); \
  SAME(ours, theirs, ptr_support, ptrSupport); \
  SAME(ours, theirs, reg_is_global, regIsGlobal); \
  SAME(ours, theirs, speed, speed); \
  SAME(ours, theirs, port, port); \
  SAME(ours, theirs, latency, latency); \
  SAME(ours, theirs, max_comms, maxComms); \
  SAME(ours, theirs, max_recvs, maxRecvs); \
  SAME(ours, theirs, type, netDeviceType); \
  SAME(ours, theirs, version, netDeviceVersion)
#define SINCE9(ours, theirs) \
  COMMON(ours, theirs); \
  SAME(ours, theirs, force_flush, forceFlush); \
  SAME(ours, theirs, merged, vProps); \
  SAME(ours, theirs, max_p2p, maxP2pBytes); \
  SAME(ours, theirs, max_coll, maxCollBytes)
COMMON(properties8, ncclNetProperties_v8_t);
SINCE9(properties9, ncclNetProperties_v9_t);
SINCE9(properties9, ncclNetProperties_v10_t);
SINCE9(properties11, ncclNetProperties_v11_t);
SAME(properties11, ncclNetProperties_v11_t, max_multi, maxMultiRequestSize);
SINCE9(properties12, ncclNetProperties_v12_t);
SAME(properties12, ncclNetProperties_v12_t, max_multi, maxMultiRequestSize);
SAME(properties12, ncclNetProperties_v12_t, rail, railId);
SAME(properties12, ncclNetProperties_v12_t, plane, planeId);
#define PLACE(version, member, place) \
  _Static_assert(offsetof(ncclNet_v##version##_t, member) == POINTERS(place), #member " in version " #version)
#define PLACES(version) \
  PLACE(version, name, 0); \
  PLACE(version, init, 1); \
  PLACE(version, devices, 2); \
  PLACE(version, getProperties, 3); \
  PLACE(version, listen, 4); \
  PLACE(version, connect, 5); \
  PLACE(version, accept, 6); \
  PLACE(version, regMr, 7); \
  PLACE(version, regMrDmaBuf, 8); \
  PLACE(version, deregMr, 9); \
  PLACE(version, isend, 10); \
  PLACE(version, irecv, 11); \
  PLACE(version, iflush, 12); \
  PLACE(version, test, 13); \
  PLACE(version, closeSend, 14); \
  PLACE(version, closeRecv, 15); \
  PLACE(version, closeListen, 16); \
  PLACE(version, getDeviceMr, 17); \
  PLACE(version, irecvConsumed, 18)
PLACES(8);
PLACES(9);
PLACES(10);
PLACES(11);
PLACES(12);
PLACE(9, makeVDevice, 19);
PLACE(10, makeVDevice, 19);
PLACE(11, makeVDevice, 19);
PLACE(12, makeVDevice, 19);
PLACE(11, finalize, 20);
PLACE(12, finalize, 20);
PLACE(11, setNetAttr, 21);
PLACE(12, setNetAttr, 21);
_Static_assert(NCCL_NET_HANDLE_MAXSIZE == 128 && NCCL_NET_MAX_REQUESTS == 32, "limits");
_Static_assert(NCCL_PTR_HOST == 1 && NCCL_PTR_CUDA == 2 && NCCL_PTR_DMABUF == 4, "memory");
_Static_assert(NCCL_NET_OPTIONAL_RECV_COMPLETION == 1, "the hint");
_Static_assert(ncclSystemError == 2 && ncclInternalError == 3 && ncclInvalidArgument == 4, "codes");
_Static_assert(ncclInvalidUsage == 5 && ncclRemoteError == 6, "codes");
_Static_assert(NCCL_LOG_WARN == 2 && NCCL_LOG_INFO == 3 && NCCL_LOG_TRACE == 5, "levels");
#endif

/* A logger as NCCL's: it takes what the format says. */
static char logged[1000];
#include <stdarg.h>
static void logger(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  (void)level, (void)flags, (void)file, (void)line;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(logged, sizeof logged, format, arguments);
  va_end(arguments);
}

typedef void (*logger_t)(int, unsigned long, const char *, int, const char *, ...);

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "layout.c:%d: %s; logged: %s\n", __LINE__, #condition, logged); \
      return 1; \
    } \
  } while (0)

/* Properties are written where they belong, and nothing behind them. */
#define PROPERTIES(kind, table, flush) \
  do { \
    union { \
      struct kind p; \
      unsigned char bytes[sizeof(struct kind) + 64]; \
    } u; \
    memset(&u, 0x5a, sizeof u); \
    CHECK(((int (*)(int, void *))(table)[3])(0, &u) == 0); \
    CHECK(strcmp(u.p.name, "s0") == 0 && u.p.pci_path == NULL && u.p.guid != 0); \
    CHECK(u.p.ptr_support == 1 && u.p.reg_is_global == 1 && u.p.speed == 100000 && u.p.port == 1); \
    CHECK(u.p.latency == 0 && u.p.max_comms == 65536 && u.p.max_recvs == 8); \
    CHECK(u.p.type == 0 && u.p.version == 0); \
    flush; \
    for (size_t i = sizeof(struct kind); i < sizeof u; i++) CHECK(u.bytes[i] == 0x5a); \
  } while (0)
#define MERGED \
  CHECK(u.p.force_flush == 0 && u.p.merged.count == 1 && u.p.merged.devices[0] == 0); \
  CHECK(u.p.max_p2p == 1 << 30 && u.p.max_coll == 1 << 30)

int main(int argc, char **argv) {
  CHECK(argc == 2);
  void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!plugin) return fprintf(stderr, "%s\n", dlerror()), 1;
  void **v8 = dlsym(plugin, "ncclNetPlugin_v8"), **v9 = dlsym(plugin, "ncclNetPlugin_v9");
  void **v10 = dlsym(plugin, "ncclNetPlugin_v10"), **v11 = dlsym(plugin, "ncclNetPlugin_v11");
  void **v12 = dlsym(plugin, "ncclNetPlugin_v12");
  CHECK(v8 && v9 && v10 && v11 && v12);
  void **all[] = {v8, v9, v10, v11, v12};
  for (int i = 0; i < 5; i++) {
    CHECK(strcmp(all[i][0], "polyrail") == 0);
    for (int place = 1; place < 17; place++) CHECK(all[i][place]);
    /* What the plugin does not have: NCCL looks before it calls. */
    CHECK(!all[i][17] && !all[i][18]);
  }
  CHECK(v9[19] && v10[19] && v11[19] && v12[19] && v11[20] && v12[20] && !v11[21] && !v12[21]);
  CHECK(((int (*)(logger_t))v8[1])(logger) == 0);
  CHECK(strstr(logged, "s0, s1, s2, s3"));
  PROPERTIES(properties8, v8, (void)0);
  PROPERTIES(properties9, v9, MERGED);
  PROPERTIES(properties9, v10, MERGED);
  PROPERTIES(properties11, v11, MERGED; CHECK(u.p.max_multi == 1));
  PROPERTIES(properties12, v12, MERGED; CHECK(u.p.max_multi == 1 && u.p.rail == -1 && u.p.plane == -1));
  CHECK(((int (*)(int, void *))v12[3])(4, &logged[900]) == 4);
  CHECK(strstr(logged, "getProperties: device 4 of 4"));
  return 0;
}
