// SPDX-License-Identifier: Apache-2.0
/*
 * The thread that owns the engine: several prompts are open at once.
 *
 * A turn: accept new jobs; open those in line for which there is memory; drop cancelled ones; then compute one layer of
 * one pass. A pass reads the next chunk of the job that prefill/schedule.h chooses, and of further jobs as long as
 * their rows fill the device. A pass pauses between two layers while the schedule prefers another job, so a short
 * prompt waits for a layer of a long one, not for its chunk.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "prefill/internal.h"
#include "prefill/pass.h"
#include "prefill/schedule.h"

#define MAX_OPEN     64 // limit of open jobs; further jobs stay in line
#define MAX_PASSES   3  // so that a short prompt can start while two long ones are read
#define COPY_WAIT_MS 5
#define LINE_WAIT_MS 50 // between polls for memory that is freed without a signal, e.g. by a lease that expires

struct stepper {
    struct sl_prefill *prefill;
    double half; // see schedule.h
    struct sl_schedule schedule;
    struct sl_prefill_job *line; // waiting for memory, in order of arrival
    int64_t n_arrived;
    struct sl_prefill_job *open[MAX_OPEN];
    int n_open;
    struct sl_prefill_pass passes[MAX_PASSES];      // those with n > 0 are in progress
    struct sl_activations *activations[MAX_PASSES]; // [0] belongs to the engine
    int most_passes;
};

// ---- opening and ending --------------------------------------------------------------------------------------------

/*
 * Returns how much of the planned peak does not need new memory from the arena, because the pages that stay unchanged
 * are in the block of the resumed capsule. If a recipe evicts at the end only, all pages stay unchanged until then, and
 * packed pages are added. If chunks evict, all pages may be allocated again.
 */
static size_t kept_span_bytes(const struct sl_plan *plan, const struct sl_session *session) {
    size_t bytes = 0, packed_later = 0;
    bool evicts = sl_recipe_evicts(&plan->recipe);
    if (!session || (evicts && plan->recipe.when & SL_WHEN_CHUNK)) {
        return 0;
    }
    for (int l = 0; l < session->geometry.n_layers; l++) {
        const struct sl_layer *layer = &session->layers[l];
        bool packs = sl_kv_format_is_quantized(layer->packed.format);
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            const struct sl_head *head = &layer->heads[h];
            bytes += head->n_packed * layer->packed.bytes;
            bytes += packs && !evicts ? 0 : (head->n_pages - head->n_packed) * layer->work.bytes;
        }
        packed_later += evicts && packs;
    }
    size_t beside = packed_later > 0 ? plan->capsule_bytes : 0;
    return bytes > beside ? bytes - beside : 0;
}

// Releases the job on the engine's thread, which no longer needs it.
static void forget(struct sl_prefill_job *job) {
    atomic_fetch_sub(&job->prefill->node->engine.n_waiting, 1);
    sl_prefill_job_unref(job);
}

// Returns the job to its handler, which may have freed it when this returns.
static void end_job(struct sl_prefill_job *job, enum sl_status status, const struct sl_error *err) {
    struct sl_session *session = job->session;
    size_t later_bytes = status == SL_OK && job->here ? job->later_bytes : 0; // reading will take no more memory
    sl_ledger_set_promise(job->prefill->node->ledger, &job->promised_bytes, later_bytes);
    if (job->reader) {
        sl_reader_get_stats(job->reader, &job->stats);
        sl_reader_get_errors(job->reader, &job->errors);
        session = sl_reader_take_session(job->reader);
        sl_reader_destroy(&job->reader);
    }
    pthread_mutex_lock(&job->mutex);
    job->session = session;
    job->status = status;
    job->err = *err;
    job->ended_ns = sl_now_ns();
    job->phase = SL_PREFILL_READ;
    pthread_cond_signal(&job->changed);
    pthread_mutex_unlock(&job->mutex);
    forget(job);
}

static void end_open(struct stepper *stepper, int i, enum sl_status status, const struct sl_error *err) {
    struct sl_prefill_job *job = stepper->open[i];
    stepper->open[i] = stepper->open[--stepper->n_open];
    end_job(job, status, err);
}

// Starts work on the job. False: the handler left before there was memory.
static bool take(struct sl_prefill_job *job) {
    SL_LOCKED(&job->mutex);
    bool taken = job->phase == SL_PREFILL_WAITING;
    if (taken) {
        job->phase = SL_PREFILL_READING;
    }
    return taken;
}

// Allocates memory for the capsule, if it cannot be shipped from its pages, and for segments of offloaded layers: both
// or neither.
static enum sl_status take_staging(struct sl_node *node, struct sl_prefill_job *job) {
    if (!sl_node_stages(node)) {
        return SL_OK;
    }
    enum sl_status status = job->here ? SL_OK
                                      : sl_outbound_stage(&job->outbound, node->staging_ledger, node->direct.arena,
                                                          job->id, job->plan.capsule_bytes, NULL);
    if (status == SL_OK && job->offload) {
        status = sl_offload_stage(job->offload, NULL);
        if (status != SL_OK) {
            sl_outbound_close(&job->outbound);
        }
    }
    return status;
}

// Promises the memory that reading may take, and allocates the staging memory: both or neither. Jobs in line hold
// neither, so they cannot wait for each other.
static enum sl_status take_memory(struct sl_node *node, struct sl_prefill_job *job) {
    const struct sl_prefill_host *host = &job->prefill->host;
    enum sl_status status;
    do {
        status = sl_ledger_try_promise(node->ledger, job->memory_bytes);
    } while (status == SL_AGAIN && host->drop_fn && host->drop_fn(host->arg, job->memory_bytes));
    if (status == SL_OK) {
        status = take_staging(node, job);
        if (status != SL_OK) {
            sl_ledger_return(node->ledger, job->memory_bytes);
        }
    }
    job->promised_bytes = status == SL_OK ? job->memory_bytes : 0;
    return status;
}

/*
 * Returns the most that the job takes from the arena in addition to a resumed capsule. A session that stays here to be
 * written needs its later bytes beside what is left of it after reading.
 */
static size_t memory_of(const struct sl_prefill_job *job) {
    size_t kept_bytes = kept_span_bytes(&job->plan, job->session), peak_bytes = job->plan.prefill_peak_bytes;
    size_t here_bytes = job->plan.capsule_bytes + job->later_bytes;
    if (job->is_whole) {
        return job->later_bytes;
    }
    peak_bytes = job->here && here_bytes > peak_bytes ? here_bytes : peak_bytes;
    return peak_bytes > kept_bytes ? peak_bytes - kept_bytes : 0;
}

static enum sl_status create_reader(struct sl_prefill_job *job, struct sl_error *err) {
    struct sl_node *node = job->prefill->node;
    int64_t more_slots = job->most_slots - job->plan.max_slots;
    struct sl_reader_config config = {.plan = &job->plan,
                                      .runtime = &node->runtime,
                                      .arena = node->arena,
                                      .tokens = job->tokens,
                                      .extra_slots = job->here && more_slots > 0 ? more_slots : 0,
                                      .estimate_errors = job->estimate_errors,
                                      .resumed = job->session,
                                      .attends_elsewhere = job->offload != NULL};
    return sl_reader_create(&config, &job->reader, err);
}

// Opens a job. SL_AGAIN: no memory now, the job stays in line. SL_OK: it has left the line.
static enum sl_status open_job(struct stepper *stepper, struct sl_prefill_job *job) {
    struct sl_node *node = stepper->prefill->node;
    if (!take(job)) {
        forget(job);
        return SL_OK;
    }
    job->memory_bytes = memory_of(job);
    if (take_memory(node, job) != SL_OK) {
        SL_WITH_LOCK(&job->mutex, job->phase = SL_PREFILL_WAITING);
        return SL_AGAIN;
    }
    struct sl_error err = {0};
    if (job->is_whole) {
        job->started_ns = sl_now_ns();
        end_job(job, SL_OK, &err);
        return SL_OK;
    }
    enum sl_status status = create_reader(job, &err);
    SL_THEN_IF(status, job->offload, sl_offload_begin(job->offload, sl_reader_session(job->reader), &err));
    if (status == SL_OK) {
        stepper->open[stepper->n_open++] = job;
    } else {
        end_job(job, status, &err);
    }
    return SL_OK;
}

// ---- the line ------------------------------------------------------------------------------------------------------

// Removes jobs whose handlers have left from the line; returns how many remain.
static int64_t clear_line(struct stepper *stepper) {
    int64_t n_waiting = 0;
    for (struct sl_prefill_job **at = &stepper->line; *at;) {
        struct sl_prefill_job *job = *at;
        bool abandoned;
        SL_WITH_LOCK(&job->mutex, abandoned = job->phase == SL_PREFILL_ABANDONED);
        if (abandoned) {
            *at = job->next;
            forget(job);
        } else {
            n_waiting++;
            at = &job->next;
        }
    }
    return n_waiting;
}

// Gives up resumed prefixes of jobs in line. Such a prefix has its memory before the job has the rest, so jobs could
// wait for each other; they read the whole prompt instead.
static void give_up_resumed(struct stepper *stepper) {
    for (struct sl_prefill_job *job = stepper->line; job; job = job->next) {
        struct sl_session *session = NULL;
        pthread_mutex_lock(&job->mutex);
        if (job->phase == SL_PREFILL_WAITING && job->session) {
            session = job->session;
            job->session = NULL;
            job->n_reused = 0;
            job->is_whole = false;
            // Log with the lock held: otherwise the handler may return and free the request that contains the id.
            sl_log_warn("prefill", "job=%s reads everything: no memory to go on from its stored prefix", job->id);
        }
        pthread_mutex_unlock(&job->mutex);
        sl_session_destroy(&session);
    }
}

/*
 * Opens jobs in order of arrival, as long as there is memory. A short job does not overtake here: otherwise short jobs
 * could again and again take the memory that a long job at the front waits for. (A coordinator sends no job that has no
 * memory; a line forms only when jobs free their memory later than expected, or on a worker without a coordinator.)
 */
static void open_line(struct stepper *stepper) {
    // Read before the line is cleared, so that it is never too small
    int64_t n_jobs = atomic_load(&stepper->prefill->n_jobs);
    int64_t n_waiting = clear_line(stepper);
    while (stepper->line && stepper->n_open < MAX_OPEN) {
        struct sl_prefill_job *job = stepper->line, *next = job->next;
        if (open_job(stepper, job) == SL_AGAIN) {
            break;
        }
        stepper->line = next;
    }
    bool comes_back = stepper->line && stepper->n_open < MAX_OPEN && sl_archive_press(stepper->prefill->archive);
    if (stepper->line && stepper->n_open == 0 && n_jobs <= n_waiting &&
        !comes_back) { // no remaining job will free memory
        give_up_resumed(stepper);
    }
}

// Waits for work and accepts new jobs. False: the worker is stopping.
static bool take_inbox(struct stepper *stepper) {
    struct sl_prefill *prefill = stepper->prefill;
    pthread_mutex_lock(&prefill->loop.mutex);
    if (!prefill->inbox && !prefill->loop.stopping && stepper->n_open == 0) {
        atomic_store(&prefill->tokens_rate.per_s, 0);
        if (!prefill->host.wake_fn) { // a host's thread waits itself
            sl_loop_wait(&prefill->loop, stepper->line ? sl_deadline_in_ms(LINE_WAIT_MS) : SL_NO_DEADLINE);
        }
        sl_rate_restart(&prefill->tokens_rate);
    }
    struct sl_prefill_job **end = &stepper->line;
    while (*end) {
        end = &(*end)->next;
    }
    *end = prefill->inbox;
    prefill->inbox = NULL;
    prefill->inbox_end = &prefill->inbox;
    bool go_on = !prefill->loop.stopping;
    pthread_mutex_unlock(&prefill->loop.mutex);
    sl_progress_counter_tick(&prefill->node->engine);
    for (struct sl_prefill_job *job = *end; job; job = job->next) {
        job->ticket = ++stepper->n_arrived;
    }
    return go_on;
}

// ---- turns ---------------------------------------------------------------------------------------------------------

// Drops cancelled jobs. A job whose chunk is in progress ends with the pass, and causes no further computation for it
// alone.
static void drop_cancelled(struct stepper *stepper) {
    for (int i = stepper->n_open - 1; i >= 0; i--) {
        struct sl_prefill_job *job = stepper->open[i];
        if (!atomic_load(&job->cancelled)) {
            continue;
        }
        struct sl_error err = {0};
        sl_fail(&err, SL_ERR_CANCELLED, "job %s was cancelled after %lld of %lld tokens", job->id,
                (long long)sl_reader_session(job->reader)->n_tokens, (long long)job->plan.n_prompt);
        if (job->pass) {
            sl_reader_fail(job->reader, SL_ERR_CANCELLED, &err);
        } else {
            end_open(stepper, i, SL_ERR_CANCELLED, &err);
        }
    }
}

static int index_of(const struct stepper *stepper, const struct sl_prefill_job *job) {
    int i = 0;
    while (stepper->open[i] != job) {
        i++;
    }
    return i;
}

// Archives a state between two chunks, because a recipe that evicts can be resumed only from such a state: the last one
// that other prompts can use.
static void archive_boundary(struct sl_prefill_job *job) {
    const struct sl_session *session = sl_reader_session(job->reader);
    int64_t chunk = job->plan.recipe.chunk_tokens, boundary = sl_reader_shared_tokens(&job->plan) / chunk * chunk;
    // If a recipe thins, the session does not hold the whole state, and the state depends on the tokens that were read
    // back.
    bool resumable = sl_recipe_evicts(&job->plan.recipe) && !sl_recipe_thins(&job->plan.recipe);
    if (resumable && session->n_tokens == boundary && boundary > job->n_reused && !job->boundary_put) {
        job->boundary_put = true;
        sl_archive_put_boundary(job->prefill->archive, job, session);
    }
}

// Returns true while the job's next pass would change pages that a copy is being sent from.
static bool must_wait(struct sl_prefill_job *job) {
    archive_boundary(job);
    sl_archive_put_checkpoint(job->prefill->archive, job);
    int64_t end = sl_reader_session(job->reader)->n_tokens + sl_reader_next_tokens(job->reader);
    if (job->release_tokens == 0 || end < job->release_tokens) {
        return false;
    }
    bool waits = !sl_archive_release(job->prefill->archive, job);
    job->release_tokens = waits ? job->release_tokens : 0;
    return waits;
}

// Waits for a copy to end, for a new job, or for a short time. A host's thread waits itself.
static void wait_for_copies(struct sl_prefill *prefill) {
    SL_LOCKED(&prefill->loop.mutex);
    if (!prefill->host.wake_fn && !prefill->inbox && !prefill->loop.stopping) {
        sl_loop_wait(&prefill->loop, sl_deadline_in_ms(COPY_WAIT_MS));
    }
}

static void end_chunk(struct stepper *stepper, struct sl_prefill_job *job) {
    struct sl_error err = {0};
    job->pass = NULL;
    enum sl_status status = sl_prefill_end_chunk(job, &err);
    if (status != SL_OK || sl_reader_is_done(job->reader)) {
        end_open(stepper, index_of(stepper, job), status, &err);
    }
}

static void end_pass(struct stepper *stepper, struct sl_prefill_pass *pass) {
    struct sl_error err = {0};
    enum sl_status status = sl_prefill_pass_end(pass, &err);
    int64_t n_tokens = 0;
    for (int i = 0; i < pass->n; i++) {
        sl_reader_fail(pass->jobs[i]->reader, status, &err);
        n_tokens += pass->reading.inputs[i].n_tokens;
        end_chunk(stepper, pass->jobs[i]);
    }
    pass->n = 0;
    sl_rate_count(&stepper->prefill->tokens_rate, n_tokens);
}

static bool passes_full(const struct stepper *stepper) {
    bool full = true;
    for (int i = 0; i < stepper->most_passes; i++) {
        full = full && stepper->passes[i].n > 0;
    }
    return full;
}

// Describes an open job to the schedule: its next step is a layer of its chunk.
static struct sl_schedule_job describe(const struct stepper *stepper, const struct sl_prefill_job *job) {
    int64_t begin = sl_reader_session(job->reader)->n_tokens, slots = job->plan.max_slots;
    int64_t end = begin + sl_reader_next_tokens(job->reader);
    double chunk = sl_schedule_work(begin, end, slots, stepper->half);
    int n_layers = stepper->prefill->node->runtime.config->n_layers;
    struct sl_reader_progress progress = sl_reader_get_progress(job->reader);
    return (struct sl_schedule_job){
        .ticket = job->ticket,
        .left = sl_schedule_work(begin, begin + progress.total - progress.done, slots, stepper->half),
        .next = chunk / n_layers};
}

// Returns the job whose turn it is. NULL: none is open, or all wait for copies. While no pass can begin, only jobs with
// a pass in progress have turns.
static struct sl_prefill_job *choose(struct stepper *stepper) {
    struct sl_schedule_job jobs[MAX_OPEN];
    int open[MAX_OPEN], n = 0;
    bool full = passes_full(stepper);
    for (int i = 0; i < stepper->n_open; i++) {
        if (stepper->open[i]->pass || (!full && !must_wait(stepper->open[i]))) {
            jobs[n] = describe(stepper, stepper->open[i]);
            open[n++] = i;
        }
    }
    int chosen = sl_schedule_next(&stepper->schedule, jobs, n);
    return chosen >= 0 ? stepper->open[open[chosen]] : NULL;
}

// Adds jobs to the pass of jobs[0] as long as the sum of their rows is at most `rows`. Returns how many there are.
static int fill(const struct stepper *stepper, struct sl_prefill_job **jobs, int64_t rows) {
    int64_t chunks[MAX_OPEN];
    int chosen[SL_READING_MAX_PROMPTS];
    for (int i = 0; i < stepper->n_open; i++) {
        struct sl_prefill_job *job = stepper->open[i];
        bool joins = job == jobs[0] || (!job->pass && !must_wait(job));
        chunks[i] = joins ? sl_reader_next_tokens(job->reader) : 0;
    }
    chosen[0] = index_of(stepper, jobs[0]);
    int n = sl_schedule_fill(chunks, stepper->n_open, rows, chosen, SL_READING_MAX_PROMPTS);
    for (int k = 1; k < n; k++) {
        jobs[k] = stepper->open[chosen[k]];
    }
    return n;
}

// Returns a free pass that has activations, which are allocated on first use. NULL: there is none.
static struct sl_prefill_pass *free_pass(struct stepper *stepper) {
    struct sl_engine *engine = stepper->prefill->node->runtime.engine;
    for (int i = 0; i < stepper->most_passes; i++) {
        if (stepper->passes[i].n > 0) {
            continue;
        }
        struct sl_error err = {0};
        if (!stepper->activations[i] && sl_activations_create(engine, sl_activations_rows(stepper->activations[0]),
                                                              &stepper->activations[i], &err) != SL_OK) {
            sl_log_warn("prefill", "at most %d chunks are read by turns: %s", i, err.text);
            stepper->most_passes = i;
            return NULL;
        }
        return &stepper->passes[i];
    }
    return NULL;
}

// Begins a pass over `first` and further jobs that fill the device. NULL: the pass could not begin, which ends its
// jobs; or there is no memory for its activations, and the passes in progress continue.
static struct sl_prefill_pass *begin_pass(struct stepper *stepper, struct sl_prefill_job *first) {
    struct sl_prefill_job *jobs[SL_READING_MAX_PROMPTS] = {first};
    struct sl_prefill_pass *pass = free_pass(stepper);
    if (!pass) {
        return NULL;
    }
    struct sl_activations *activations = stepper->activations[pass - stepper->passes];
    int64_t rows = sl_activations_rows(activations), full = stepper->prefill->node->runtime.device->ops->full_rows;
    int n = fill(stepper, jobs, full < rows ? full : rows);
    for (int i = 0; i < n; i++) {
        jobs[i]->started_ns = jobs[i]->started_ns == 0 ? sl_now_ns() : jobs[i]->started_ns;
        jobs[i]->pass = pass;
    }
    struct sl_error err = {0};
    enum sl_status status = sl_prefill_pass_begin(pass, activations, jobs, n, &err);
    if (status != SL_OK) {
        for (int i = 0; i < n; i++) {
            sl_reader_fail(jobs[i]->reader, status, &err);
            end_chunk(stepper, jobs[i]);
        }
        pass->n = 0;
        return NULL;
    }
    return pass;
}

static enum sl_prefill_turn take_turn(struct stepper *stepper) {
    struct sl_prefill_job *job = choose(stepper);
    if (!job) {
        if (stepper->n_open > 0) {
            wait_for_copies(stepper->prefill);
        }
        return stepper->n_open > 0 || stepper->line ? SL_PREFILL_WAITS : SL_PREFILL_IDLE;
    }
    if (!job->pass && sl_reader_next_tokens(job->reader) == 0) { // the resumed prefix is the whole prompt
        struct sl_error err = {0};
        job->started_ns = sl_now_ns();
        (void)sl_reader_finish(job->reader, &err); // the reader's status reports a failure
        end_chunk(stepper, job);
        return SL_PREFILL_READS;
    }
    struct sl_prefill_pass *pass = job->pass ? job->pass : begin_pass(stepper, job);
    if (pass && !sl_prefill_pass_layer(pass)) {
        end_pass(stepper, pass);
    }
    return SL_PREFILL_READS;
}

// ---- the thread ----------------------------------------------------------------------------------------------------

enum sl_status sl_prefill_stepper_create(struct sl_prefill *prefill, struct stepper **stepper_out,
                                         struct sl_error *err) {
    SL_NEW_OR_FAIL(struct stepper, stepper, err, "prefill: out of memory");
    *stepper = (struct stepper){.prefill = prefill,
                                .half = sl_reader_half_position(prefill->node->runtime.config),
                                .schedule = {.patience = SL_SCHEDULE_PATIENCE},
                                .activations = {sl_engine_activations(prefill->node->runtime.engine)},
                                .most_passes = MAX_PASSES};
    *stepper_out = stepper;
    return SL_OK;
}

void sl_prefill_stepper_destroy(struct stepper **stepper_inout) {
    SL_TAKE_OR_RETURN(stepper, stepper_inout);
    (void)take_inbox(stepper); // jobs whose handlers left before a host's thread looked again
    clear_line(stepper);
    assert(!stepper->line && stepper->n_open == 0); // every handler has left
    for (int i = 1; i < MAX_PASSES; i++) {
        sl_activations_destroy(&stepper->activations[i]);
    }
    free(stepper);
}

enum sl_prefill_turn sl_prefill_turn(struct sl_prefill *prefill) {
    (void)take_inbox(prefill->stepper);
    open_line(prefill->stepper);
    drop_cancelled(prefill->stepper);
    return take_turn(prefill->stepper);
}

void *sl_prefill_engine_main(void *arg) {
    struct sl_prefill *prefill = arg;
    struct stepper *stepper = prefill->stepper;
    sl_team_pin_caller(prefill->node->runtime.team);
    while (take_inbox(stepper)) {
        open_line(stepper);
        drop_cancelled(stepper);
        (void)take_turn(stepper);
    }
    return NULL;
}
