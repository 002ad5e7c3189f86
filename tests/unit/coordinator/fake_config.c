// SPDX-License-Identifier: Apache-2.0
// Purpose: what tests with fake workers begin with: the first failure ends them; and a coordinator's options: the
// defaults, with short times.
#include <stdio.h>
#include <stdlib.h>

#include "fake_worker.h"

// Has a failed assertion end the program. cmocka would leave the test there and begin the next one, which writes over
// workers whose threads still run, or over a frame that they use; and sl_rpc_shutdown() would wait for their servers.
__attribute__((constructor)) static void end_at_a_failure(void) {
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    setvbuf(stdout, NULL, _IOLBF, 0); // it has the name of the test
}

void fake_cluster_config(struct sl_coordinator_config *config) {
    *config = (struct sl_coordinator_config){
        .listen = "127.0.0.1:0",
        .model_dir = "models/demo",
        .etcd = "",
        .etcd_prefix = "/sluice",
        .advertise = "",
        .state_dir = "",
        .state_bytes = INT64_C(1) << 30,
        .admin_listen = "none",
        .metrics_alias = "none",
        .weights = "stored",
        .generation_config = "auto",
        .routing = "affinity",
        .max_jobs = 64,
        .max_queued = 256,
        .max_watchers = 1024,
        .heartbeat_ms = FAKE_HEARTBEAT_MS,
        .stall_ms = 30000,
        .silence_ms = FAKE_SILENCE_MS,
        .worker_wait_ms = FAKE_WAIT_MS,
        .max_retries = 2,
        .deadline_ms = 20000,
        .retention_ms = 600000,
        .max_kept_jobs = 1000,
        .max_kept_bytes = INT64_C(256) << 20,
        .max_prefixes = 65536,
        .max_prompt_bytes = INT64_C(64) << 20,
        .request_bytes = INT64_C(1) << 30,
        .parts_ms = 60000,
        .max_documents = 64,
        .document_bytes = INT64_C(1) << 30,
        .tenant_share = 50,
        .reader_ms = 30000,
    };
}
