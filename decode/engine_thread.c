// SPDX-License-Identifier: Apache-2.0
/*
 * The thread that owns the engine: all answers step together.
 *
 * A step: accept new answers and remove cancelled ones; give every answer its share of rows (tokens that it still has
 * to read, or the token that it wrote last); run one forward pass, which chooses a token for every answer that has read
 * everything. Conversation turns that this worker reads (engine/runner/reading.h) have a pass of their own, one chunk
 * of one turn. It advances by a few layers between two steps, so that reading and writing each get half of the time. An
 * aggregated worker shares reading's half among turns and prompts (prefill/engine_thread.c).
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/loop.h"
#include "decode/internal.h"

#define MAX_ACTIVE      SL_WRITING_MAX_ANSWERS
#define PROMPTS_WAIT_MS 5 // between two looks whether prompts have the memory that they wait for

struct stepper {
    struct sl_decode *decode;
    struct sl_answer *active[MAX_ACTIVE];
    int n_active;
    struct sl_answer *reading[MAX_ACTIVE]; // round-robin; the pass reads reading[0]
    int n_reading;
    struct sl_reading pass; // valid while pass_open
    bool pass_open;
    int64_t step_ns;              // duration of the last step that wrote tokens
    enum sl_prefill_turn prompts; // what became of the last turn of an aggregated worker's prompts
};

void sl_decode_join(struct sl_decode *decode, struct sl_answer *answer) {
    SL_LOCKED(&decode->loop.mutex);
    answer->next = NULL;
    atomic_fetch_add(&decode->node.engine.n_waiting, 1);
    *decode->inbox_end = answer;
    decode->inbox_end = &answer->next;
    pthread_cond_signal(&decode->loop.changed);
}

// Returns an answer to its handler, with why it failed where status is not SL_OK. The caller must not touch it afterwards.
static void end_answer(struct sl_decode *decode, struct sl_answer *answer, enum sl_status status,
                       const struct sl_error *why) {
    atomic_fetch_sub(&decode->node.engine.n_waiting, 1);
    SL_LOCKED(&answer->mutex);
    answer->status = status;
    if (status != SL_OK) {
        sl_fail_from(&answer->err, status, why, "job %s: %s", answer->job_id,
                     why->text[0] ? why->text : sl_status_text(status));
    }
    answer->ended = true;
    pthread_cond_signal(&answer->changed);
}

static void drop(struct stepper *stepper, int i, enum sl_status status, const struct sl_error *why) {
    struct sl_answer *answer = stepper->active[i];
    stepper->active[i] = stepper->active[--stepper->n_active];
    end_answer(stepper->decode, answer, status, why);
}

static void drop_saying(struct stepper *stepper, int i, enum sl_status status, const char *text) {
    struct sl_error why;
    drop(stepper, i, sl_fail(&why, status, "%s", text), &why);
}

// Waits for work and accepts new answers. False: the worker is stopping.
static bool take_inbox(struct stepper *stepper) {
    struct sl_decode *decode = stepper->decode;
    atomic_store(&decode->n_here, stepper->n_active + stepper->n_reading);
    pthread_mutex_lock(&decode->loop.mutex);
    while (!decode->inbox && !decode->loop.stopping && !decode->woken && stepper->prompts != SL_PREFILL_READS &&
           stepper->n_active + stepper->n_reading == 0) {
        // Wakes up once a second by itself, so that the rate falls to zero when nothing is written.
        bool prompts_wait = stepper->prompts == SL_PREFILL_WAITS;
        int64_t deadline_ns = sl_deadline_in_ms(prompts_wait ? PROMPTS_WAIT_MS : 1000);
        if (sl_loop_wait(&decode->loop, deadline_ns) != SL_OK) {
            atomic_store(&decode->tokens_rate.per_s, 0);
        }
        sl_rate_restart(&decode->tokens_rate);
        sl_kept_reap(&decode->kept);
        if (prompts_wait) {
            break;
        }
    }
    decode->woken = false;
    bool go_on = !decode->loop.stopping;
    while (decode->inbox && stepper->n_active + stepper->n_reading < MAX_ACTIVE) {
        struct sl_answer *answer = decode->inbox;
        decode->inbox = answer->next;
        decode->inbox_end = decode->inbox ? decode->inbox_end : &decode->inbox;
        if (answer->reader) {
            stepper->reading[stepper->n_reading++] = answer;
        } else {
            stepper->active[stepper->n_active++] = answer;
        }
    }
    pthread_mutex_unlock(&decode->loop.mutex);
    atomic_store(&decode->n_here, stepper->n_active + stepper->n_reading);
    sl_kept_reap(&decode->kept);
    sl_progress_counter_tick(&decode->node.engine);
    return go_on;
}

// Reserves room for `n` more slots in every layer, so that the shared forward pass cannot run out of memory because of
// one answer.
static enum sl_status reserve(struct sl_session *session, int n) {
    for (int layer = 0; layer < session->geometry.n_layers; layer++) {
        SL_TRY(sl_session_reserve(session, layer, n));
    }
    return SL_OK;
}

static void reconcile(struct sl_decode *decode, struct sl_answer *answer, const struct sl_session *session) {
    sl_ledger_reconcile(decode->node.ledger, &answer->promised_bytes, answer->session_bytes, session->taken_bytes);
}

// Feeds every answer: at least one row, and the remaining rows to those that have more tokens to read. Returns how many
// answers step.
static int share_rows(struct stepper *stepper) {
    int rows_left = SL_DECODE_MAX_ROWS;
    for (int i = 0; i < stepper->n_active;) {
        struct sl_answer *answer = stepper->active[i];
        struct sl_writer *writer = &answer->writer;
        if (atomic_load(&answer->cancelled)) {
            drop_saying(stepper, i, SL_ERR_CANCELLED, "cancelled");
            continue;
        }
        // Leaves a row for each later answer. If every step evicts or retrieves, tokens that are read again go one by
        // one, as when they were written. So a resumed answer equals the original one.
        int most = sl_writer_one_by_one(writer) ? 1 : rows_left - (stepper->n_active - i - 1);
        int n = answer->n_pending < most ? answer->n_pending : most;
        enum sl_status status = reserve(writer->session, n);
        while (status != SL_OK && sl_kept_drop_oldest(&stepper->decode->kept)) {
            status = reserve(writer->session, n);
        }
        if (status != SL_OK) {
            drop_saying(stepper, i, SL_ERR_EXHAUSTED, "the arena of this decode worker is full; retry in 1000 ms");
            continue;
        }
        sl_writer_feed(writer, answer->pending, n, n == answer->n_pending ? sl_output_choice(answer->output) : NULL);
        writer->input.n_reading = answer->n_reading < n ? answer->n_reading : n;
        rows_left -= n;
        i++;
    }
    return stepper->n_active;
}

static enum sl_status step(struct stepper *stepper, struct sl_error *err) {
    struct sl_writer *writers[MAX_ACTIVE];
    int64_t begin_ns = sl_now_ns();
    for (int i = 0; i < stepper->n_active; i++) {
        writers[i] = &stepper->active[i]->writer;
    }
    struct sl_decode *decode = stepper->decode;
    struct sl_writing writing;
    enum sl_status status =
        sl_writing_begin(&writing, &decode->node.runtime, decode->write_activations, writers, stepper->n_active, err);
    if (status == SL_OK) {
        while (sl_writing_layer(&writing)) {
        }
        status = sl_writing_end(&writing, err);
    }
    stepper->step_ns = sl_now_ns() - begin_ns;
    return status;
}

// ---- conversation turns that this worker reads ---------------------------------------------------------------------

// Takes reading[0] out of the round: it has been read and is written from now on, has failed, or waits for its next
// chunk.
static void end_chunk(struct stepper *stepper, enum sl_status status, struct sl_error *err) {
    struct sl_answer *answer = stepper->reading[0];
    memmove(stepper->reading, stepper->reading + 1, sizeof *stepper->reading * (size_t)--stepper->n_reading);
    stepper->pass_open = false;
    status = sl_node_check_device(&stepper->decode->node, status, err);
    reconcile(stepper->decode, answer, sl_reader_session(answer->reader));
    if (status != SL_OK) {
        end_answer(stepper->decode, answer, status, err);
    } else if (!sl_reader_is_done(answer->reader)) {
        stepper->reading[stepper->n_reading++] = answer;
    } else {
        answer->read_ns = sl_now_ns();
        answer->writer.session = sl_reader_take_session(answer->reader);
        sl_reader_destroy(&answer->reader);
        sl_decode_drop_joined(answer);
        stepper->active[stepper->n_active++] = answer;
    }
}

// Returns how long each kind of reading may take until the next step: half of the time goes to all kinds together.
static int64_t share_ns(const struct stepper *stepper) {
    bool both = stepper->n_reading > 0 && stepper->prompts == SL_PREFILL_READS;
    return both ? stepper->step_ns / 2 : stepper->step_ns;
}

// Reads layers of the current turn for as long as the last step took; if there is no answer to write, to the end of its
// chunk. Or joins tokens that another capsule holds.
static void read_turn(struct stepper *stepper) {
    struct sl_answer *answer = stepper->reading[0];
    struct sl_decode *decode = stepper->decode;
    struct sl_error err = {0};
    enum sl_status status = SL_OK;
    if (!stepper->pass_open && sl_reader_joins(answer->reader)) {
        status = atomic_load(&answer->cancelled) ? sl_fail(&err, SL_ERR_CANCELLED, "cancelled")
                                                 : sl_reader_join(answer->reader, &err);
        end_chunk(stepper, status, &err);
        return;
    }
    if (!stepper->pass_open) {
        status =
            sl_reading_begin(&stepper->pass, &decode->node.runtime, decode->turn_activations, &answer->reader, 1, &err);
        stepper->pass_open = status == SL_OK;
    }
    int64_t until_ns = sl_now_ns() + share_ns(stepper);
    bool more = status == SL_OK, alone = stepper->n_active == 0 && stepper->prompts != SL_PREFILL_READS;
    do {
        more = more && !atomic_load(&answer->cancelled) && sl_reading_layer(&stepper->pass);
    } while (more && (alone || sl_now_ns() < until_ns));
    if (atomic_load(&answer->cancelled)) {
        // A pass that is given up needs no end call
        end_chunk(stepper, sl_fail(&err, SL_ERR_CANCELLED, "cancelled"), &err);
    } else if (!more) {
        SL_THEN(status, sl_reading_end(&stepper->pass, &err));
        end_chunk(stepper, status == SL_OK ? sl_reader_status(answer->reader, &err) : status, &err);
    }
}

// ---- prompts that this worker reads ---------------------------------------------------------------------------------

// Reads layers of prompts for as long as the last step took, at least one; if there is no answer to write, one.
static void read_prompts(struct stepper *stepper) {
    int64_t until_ns = sl_now_ns() + share_ns(stepper);
    do {
        stepper->prompts = sl_prefill_turn(stepper->decode->prefill);
    } while (stepper->prompts == SL_PREFILL_READS && stepper->n_active > 0 && sl_now_ns() < until_ns);
}

// ---- written tokens -------------------------------------------------------------------------------------------------

static enum sl_status emit(struct sl_answer *answer, const struct sl_output_token *written) {
    size_t n_text = strlen(written->text);
    struct sl_decoded *decoded = malloc(sizeof *decoded + n_text + 1);
    if (!decoded) {
        return SL_ERR_EXHAUSTED;
    }
    decoded->next = NULL;
    decoded->token = written->token;
    decoded->index = written->index;
    memcpy(decoded->text, written->text, n_text + 1);
    SL_LOCKED(&answer->mutex);
    *answer->last = decoded;
    answer->last = &decoded->next;
    answer->stop = written->stop;
    pthread_cond_signal(&answer->changed);
    return SL_OK;
}

// Runs after the forward pass: passes on the next token of every answer that has read all its tokens.
static void write_tokens(struct stepper *stepper) {
    int64_t n_written = 0;
    for (int i = 0; i < stepper->n_active;) {
        struct sl_answer *answer = stepper->active[i];
        reconcile(stepper->decode, answer, answer->writer.session);
        if (answer->writer.status != SL_OK) {
            struct sl_error *err = &answer->writer.err;
            drop(stepper, i, sl_node_check_device(&stepper->decode->node, answer->writer.status, err), err);
            continue;
        }
        int n_taken = answer->writer.input.n_tokens, n_left = answer->n_pending - n_taken;
        memmove(answer->pending, answer->pending + n_taken, sizeof(int32_t) * (size_t)n_left);
        answer->n_pending = n_left;
        answer->n_reading -= answer->writer.input.n_reading;
        if (answer->writer.input.n_reading > 0) {
            answer->read_ns = sl_now_ns();
        }
        if (n_left > 0) {
            i++;
            continue;
        }
        struct sl_output_token written;
        struct sl_error err = {0};
        enum sl_status status = sl_output_next(answer->output, &written, &err);
        SL_THEN(status, emit(answer, &written));
        if (status != SL_OK) {
            drop(stepper, i, status, &err);
        } else if (written.stop != SL_STOP_NONE) {
            drop(stepper, i, SL_OK, NULL);
        } else {
            answer->pending[0] = written.token.id;
            answer->n_pending = 1;
            i++;
        }
        n_written++;
    }
    sl_rate_count(&stepper->decode->tokens_rate, n_written);
}

static void end_all(struct stepper *stepper, enum sl_status status, const struct sl_error *why) {
    while (stepper->n_active > 0) {
        drop(stepper, 0, status, why);
    }
}

static void end_reading(struct stepper *stepper, enum sl_status status, const struct sl_error *why) {
    while (stepper->n_reading > 0) {
        end_answer(stepper->decode, stepper->reading[--stepper->n_reading], status, why);
    }
}

void *sl_decode_engine_main(void *arg) {
    struct sl_decode *decode = arg;
    struct stepper here = {.decode = decode}, *stepper = &here;
    sl_team_pin_caller(decode->node.runtime.team);
    while (take_inbox(stepper)) {
        if (stepper->n_reading > 0) {
            read_turn(stepper);
        }
        if (decode->prefill) {
            read_prompts(stepper);
        }
        if (share_rows(stepper) == 0) {
            continue;
        }
        struct sl_error err = {0};
        enum sl_status status = sl_node_check_device(&decode->node, step(stepper, &err), &err);
        if (status != SL_OK) {
            sl_log_error("decode", "forward pass of %d answers failed: %s", stepper->n_active, err.text);
            end_all(stepper, status, &err);
            continue;
        }
        write_tokens(stepper);
    }
    struct sl_error why;
    enum sl_status stopping = sl_fail(&why, SL_ERR_PEER_LOST, "the decode worker is stopping");
    end_all(stepper, stopping, &why);
    end_reading(stepper, stopping, &why);
    return NULL;
}
