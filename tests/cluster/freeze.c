// SPDX-License-Identifier: Apache-2.0
// Purpose: preloaded into a worker, makes any of its threads stand still: the one that is sent SIGRTMAX - 1 (tgkill), for good.
// A debugger could do as much, but not everywhere where tests run. Threads of ours block signals; that one gets through.
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

__attribute__((visibility("default"))) int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
    int (*real)(int how, const sigset_t *set, sigset_t *old);
    void *found = dlsym(RTLD_NEXT, "pthread_sigmask");
    memcpy(&real, &found, sizeof real);
    sigset_t open;
    if (set) {
        open = *set;
        if (how != SIG_UNBLOCK) {
            sigdelset(&open, SIGRTMAX - 1);
        }
    }
    return real(how, set ? &open : NULL, old);
}

static void freeze(int number) {
    (void)number;
    for (;;) {
        pause();
    }
}

__attribute__((constructor)) static void prepare(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = freeze;
    sigaction(SIGRTMAX - 1, &action, NULL);
}
