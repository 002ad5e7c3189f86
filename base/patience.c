// SPDX-License-Identifier: Apache-2.0
// Purpose: see patience.h.
#include "base/patience.h"

#include <stdint.h>

#include "base/clock.h"

#define LONG_NS    50000
#define SHORT_NS   1000
#define MAX_FAILED 6 // at most 1 << MAX_FAILED short waits in a row

static void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

bool sl_patience_look(struct sl_patience *patience, sl_happened_fn happened, void *arg) {
    bool brief = patience->n_short > 0;
    int64_t give_up_ns = sl_now_ns() + (brief ? SHORT_NS : LONG_NS);
    patience->n_short -= brief;
    do {
        for (int i = 0; i < 32; i++) {
            if (happened(arg)) {
                patience->n_failed = brief ? patience->n_failed : 0;
                return true;
            }
            cpu_relax();
        }
    } while (sl_now_ns() < give_up_ns);
    if (!brief) {
        patience->n_short = patience->n_failed < MAX_FAILED ? 1 << patience->n_failed++ : 1 << MAX_FAILED;
    }
    return false;
}
