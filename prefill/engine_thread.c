// SPDX-License-Identifier: Apache-2.0
// The thread that owns the engine: one job after the other, chunk by chunk.
#include "base/clock.h"
#include "base/log.h"
#include "prefill/internal.h"
#include "service/reader.h"

// Pieces of a size that the fabric likes; a page is far smaller, a layer may be far larger.
#define MAX_PIECE_BYTES (4u << 20)

static enum sl_status ship_piece(void *arg, const struct sl_capsule_piece *piece) {
    struct sl_prefill_job *job = arg;
    return sl_ship_piece(job->ship, piece->offset, piece->data, piece->bytes);
}

// A layer is final: hand its pages to the fabric. The layers above are still being computed.
static enum sl_status layer_final(void *arg, struct sl_session *session, int layer) {
    struct sl_prefill_job *job = arg;
    enum sl_status status =
        sl_capsule_layer_pieces(session, layer, job->shipped_bytes, MAX_PIECE_BYTES, ship_piece, job);
    if (status == SL_OK) {
        pthread_mutex_lock(&job->mutex);
        job->shipped_bytes += sl_capsule_layer_bytes(session, layer);
        job->shipping = true;
        pthread_cond_signal(&job->changed);
        pthread_mutex_unlock(&job->mutex);
    }
    return status;
}

static void report(struct sl_prefill_job *job, const struct sl_reader *reader, const struct sl_session *session) {
    struct sl_session_stats stats;
    sl_session_get_stats(session, &stats);
    pthread_mutex_lock(&job->mutex);
    job->n_done = session->n_tokens;
    job->resident_bytes = stats.resident_bytes;
    job->peak_bytes = sl_reader_peak_bytes(reader);
    pthread_cond_signal(&job->changed);
    pthread_mutex_unlock(&job->mutex);
}

// A recipe that evicts can be resumed only from a state between two chunks: keep the last one that others can use.
static void archive_boundary(struct sl_prefill_job *job, const struct sl_session *session) {
    int64_t chunk = job->plan.recipe.chunk_tokens, boundary = sl_reader_shared_tokens(&job->plan) / chunk * chunk;
    if (sl_recipe_evicts(&job->plan.recipe) && session->n_tokens == boundary && boundary > job->n_reused) {
        sl_archive_put(job->prefill->archive, job, session, true);
    }
}

static enum sl_status read_prompt(struct sl_prefill_job *job, struct sl_reader *reader, struct sl_error *err) {
    struct sl_prefill *prefill = job->prefill;
    struct sl_session *session = sl_reader_session(reader);
    int64_t began_ns = sl_now_ns(), began_tokens = session->n_tokens;
    enum sl_status status = SL_OK;
    for (bool done = false; status == SL_OK && !done;) {
        if (atomic_load(&job->cancelled)) {
            return sl_fail(err, SL_ERR_CANCELLED, "job %s was cancelled after %lld of %lld tokens", job->id,
                           (long long)session->n_tokens, (long long)job->plan.n_prompt);
        }
        archive_boundary(job, session);
        int64_t before = session->n_tokens;
        status = sl_reader_step(reader, prefill->engine, layer_final, job, &done, err);
        if (status == SL_OK) {
            report(job, reader, session);
            atomic_fetch_add(&prefill->n_tokens, session->n_tokens - before);
            atomic_fetch_add(&prefill->n_steps, 1);
            double seconds = (double)(sl_now_ns() - began_ns) / SL_NS_PER_S;
            atomic_store(&prefill->rate_tokens_per_s,
                         (int64_t)((double)(session->n_tokens - began_tokens) / (seconds + 1e-9)));
        }
    }
    if (status != SL_OK && err->status == SL_OK) {
        sl_fail(err, status, "job %s: %s", job->id, sl_status_text(status));
    }
    return status;
}

// False when the handler has left before the job's turn.
static bool take(struct sl_prefill_job *job) {
    pthread_mutex_lock(&job->mutex);
    bool taken = job->phase == SL_PREFILL_WAITING;
    if (taken) {
        job->phase = SL_PREFILL_READING;
        job->started_ns = sl_now_ns();
    }
    pthread_mutex_unlock(&job->mutex);
    return taken;
}

static void run(struct sl_prefill_job *job) {
    struct sl_prefill *prefill = job->prefill;
    struct sl_error err = {0};
    struct sl_reader *reader = NULL;
    struct sl_reader_config config = {.plan = &job->plan,
                                      .arena = prefill->node.arena,
                                      .ops = prefill->node.ops,
                                      .team = prefill->node.team,
                                      .tokens = job->tokens,
                                      .estimate_errors = job->estimate_errors,
                                      .resumed = job->session};
    enum sl_status status = sl_reader_create(&config, &reader, &err);
    struct sl_session *session = job->session;
    if (status == SL_OK) {
        status = read_prompt(job, reader, &err);
        sl_reader_get_stats(reader, &job->stats);
        sl_reader_get_errors(reader, &job->errors);
        session = sl_reader_take_session(reader);
    }
    sl_reader_destroy(&reader);

    pthread_mutex_lock(&job->mutex);
    job->session = session;
    job->status = status;
    job->err = err;
    job->ended_ns = sl_now_ns();
    job->phase = SL_PREFILL_READ;
    pthread_cond_signal(&job->changed);
    pthread_mutex_unlock(&job->mutex);
}

void *sl_prefill_engine_main(void *arg) {
    struct sl_prefill *prefill = arg;
    void *job;
    sl_team_pin_caller(prefill->node.team);
    // Waits without a deadline: the queue is closed when the worker stops.
    while (sl_queue_pop(prefill->jobs, SL_NO_DEADLINE, &job) == SL_OK) {
        if (take(job)) {
            run(job);
        }
        sl_prefill_job_unref(job);
        atomic_store(&prefill->rate_tokens_per_s, 0);
    }
    return NULL;
}
