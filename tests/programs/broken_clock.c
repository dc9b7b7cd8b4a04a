/* The system's clock as it is after a battery is dead: preloaded, it stands at the time in SECONDS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t wrong(void) { return atoll(getenv("SECONDS")); }

time_t time(time_t *result) {
  if (result) *result = wrong();
  return wrong();
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  now->tv_sec = wrong();
  now->tv_usec = 0;
  return 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (clock != CLOCK_REALTIME) return ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(clock, now);
  now->tv_sec = wrong();
  now->tv_nsec = 0;
  return 0;
}
