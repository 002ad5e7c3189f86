// SPDX-License-Identifier: Apache-2.0
// Purpose: lets one call of a running program fail: the linker leads our own calls of these functions here, and a file that the driver
// (faults.py) has mapped too says which of them is the one. Calls that libraries make go where they always do.
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum kind { MEMORY, SOCKET, N_KINDS };

struct control {
    atomic_llong left[N_KINDS];  // set by the driver: the call that makes it 0 fails; 0: none does
    atomic_llong calls[N_KINDS]; // so far
    atomic_llong failed;
};

static struct control *control;

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("SLUICE_FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        control = mapped == MAP_FAILED ? NULL : mapped;
        close(fd);
    }
}

static bool fails(enum kind kind) {
    if (!control) {
        return false;
    }
    atomic_fetch_add(&control->calls[kind], 1);
    long long left = atomic_load(&control->left[kind]);
    while (left > 0 && !atomic_compare_exchange_weak(&control->left[kind], &left, left - 1)) {
    }
    if (left != 1) {
        return false;
    }
    atomic_fetch_add(&control->failed, 1);
    return true;
}

static bool memory_fails(void) {
    return fails(MEMORY);
}

#include "tests/memory_calls.h" // uses it

#define SOCKET_CALL(name, parameters, arguments)                                                                       \
    ssize_t __real_##name parameters;                                                                                  \
    ssize_t __wrap_##name parameters;                                                                                  \
    ssize_t __wrap_##name parameters {                                                                                 \
        if (fails(SOCKET)) {                                                                                           \
            errno = ECONNRESET;                                                                                        \
            return -1;                                                                                                 \
        }                                                                                                              \
        return __real_##name arguments;                                                                                \
    }

SOCKET_CALL(sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
SOCKET_CALL(recv, (int fd, void *to, size_t n, int flags), (fd, to, n, flags))
