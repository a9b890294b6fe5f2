/* What programs that were compiled with this header rely on. The library's side has the same numbers. */
#include "common.h"

#ifdef __cplusplus
#define ASSERT(what) static_assert(what, #what)
#else
#define ASSERT(what) _Static_assert(what, #what)
#endif
#define SIZE(type, size) ASSERT(sizeof(type) == (size))
#define AT(type, field, offset) ASSERT(offsetof(type, field) == (offset))
#define VALUE(name, value) ASSERT(name == (value))

#include "layout.inc"
#include "values.inc"

int main(void) {
  CHECK(polyrail_version() == POLYRAIL_VERSION);
  printf("layout\n");
  return 0;
}
