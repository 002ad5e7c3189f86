// SPDX-License-Identifier: Apache-2.0
#include "base/spin_budget.h"

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

bool sl_spin_budget_poll(struct sl_spin_budget *budget, sl_happened_fn happened, void *arg) {
    bool brief = budget->n_short > 0;
    int64_t give_up_ns = sl_now_ns() + (brief ? SHORT_NS : LONG_NS);
    budget->n_short -= brief;
    do {
        for (int i = 0; i < 32; i++) {
            if (happened(arg)) {
                budget->n_failed = brief ? budget->n_failed : 0;
                return true;
            }
            cpu_relax();
        }
    } while (sl_now_ns() < give_up_ns);
    if (!brief) {
        budget->n_short = budget->n_failed < MAX_FAILED ? 1 << budget->n_failed++ : 1 << MAX_FAILED;
    }
    return false;
}
