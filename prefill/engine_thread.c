// SPDX-License-Identifier: Apache-2.0
/*
 * The thread that owns the engine: several prompts are open at once and are read by turns.
 *
 * A turn: take in new jobs; open those in line for which there is memory; let cancelled ones go; read a step of the one
 * that prefill/schedule.h chooses.
 */
#include <assert.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "prefill/internal.h"
#include "prefill/schedule.h"

#define MAX_OPEN 64 // beyond it jobs stay in line
/*
 * A step that may end anywhere is what a job that comes in the meantime waits for. Beside others it is as long as
 * STEP_WORK tokens at the beginning of a prompt take. Alone it may take ALONE_NS where that is longer, as with a small
 * model: every step loads all keys and values before it, and in short steps that is most of attention. Fewer rows than
 * STEP_ROWS leave matrix products waiting for memory; fewer than READ_BACK_ROWS leave attention waiting for what is
 * read back of offloaded layers, all of it in every step: a token of them is 2 H / Hk operations a byte and row, and an
 * engine does some hundred operations in the time in which a byte comes.
 */
#define STEP_WORK      256
#define ALONE_NS       (40 * SL_NS_PER_MS)
#define STEP_ROWS      32
#define READ_BACK_ROWS 256
#define COPY_WAIT_MS   5
#define LINE_WAIT_MS   50 // between looks for memory that comes back without a word, as an ended lease does

struct stepper {
    struct sl_prefill *prefill;
    double half; // see schedule.h
    struct sl_schedule schedule;
    struct sl_prefill_job *line; // waiting for memory, in order of arrival
    int64_t n_arrived;
    struct sl_prefill_job *open[MAX_OPEN];
    int n_open;
    double rate; // work a nanosecond, as the last steps went
};

// ---- one step of one job -------------------------------------------------------------------------------------------

static void report(struct sl_prefill_job *job, const struct sl_session *session) {
    struct sl_session_stats stats;
    sl_session_get_stats(session, &stats);
    pthread_mutex_lock(&job->mutex);
    job->n_done = session->n_tokens;
    job->resident_bytes = stats.resident_bytes;
    job->peak_bytes = sl_reader_peak_bytes(job->reader);
    pthread_cond_signal(&job->changed);
    pthread_mutex_unlock(&job->mutex);
}

// A recipe that evicts can be resumed only from a state between two chunks: keep the last one that others can use.
static void archive_boundary(struct sl_prefill_job *job) {
    const struct sl_session *session = sl_reader_session(job->reader);
    int64_t chunk = job->plan.recipe.chunk_tokens, boundary = sl_reader_shared_tokens(&job->plan) / chunk * chunk;
    // Of a recipe that thins the state between two chunks is not in the session alone, and depends on what was read back.
    bool resumable = sl_recipe_evicts(&job->plan.recipe) && !sl_recipe_thins(&job->plan.recipe);
    if (resumable && session->n_tokens == boundary && boundary > job->n_reused && !job->boundary_put) {
        job->boundary_put = true;
        sl_archive_put_boundary(job->prefill->archive, job, session);
    }
}

// True while the job's next step would change pages that a copy is being sent from.
static bool must_wait(struct sl_prefill_job *job) {
    archive_boundary(job);
    int64_t end = sl_reader_session(job->reader)->n_tokens + sl_reader_next_tokens(job->reader);
    if (job->let_go_tokens == 0 || end < job->let_go_tokens) {
        return false;
    }
    bool waits = !sl_archive_let_go(job->prefill->archive, job);
    job->let_go_tokens = waits ? job->let_go_tokens : 0;
    return waits;
}

/*
 * What the session has taken from the arena is no longer a promise: count it once. After a step, not before it: pages
 * that the step took and eviction has given back are promised all along, so nobody else is granted them in between.
 */
static void settle_promise(struct sl_prefill_job *job, size_t taken_bytes) {
    size_t promised = job->memory_bytes > taken_bytes ? job->memory_bytes - taken_bytes : 0;
    sl_ledger_settle(job->prefill->node.ledger, &job->promised_bytes, promised);
}

static enum sl_status step(struct sl_prefill_job *job, bool *done_out, struct sl_error *err) {
    struct sl_session *session = sl_reader_session(job->reader);
    job->started_ns = job->started_ns == 0 ? sl_now_ns() : job->started_ns;
    enum sl_status status = sl_reader_step(job->reader, done_out, err);
    if (status == SL_OK && job->offload) {
        status = sl_offload_step(job->offload, session, err);
    }
    if (status == SL_OK) {
        settle_promise(job, session->taken_bytes + (job->offload ? sl_offload_arena_bytes(job->offload) : 0));
        report(job, session);
    } else if (err->status == SL_OK) {
        sl_fail(err, status, "job %s: %s", job->id, sl_status_text(status));
    }
    return status;
}

// ---- opening and ending --------------------------------------------------------------------------------------------

/*
 * Returns how much of the planned peak reading does not take from the arena, because it lies in the block of the capsule
 * that the session was resumed from: the pages that stay as they are. Where a recipe evicts at the end alone, so do all
 * pages until then, and packed pages come beside them. Where chunks evict, all pages may be taken anew.
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

// The engine's thread has nothing more to do for the job.
static void forget(struct sl_prefill_job *job) {
    atomic_fetch_sub(&job->prefill->node.engine.n_waiting, 1);
    sl_prefill_job_unref(job);
}

// Hand the job back to its handler, who may be gone when this returns.
static void end_job(struct sl_prefill_job *job, enum sl_status status, const struct sl_error *err) {
    struct sl_session *session = job->session;
    settle_promise(job, job->memory_bytes); // it takes no more
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

// False when the handler has left before there was memory.
static bool take(struct sl_prefill_job *job) {
    pthread_mutex_lock(&job->mutex);
    bool taken = job->phase == SL_PREFILL_WAITING;
    if (taken) {
        job->phase = SL_PREFILL_READING;
    }
    pthread_mutex_unlock(&job->mutex);
    return taken;
}

// Room for the capsule where it cannot be shipped from its pages, and for segments of offloaded layers: both or neither.
static enum sl_status take_staging(struct sl_node *node, struct sl_prefill_job *job) {
    if (!sl_node_stages(node)) {
        return SL_OK;
    }
    enum sl_status status = sl_outbound_stage(&job->outbound, node->staging_ledger, node->direct.arena, job->id,
                                              job->plan.capsule_bytes, NULL);
    if (status == SL_OK && job->offload) {
        status = sl_offload_stage(job->offload, NULL);
        if (status != SL_OK) {
            sl_outbound_close(&job->outbound);
        }
    }
    return status;
}

// What reading may take, and what travels: both or neither. Jobs in line hold nothing of either, so none waits for another.
static enum sl_status take_memory(struct sl_node *node, struct sl_prefill_job *job) {
    enum sl_status status = sl_ledger_try_promise(node->ledger, job->memory_bytes);
    if (status == SL_OK) {
        status = take_staging(node, job);
        if (status != SL_OK) {
            sl_ledger_return(node->ledger, job->memory_bytes);
        }
    }
    job->promised_bytes = status == SL_OK ? job->memory_bytes : 0;
    return status;
}

// SL_AGAIN: no memory now, the job stays in line. SL_OK: it has left the line.
static enum sl_status open_job(struct stepper *stepper, struct sl_prefill_job *job) {
    struct sl_node *node = &stepper->prefill->node;
    if (!take(job)) {
        forget(job);
        return SL_OK;
    }
    size_t kept_bytes = kept_span_bytes(&job->plan, job->session), peak_bytes = job->plan.prefill_peak_bytes;
    job->memory_bytes = peak_bytes > kept_bytes ? peak_bytes - kept_bytes : 0;
    if (take_memory(node, job) != SL_OK) {
        pthread_mutex_lock(&job->mutex);
        job->phase = SL_PREFILL_WAITING;
        pthread_mutex_unlock(&job->mutex);
        return SL_AGAIN;
    }
    struct sl_error err = {0};
    struct sl_reader_config config = {.sequence = {.plan = &job->plan,
                                                   .runtime = &node->runtime,
                                                   .arena = node->arena,
                                                   .estimate_errors = job->estimate_errors,
                                                   .resumed = job->session,
                                                   .offload = job->offload,
                                                   .outbound = &job->outbound},
                                      .tokens = job->tokens};
    enum sl_status status = sl_reader_create(&config, &job->reader, &err);
    if (status == SL_OK && job->offload) {
        status = sl_offload_begin(job->offload, sl_reader_session(job->reader), &err);
    }
    if (status == SL_OK) {
        stepper->open[stepper->n_open++] = job;
    } else {
        end_job(job, status, &err);
    }
    return SL_OK;
}

// ---- the line ------------------------------------------------------------------------------------------------------

// Leave out those whose handlers have gone; how many are left.
static int64_t clear_line(struct stepper *stepper) {
    int64_t n_waiting = 0;
    for (struct sl_prefill_job **at = &stepper->line; *at;) {
        struct sl_prefill_job *job = *at;
        pthread_mutex_lock(&job->mutex);
        bool abandoned = job->phase == SL_PREFILL_ABANDONED;
        pthread_mutex_unlock(&job->mutex);
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

// Jobs in line may hold a stored prefix. It comes before their memory, so they could wait for each other: read anew
// instead.
static void give_up_resumed(struct stepper *stepper) {
    for (struct sl_prefill_job *job = stepper->line; job; job = job->next) {
        struct sl_session *session = NULL;
        pthread_mutex_lock(&job->mutex);
        if (job->phase == SL_PREFILL_WAITING && job->session) {
            session = job->session;
            job->session = NULL;
            job->n_reused = 0;
            // With the lock held: without it the handler may go, and with it the request that has the id.
            sl_log_warn("prefill", "job=%s reads everything: no memory to go on from its stored prefix", job->id);
        }
        pthread_mutex_unlock(&job->mutex);
        sl_session_destroy(&session);
    }
}

/*
 * Open jobs in order of arrival, as far as there is memory. A short one does not overtake here: it would take, over and
 * over, what a long one in front of it waits for. (A coordinator sends no job that has no room; it is what others leave
 * behind for a moment, and workers without one, that make a line.)
 */
static void open_line(struct stepper *stepper) {
    int64_t n_jobs = atomic_load(&stepper->prefill->n_jobs); // before the line is cleared: never too few
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
        !comes_back) { // no job is left that would give memory back
        give_up_resumed(stepper);
    }
}

// Wait for work; take in what has come. False when the worker stops.
static bool take_inbox(struct stepper *stepper) {
    struct sl_prefill *prefill = stepper->prefill;
    pthread_mutex_lock(&prefill->mutex);
    if (!prefill->inbox && !prefill->stopping && stepper->n_open == 0) {
        atomic_store(&prefill->tokens_rate.per_s, 0);
        sl_cond_wait_until(&prefill->wake, &prefill->mutex,
                           stepper->line ? sl_deadline_in_ms(LINE_WAIT_MS) : SL_NO_DEADLINE);
        sl_rate_restart(&prefill->tokens_rate);
    }
    struct sl_prefill_job **end = &stepper->line;
    while (*end) {
        end = &(*end)->next;
    }
    *end = prefill->inbox;
    prefill->inbox = NULL;
    prefill->inbox_end = &prefill->inbox;
    bool go_on = !prefill->stopping;
    pthread_mutex_unlock(&prefill->mutex);
    sl_pulse_tick(&prefill->node.engine);
    for (struct sl_prefill_job *job = *end; job; job = job->next) {
        job->ticket = ++stepper->n_arrived;
    }
    return go_on;
}

// ---- turns ---------------------------------------------------------------------------------------------------------

static void drop_cancelled(struct stepper *stepper) {
    for (int i = stepper->n_open - 1; i >= 0; i--) {
        struct sl_prefill_job *job = stepper->open[i];
        if (atomic_load(&job->cancelled)) {
            struct sl_error err = {0};
            sl_fail(&err, SL_ERR_CANCELLED, "job %s was cancelled after %lld of %lld tokens", job->id,
                    (long long)sl_reader_session(job->reader)->n_tokens, (long long)job->plan.n_prompt);
            end_open(stepper, i, SL_ERR_CANCELLED, &err);
        }
    }
}

static double step_work(const struct stepper *stepper) {
    double alone = stepper->rate * ALONE_NS;
    return stepper->n_open == 1 && alone > STEP_WORK ? alone : STEP_WORK;
}

// Returns the job whose step is next, or -1: none is open, or all wait for copies. *work_out: of that step.
static int choose(struct stepper *stepper, double *work_out) {
    struct sl_schedule_job jobs[MAX_OPEN];
    int which[MAX_OPEN], n = 0;
    double work = step_work(stepper);
    for (int i = 0; i < stepper->n_open; i++) {
        struct sl_prefill_job *job = stepper->open[i];
        int64_t begin = sl_reader_session(job->reader)->n_tokens, slots = job->plan.max_slots;
        int64_t rows = sl_schedule_tokens(work, begin, slots, stepper->half) / STEP_ROWS * STEP_ROWS;
        int64_t least = job->offload && begin >= SL_ATTEND_SPLIT ? READ_BACK_ROWS : STEP_ROWS;
        sl_reader_limit_step(job->reader, rows > least ? rows : least);
        if (must_wait(job)) {
            continue;
        }
        int64_t end = begin + sl_reader_next_tokens(job->reader);
        which[n] = i;
        jobs[n++] = (struct sl_schedule_job){.ticket = job->ticket,
                                             .left = sl_schedule_work(begin, job->plan.n_prompt, slots, stepper->half),
                                             .next = sl_schedule_work(begin, end, slots, stepper->half)};
    }
    int chosen = sl_schedule_next(&stepper->schedule, jobs, n);
    *work_out = chosen >= 0 ? jobs[chosen].next : 0;
    return chosen >= 0 ? which[chosen] : -1;
}

// Waits for a copy to end, for a new job, or for a moment.
static void wait_for_copies(struct sl_prefill *prefill) {
    pthread_mutex_lock(&prefill->mutex);
    if (!prefill->inbox && !prefill->stopping) {
        sl_cond_wait_until(&prefill->wake, &prefill->mutex, sl_deadline_in_ms(COPY_WAIT_MS));
    }
    pthread_mutex_unlock(&prefill->mutex);
}

static void count(struct stepper *stepper, int64_t n_tokens, double work, int64_t step_ns) {
    if (work > 0 && step_ns > 0) {
        double rate = work / (double)step_ns;
        stepper->rate = stepper->rate > 0 ? (3 * stepper->rate + rate) / 4 : rate;
    }
    sl_rate_count(&stepper->prefill->tokens_rate, n_tokens);
}

static void take_turn(struct stepper *stepper) {
    double work;
    int i = choose(stepper, &work);
    if (i < 0) {
        if (stepper->n_open > 0) {
            wait_for_copies(stepper->prefill);
        }
        return;
    }
    struct sl_prefill_job *job = stepper->open[i];
    const struct sl_session *session = sl_reader_session(job->reader);
    int64_t before = session->n_tokens, begin_ns = sl_now_ns();
    struct sl_error err = {0};
    bool done = false;
    enum sl_status status = step(job, &done, &err);
    count(stepper, session->n_tokens - before, status == SL_OK ? work : 0, sl_now_ns() - begin_ns);
    if (status != SL_OK || done) {
        end_open(stepper, i, status, &err);
    }
}

// The position where attending costs as much as the weights do: their multiply-adds of a token in a layer, over those
// of attending to one slot.
static double half_position(const struct sl_model_config *model) {
    double q = (double)model->n_heads * model->head_dim, kv = (double)model->n_kv_heads * model->head_dim;
    double weights = (double)model->hidden * (2 * q + 2 * kv + 3.0 * model->intermediate);
    return weights / (2 * q);
}

void *sl_prefill_engine_main(void *arg) {
    struct sl_prefill *prefill = arg;
    struct stepper here = {.prefill = prefill, .half = half_position(prefill->node.runtime.config)};
    struct stepper *stepper = &here;
    sl_team_pin_caller(prefill->node.runtime.team);
    while (take_inbox(stepper)) {
        open_line(stepper);
        drop_cancelled(stepper);
        take_turn(stepper);
    }
    clear_line(stepper);
    assert(!stepper->line && stepper->n_open == 0); // every handler has gone
    return NULL;
}
