// SPDX-License-Identifier: Apache-2.0
#include "base/locals.h"

static _Thread_local struct sl_locals own;
static _Thread_local struct sl_locals *used;

// Compilers keep a thread's address of such a variable for a whole function, and a fiber may change the thread in the middle of one: these
// are not put into others.
__attribute__((noinline)) struct sl_locals *sl_locals(void) {
    return used ? used : &own;
}

__attribute__((noinline)) void sl_locals_use(struct sl_locals *locals) {
    used = locals;
}
