// SPDX-License-Identifier: Apache-2.0
// Purpose: preloaded into a process, bends what the system tells it: the time of day, whether its disk works, and whether its
// connections last. A file that the driver (bend.py) has mapped too says how much; where there is none, nothing is bent.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

struct control {
    atomic_llong clock_s;     // the time of day is so much later
    atomic_llong disk_fails;  // of 1,000 calls
    atomic_llong link_resets; // of 100,000 calls
    atomic_llong disk_stalls; // not 0: reads of more than 128 KiB, which heads of files are not, wait until it is
};

static struct control *control;
static atomic_ullong drawn;

// The real function that this one replaces.
#define REAL(name, type, parameters)                                                                                   \
    static atomic_uintptr_t found;                                                                                     \
    uintptr_t address = atomic_load(&found);                                                                           \
    if (!address) {                                                                                                    \
        address = (uintptr_t)dlsym(RTLD_NEXT, #name);                                                                  \
        atomic_store(&found, address);                                                                                 \
    }                                                                                                                  \
    type(*real) parameters;                                                                                            \
    memcpy(&real, &address, sizeof real);

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("SLUICE_BEND");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        control = mapped == MAP_FAILED ? NULL : mapped;
        close(fd);
    }
}

// True `chances` times in `of` calls, in an order that looks like none.
static bool happens(const atomic_llong *chances, uint64_t of) {
    long long n = control ? atomic_load(chances) : 0;
    if (n <= 0) {
        return false;
    }
    uint64_t x = (atomic_fetch_add(&drawn, 1) + (uint64_t)getpid()) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return (x ^ (x >> 32)) % of < (uint64_t)n;
}

// ---- the time of day ------------------------------------------------------------------------------------------------

#define PUBLIC __attribute__((visibility("default")))

PUBLIC int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime, int, (clockid_t clock, struct timespec * now))
    int result = real(clock, now);
    if (result == 0 && control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        now->tv_sec += atomic_load(&control->clock_s);
    }
    return result;
}

PUBLIC int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    REAL(gettimeofday, int, (struct timeval *restrict now, void *restrict zone))
    int result = real(now, zone);
    if (result == 0 && control) {
        now->tv_sec += atomic_load(&control->clock_s);
    }
    return result;
}

PUBLIC time_t time(time_t *out) {
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) {
        *out = now.tv_sec;
    }
    return now.tv_sec;
}

// ---- files ----------------------------------------------------------------------------------------------------------

#define FAILING_DISK()                                                                                                 \
    if (happens(&control->disk_fails, 1000)) {                                                                         \
        errno = EIO;                                                                                                   \
        return -1;                                                                                                     \
    }

PUBLIC ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    REAL(pwrite, ssize_t, (int fd, const void *data, size_t n, off_t at))
    FAILING_DISK()
    return real(fd, data, n, at);
}

PUBLIC ssize_t pread(int fd, void *data, size_t n, off_t at) {
    REAL(pread, ssize_t, (int fd, void *data, size_t n, off_t at))
    FAILING_DISK()
    while (n > (128 << 10) && control && atomic_load(&control->disk_stalls)) {
        usleep(10000);
    }
    return real(fd, data, n, at);
}

PUBLIC int fsync(int fd) {
    REAL(fsync, int, (int fd))
    FAILING_DISK()
    return real(fd);
}

PUBLIC int futimens(int fd, const struct timespec times[2]) {
    REAL(futimens, int, (int fd, const struct timespec times[2]))
    FAILING_DISK()
    return real(fd, times);
}

PUBLIC int unlinkat(int fd, const char *name, int flags) {
    REAL(unlinkat, int, (int fd, const char *name, int flags))
    FAILING_DISK()
    return real(fd, name, flags);
}

// ---- connections ----------------------------------------------------------------------------------------------------

static bool is_reset(int fd) {
    int domain = 0;
    socklen_t n = sizeof domain;
    if (!happens(&control->link_resets, 100000) || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) != 0 ||
        (domain != AF_INET && domain != AF_INET6)) {
        return false;
    }
    struct linger at_once = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    shutdown(fd, SHUT_RDWR);
    errno = ECONNRESET;
    return true;
}

PUBLIC ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    REAL(sendmsg, ssize_t, (int fd, const struct msghdr *message, int flags))
    return is_reset(fd) ? -1 : real(fd, message, flags);
}

PUBLIC ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    REAL(recvmsg, ssize_t, (int fd, struct msghdr *message, int flags))
    return is_reset(fd) ? -1 : real(fd, message, flags);
}

PUBLIC ssize_t recv(int fd, void *data, size_t n, int flags) {
    REAL(recv, ssize_t, (int fd, void *data, size_t n, int flags))
    return is_reset(fd) ? -1 : real(fd, data, n, flags);
}
