// SPDX-License-Identifier: Apache-2.0
/*
 * The thread that owns the engine: all sequences step together.
 *
 * A step: let new sequences in and cancelled ones out; give every sequence its share of rows (what it still has to
 * read, or the token that it wrote last); one forward pass; choose a token for every sequence that has read everything.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "decode/internal.h"

#define MAX_ACTIVE     256
#define RATE_WINDOW_NS SL_NS_PER_S

struct stepper {
    struct sl_decode *decode;
    struct sl_sequence *active[MAX_ACTIVE];
    int n_active;
    struct sl_segment segments[MAX_ACTIVE];
    struct sl_attend plain[MAX_ACTIVE]; // of a layer: those whose attention is ops->attend
    int64_t window_start_ns, window_tokens;
};

void sl_decode_join(struct sl_decode *decode, struct sl_sequence *sequence) {
    pthread_mutex_lock(&decode->mutex);
    sequence->next = NULL;
    *decode->inbox_end = sequence;
    decode->inbox_end = &sequence->next;
    pthread_cond_signal(&decode->wake);
    pthread_mutex_unlock(&decode->mutex);
}

// Hand a sequence back to its handler. It must not be touched afterwards.
static void end_sequence(struct sl_sequence *sequence, enum sl_status status, const char *text) {
    pthread_mutex_lock(&sequence->mutex);
    sequence->status = status;
    if (status != SL_OK) {
        sl_fail(&sequence->err, status, "job %s: %s", sequence->job_id, text);
    }
    sequence->ended = true;
    pthread_cond_signal(&sequence->changed);
    pthread_mutex_unlock(&sequence->mutex);
}

static void drop(struct stepper *stepper, int i, enum sl_status status, const char *text) {
    struct sl_sequence *sequence = stepper->active[i];
    stepper->active[i] = stepper->active[--stepper->n_active];
    end_sequence(sequence, status, text);
}

// Wait for work; take in what has come. False when the worker stops.
static bool take_inbox(struct stepper *stepper) {
    struct sl_decode *decode = stepper->decode;
    pthread_mutex_lock(&decode->mutex);
    while (!decode->inbox && !decode->stopping && stepper->n_active == 0) {
        // Wakes now and then by itself, so that the rate falls to zero when nothing is written.
        if (sl_cond_wait_until(&decode->wake, &decode->mutex, sl_deadline_in_ms(1000)) != SL_OK) {
            atomic_store(&decode->rate_tokens_per_s, 0);
        }
        stepper->window_start_ns = sl_now_ns(); // idle time is no part of a rate
        stepper->window_tokens = 0;
    }
    bool go_on = !decode->stopping;
    while (decode->inbox && stepper->n_active < MAX_ACTIVE) {
        struct sl_sequence *sequence = decode->inbox;
        decode->inbox = sequence->next;
        decode->inbox_end = decode->inbox ? decode->inbox_end : &decode->inbox;
        stepper->active[stepper->n_active++] = sequence;
    }
    pthread_mutex_unlock(&decode->mutex);
    return go_on;
}

// Room for `n` more slots in every layer. The forward pass cannot run out of memory for one sequence and so spoil them
// all.
static enum sl_status reserve(struct sl_session *session, int n) {
    enum sl_status status = SL_OK;
    for (int layer = 0; status == SL_OK && layer < session->geometry.n_layers; layer++) {
        status = sl_session_reserve(session, layer, n);
    }
    return status;
}

/*
 * What the session has taken from the arena is no longer a promise: count it once. After a step, not before it: pages
 * that the step took and eviction has given back are promised all along, so nobody else is granted them in between.
 */
static void settle_promise(struct sl_decode *decode, struct sl_sequence *sequence) {
    size_t taken = sequence->session->taken_bytes;
    size_t promised = sequence->session_bytes > taken ? sequence->session_bytes - taken : 0;
    sl_ledger_settle(decode->node.ledger, &sequence->promised_bytes, promised);
}

// Fill stepper->segments: at least one row for every sequence, and what is left to those that have more to read.
static int share_rows(struct stepper *stepper) {
    int n_segments = 0, rows_left = SL_DECODE_MAX_ROWS;
    for (int i = 0; i < stepper->n_active;) {
        struct sl_sequence *sequence = stepper->active[i];
        if (atomic_load(&sequence->cancelled)) {
            drop(stepper, i, SL_ERR_CANCELLED, "cancelled");
            continue;
        }
        // Leave a row for everybody behind. Where every step evicts or retrieves, tokens that are read again go one by
        // one, as they did when they were written: so a resumed answer is the answer.
        int most = sequence->compressor || sequence->retriever ? 1 : rows_left - (stepper->n_active - i - 1);
        int n = sequence->n_pending < most ? sequence->n_pending : most;
        if (reserve(sequence->session, n) != SL_OK) {
            drop(stepper, i, SL_ERR_EXHAUSTED, "the arena of this decode worker is full; retry in 1000 ms");
            continue;
        }
        sequence->n_taken = n;
        sequence->step_status = SL_OK;
        stepper->segments[n_segments++] =
            (struct sl_segment){.session = sequence->session,
                                .tokens = sequence->pending,
                                .n_tokens = n,
                                .logits = n == sequence->n_pending ? sequence->logits : NULL};
        rows_left -= n;
        i++;
    }
    return n_segments;
}

// ---- recipes at work while decoding ---------------------------------------------------------------------------------

// Work that fails spoils its own sequence only: it is left out from here on and dropped behind the step.
static void spoil(struct sl_sequence *sequence, enum sl_status status) {
    if (status != SL_OK) {
        sequence->step_status = status;
    }
}

static struct sl_compressor *compressor_of(const struct sl_sequence *sequence) {
    return sequence->step_status == SL_OK ? sequence->compressor : NULL;
}

static enum sl_status after_attention(void *arg, int segment, int layer, const struct sl_attend *attend) {
    struct sl_sequence *sequence = ((struct stepper *)arg)->active[segment];
    if (compressor_of(sequence)) {
        spoil(sequence, sl_compressor_step(sequence->compressor, sequence->session, layer, attend, &sequence->err));
    }
    return SL_OK;
}

static struct sl_retriever *retriever_of(const struct sl_sequence *sequence) {
    return sequence->step_status == SL_OK ? sequence->retriever : NULL;
}

/*
 * One layer of all sequences. Questions about offloaded layers go out first, those of every sequence before any answer is
 * waited for; while they are under way the others are computed.
 */
static enum sl_status attend_all(void *arg, int layer, const struct sl_attend *attends, int n_segments) {
    struct stepper *stepper = arg;
    struct sl_node *node = &stepper->decode->node;
    int n_plain = 0;
    for (int s = 0; s < n_segments; s++) {
        struct sl_sequence *sequence = stepper->active[s];
        if (retriever_of(sequence)) {
            spoil(sequence, sl_retriever_ask(sequence->retriever, layer, &attends[s], &sequence->err));
        }
        if (!retriever_of(sequence) || !sl_retriever_serves(sequence->retriever, layer)) {
            stepper->plain[n_plain++] = attends[s];
        }
    }
    if (n_plain > 0) {
        node->ops->attend(node->team, stepper->plain, n_plain);
    }
    for (int s = 0; s < n_segments; s++) {
        struct sl_sequence *sequence = stepper->active[s];
        if (retriever_of(sequence) && sl_retriever_serves(sequence->retriever, layer)) {
            spoil(sequence, sl_retriever_attend(sequence->retriever, layer, &attends[s], &sequence->err));
            if (!retriever_of(sequence)) {
                node->ops->attend(node->team, &attends[s], 1); // nobody will read it, but numbers must be there
            }
        }
    }
    return SL_OK;
}

// One forward pass over segments[i] of active[i]. A batch in which no recipe is at work pays for none.
static enum sl_status forward(struct stepper *stepper, int n_segments, struct sl_error *err) {
    struct sl_layer_hook hook = {.arg = stepper};
    for (int i = 0; i < n_segments; i++) {
        const struct sl_sequence *sequence = stepper->active[i];
        if (sequence->compressor) {
            hook.fn = after_attention;
            hook.want_lse |= sequence->wants.lse;
            hook.want_importance |= sequence->wants.importance;
        }
        if (sequence->retriever) {
            hook.attend_fn = attend_all;
            hook.want_next_q |= sequence->wants_next_q;
        }
    }
    return sl_engine_forward(stepper->decode->engine, stepper->segments, n_segments,
                             hook.fn || hook.attend_fn ? &hook : NULL, err);
}

// ---- what is written ------------------------------------------------------------------------------------------------

static enum sl_status emit(struct sl_sequence *sequence, const struct sl_written *written) {
    size_t n_text = strlen(written->text);
    struct sl_decoded *decoded = malloc(sizeof *decoded + n_text + 1);
    if (!decoded) {
        return SL_ERR_EXHAUSTED;
    }
    decoded->next = NULL;
    decoded->token = written->token;
    decoded->index = written->index;
    memcpy(decoded->text, written->text, n_text + 1);
    pthread_mutex_lock(&sequence->mutex);
    *sequence->last = decoded;
    sequence->last = &decoded->next;
    sequence->stop = written->stop;
    pthread_cond_signal(&sequence->changed);
    pthread_mutex_unlock(&sequence->mutex);
    return SL_OK;
}

// After the forward pass: choose the next token of every sequence that has read all it was given.
static void write_tokens(struct stepper *stepper) {
    for (int i = 0; i < stepper->n_active;) {
        struct sl_sequence *sequence = stepper->active[i];
        settle_promise(stepper->decode, sequence);
        if (sequence->step_status != SL_OK) {
            char why[sizeof sequence->err.text];
            snprintf(why, sizeof why, "%s", sequence->err.text); // end_sequence() writes where it stands
            drop(stepper, i, sequence->step_status, why);
            continue;
        }
        int n_left = sequence->n_pending - sequence->n_taken;
        memmove(sequence->pending, sequence->pending + sequence->n_taken, sizeof(int32_t) * (size_t)n_left);
        sequence->n_pending = n_left;
        if (n_left > 0) {
            i++;
            continue;
        }
        struct sl_written written;
        struct sl_error err = {0};
        enum sl_status status = sl_writer_next(sequence->writer, sequence->logits, &written, &err);
        if (status == SL_OK) {
            status = emit(sequence, &written);
        }
        if (status != SL_OK) {
            drop(stepper, i, status, err.text[0] ? err.text : sl_status_text(status));
        } else if (written.stop != SL_STOP_NONE) {
            drop(stepper, i, SL_OK, "");
        } else {
            sequence->pending[0] = written.token.id;
            sequence->n_pending = 1;
            i++;
        }
        atomic_fetch_add(&stepper->decode->n_tokens, 1);
        stepper->window_tokens++;
    }
}

static void update_rate(struct stepper *stepper) {
    int64_t now = sl_now_ns(), elapsed = now - stepper->window_start_ns;
    if (elapsed >= RATE_WINDOW_NS) {
        atomic_store(&stepper->decode->rate_tokens_per_s, stepper->window_tokens * SL_NS_PER_S / elapsed);
        stepper->window_start_ns = now;
        stepper->window_tokens = 0;
    }
}

static void end_all(struct stepper *stepper, enum sl_status status, const char *text) {
    while (stepper->n_active > 0) {
        drop(stepper, 0, status, text);
    }
}

void *sl_decode_engine_main(void *arg) {
    struct sl_decode *decode = arg;
    struct stepper here = {.decode = decode}, *stepper = &here; // some 80 KiB
    sl_team_pin_caller(decode->node.team);
    while (take_inbox(stepper)) {
        int n_segments = share_rows(stepper);
        if (n_segments == 0) {
            continue;
        }
        struct sl_error err = {0};
        enum sl_status status = forward(stepper, n_segments, &err);
        if (status != SL_OK) {
            sl_log_error("decode", "forward pass of %d sequences failed: %s", n_segments, err.text);
            end_all(stepper, status, err.text);
            continue;
        }
        atomic_fetch_add(&decode->n_steps, 1);
        write_tokens(stepper);
        update_rate(stepper);
    }
    end_all(stepper, SL_ERR_PEER_LOST, "the decode worker is stopping");
    return NULL;
}
