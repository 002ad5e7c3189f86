// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/loading.h"

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"

#define LOOK_MS      250
#define FIRST_LOG_MS 1000 // a model that loads faster needs no log line
#define LOG_MS       5000

static uint64_t count(const struct sl_loading *loading) {
    uint64_t n = atomic_load(&loading->progress.done_bytes);
    for (size_t i = 0; i < loading->config.n_teams; i++) {
        n += sl_team_tasks_done(loading->config.teams[i]);
    }
    return n;
}

static void *report(void *arg) {
    struct sl_loading *loading = arg;
    const struct sl_loading_config *config = &loading->config;
    int64_t begin_ns = sl_now_ns(), log_ns = begin_ns + FIRST_LOG_MS * SL_NS_PER_MS;
    uint64_t seen = count(loading);
    SL_LOCKED(&loading->loop.mutex);
    while (!loading->loop.stopping) {
        sl_loop_wait(&loading->loop, sl_deadline_in_ms(LOOK_MS));
        uint64_t now = count(loading);
        size_t done = atomic_load(&loading->progress.done_bytes);
        size_t total = atomic_load(&loading->progress.total_bytes);
        if (loading->loop.stopping || now == seen || total == 0) {
            continue;
        }
        seen = now;
        if (config->report_fn != NULL && !config->report_fn(config->arg, done, total)) {
            atomic_store(&loading->progress.stops, true);
        }
        if (sl_now_ns() >= log_ns) {
            sl_log_info("runtime", "loading %s: %.0f%% of %.1f MB after %.0f s", config->model,
                        100 * (double)done / (double)total, (double)total / 1e6,
                        (double)(sl_now_ns() - begin_ns) / 1e9);
            log_ns = sl_deadline_in_ms(LOG_MS);
        }
    }
    return NULL;
}

enum sl_status sl_loading_begin(struct sl_loading *loading, const struct sl_loading_config *config,
                                struct sl_error *err) {
    *loading = (struct sl_loading){.config = *config};
    sl_loop_init(&loading->loop);
    SL_TRY_OR(sl_loop_start(&loading->loop, "loading", report, loading, err), sl_loading_end(loading));
    return SL_OK;
}

void sl_loading_end(struct sl_loading *loading) {
    sl_loop_cleanup(&loading->loop);
}
