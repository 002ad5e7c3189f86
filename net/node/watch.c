// SPDX-License-Identifier: Apache-2.0
#include "net/node/watch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/loop.h"

#define LOOKS       16 // polls within stall_ms
#define LOOK_MAX_MS 500
#define LOOK_MIN_MS 5
#define LONG_LOOKS  2 // a longer time between two polls counts as this many polls

struct sl_thread_watch {
    struct sl_thread_watch_config config;
    int64_t look_ms;
    struct sl_loop loop;
};

enum sl_progress_change sl_progress_counter_poll(struct sl_progress_counter *progress_counter, int64_t elapsed_ns,
                                                 int64_t stall_ns) {
    uint64_t count = sl_progress_counter_count(progress_counter);
    bool moves = count != progress_counter->seen || atomic_load(&progress_counter->n_waiting) == 0;
    int64_t before_ns = progress_counter->still_ns;
    progress_counter->seen = count;
    progress_counter->still_ns = moves ? 0 : before_ns + elapsed_ns;
    atomic_store(&progress_counter->is_still, progress_counter->still_ns >= stall_ns);
    if (moves) {
        return before_ns >= stall_ns ? SL_PROGRESS_MOVING : SL_PROGRESS_AS_BEFORE;
    }
    if (before_ns < stall_ns && progress_counter->still_ns >= stall_ns) {
        return SL_PROGRESS_STILL;
    }
    return before_ns < 2 * stall_ns && progress_counter->still_ns >= 2 * stall_ns ? SL_PROGRESS_OVER
                                                                                  : SL_PROGRESS_AS_BEFORE;
}

static void look(struct sl_thread_watch *watch, int64_t elapsed_ns) {
    const struct sl_thread_watch_config *config = &watch->config;
    void (*const tell[])(void *arg, const struct sl_progress_counter *progress_counter) = {
        [SL_PROGRESS_STILL] = config->still_fn,
        [SL_PROGRESS_MOVING] = config->moving_fn,
        [SL_PROGRESS_OVER] = config->over_fn};
    int64_t most_ns = LONG_LOOKS * watch->look_ms * SL_NS_PER_MS;
    elapsed_ns = elapsed_ns < most_ns ? elapsed_ns : most_ns;
    for (struct sl_progress_counter *progress_counter = config->progress_counters; progress_counter;
         progress_counter = progress_counter->next) {
        enum sl_progress_change change =
            sl_progress_counter_poll(progress_counter, elapsed_ns, config->stall_ms * SL_NS_PER_MS);
        if (change != SL_PROGRESS_AS_BEFORE) {
            tell[change](config->arg, progress_counter);
        }
    }
}

static void *watch_main(void *arg) {
    struct sl_thread_watch *watch = arg;
    int64_t looked_ns = sl_now_ns();
    pthread_mutex_lock(&watch->loop.mutex);
    while (!watch->loop.stopping) {
        sl_loop_wait(&watch->loop, sl_deadline_in_ms(watch->look_ms));
        pthread_mutex_unlock(&watch->loop.mutex);
        int64_t now_ns = sl_now_ns();
        look(watch, now_ns - looked_ns);
        looked_ns = now_ns;
        pthread_mutex_lock(&watch->loop.mutex);
    }
    pthread_mutex_unlock(&watch->loop.mutex);
    return NULL;
}

enum sl_status sl_thread_watch_create(const struct sl_thread_watch_config *config, struct sl_thread_watch **watch_out,
                                      struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_thread_watch, watch, err, "watch: out of memory");
    watch->config = *config;
    int64_t look_ms = config->stall_ms / LOOKS;
    watch->look_ms = look_ms < LOOK_MIN_MS ? LOOK_MIN_MS : look_ms > LOOK_MAX_MS ? LOOK_MAX_MS : look_ms;
    sl_loop_init(&watch->loop);
    SL_TRY_OR(sl_loop_start(&watch->loop, "watch", watch_main, watch, err), sl_thread_watch_destroy(&watch));
    *watch_out = watch;
    return SL_OK;
}

void sl_thread_watch_destroy(struct sl_thread_watch **watch_inout) {
    SL_TAKE_OR_RETURN(watch, watch_inout);
    sl_loop_cleanup(&watch->loop);
    free(watch);
}
