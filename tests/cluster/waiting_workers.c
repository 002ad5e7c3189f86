// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: workers that compute nothing and only wait, for capacity.py: what is busy is the coordinator and the gateway.
 *
 *     waiting_workers COORDINATOR N TOKEN_MS      N of each role, until standard input ends
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/log.h"
#include "tests/unit/coordinator/fake_worker.h"

static void start(struct fake_worker *worker, Sluice__V1__WorkerRole role, const char *word, int i, char **argv) {
    char name[32];
    struct sl_error err = {0};
    snprintf(name, sizeof name, "%s-%d", word, i);
    fake_worker_init(worker, name, role);
    worker->arena_bytes = INT64_C(16) << 30;
    worker->max_jobs = 256;
    worker->lease_ms = 10000;
    atomic_store(&worker->token_ms, atoi(argv[3]));
    if (fake_worker_start(worker, argv[1], &err) != SL_OK) {
        fprintf(stderr, "%s: %s\n", name, err.text);
        exit(1);
    }
}

int main(int argc, char **argv) {
    int n = argc == 4 ? atoi(argv[2]) : 0;
    if (n < 1 || n > 32) {
        fprintf(stderr, "usage: %s COORDINATOR N TOKEN_MS\n", argv[0]);
        return 2;
    }
    (void)sl_log_configure("warn", NULL);
    sl_rpc_init();
    struct fake_worker *workers = calloc(2 * (size_t)n, sizeof *workers);
    for (int i = 0; i < n; i++) {
        start(&workers[2 * i], SLUICE__V1__WORKER_ROLE__PREFILL, "prefill", i, argv);
        start(&workers[2 * i + 1], SLUICE__V1__WORKER_ROLE__DECODE, "decode", i, argv);
    }
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    for (int i = 0; i < 2 * n; i++) {
        fake_worker_stop(&workers[i]);
    }
    free(workers);
    sl_rpc_shutdown();
    return 0;
}
