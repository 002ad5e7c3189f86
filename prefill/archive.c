// SPDX-License-Identifier: Apache-2.0
#include "prefill/archive.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/loop.h"
#include "prefill/copy.h"
#include "proto/kept.h"

#define MAX_QUEUED  32
#define BLOCK_SHARE 4     // copies into blocks are outside the arena: together at most this share of its size
#define HOLD_MS     500   // time that a copy may keep its memory after a job asks for it
#define READ_SHARE  4     // in addition to HOLD_MS, a job waits for its own state for this share of its reading time,
#define WAIT_MS     5000  // and no longer than this
#define AVOID_MS    10000 // time for which no copy goes to a store that was lost

enum state { WAITING, RESERVING, SENDING };

struct entry {
    struct entry *next;
    struct sl_copy *copy;
    // Job whose session's pages are the source; NULL: the copy has a session or block of its own
    struct sl_prefill_job *reads;
    enum state state;
    bool is_checkpoint;
    bool is_finished; // with `reads`: the job waits until it is sent, and then hands its session over
    bool dropped;
    enum sl_not_kept why;
    int64_t pressed_ns; // deadline for giving up its memory; 0: no job asks for it
};

enum checkpoint_result { CHECKPOINT_STORED, CHECKPOINT_TOO_LARGE, CHECKPOINT_FAILED, N_CHECKPOINT_RESULTS };

struct sl_archive {
    struct sl_prefill *prefill;
    _Atomic int64_t n_not_kept[SL_N_NOT_KEPT];
    atomic_flag told[SL_N_NOT_KEPT];
    _Atomic int64_t n_checkpoints[N_CHECKPOINT_RESULTS];
    struct sl_loop loop;                  // its mutex guards the fields below
    struct entry *first, **end, *current; // the waiting copies; the copy that the thread is sending
    int n_queued;                         // waiting, current and prepared copies
    size_t block_bytes;                   // bytes of copies in blocks from malloc
    char avoided[128];
    int64_t avoid_until_ns;
};

// ---- copies that are left out ---------------------------------------------------------------------------------------

static const struct {
    Sluice__V1__Kept said;
    const char *text;
} reasons[SL_N_NOT_KEPT] = {
    [SL_NOT_KEPT_BUSY] = {SLUICE__V1__KEPT__KEPT_NOT_BUSY, "too many copies wait for the store"},
    [SL_NOT_KEPT_MEMORY] = {SLUICE__V1__KEPT__KEPT_NOT_MEMORY, "there is no memory for a copy"},
    [SL_NOT_KEPT_TOO_LARGE] = {SLUICE__V1__KEPT__KEPT_NOT_TOO_LARGE, "the store's --arena is smaller"},
    [SL_NOT_KEPT_REFUSED] = {SLUICE__V1__KEPT__KEPT_NOT_REFUSED, "the store has no room"},
    [SL_NOT_KEPT_UNREACHABLE] = {SLUICE__V1__KEPT__KEPT_NOT_UNREACHABLE, "the store is lost or slow"},
    [SL_NOT_KEPT_LATE] = {SLUICE__V1__KEPT__KEPT_NOT_LATE, "the prompt was read on before the copy had left"},
    [SL_NOT_KEPT_PRESSURE] = {SLUICE__V1__KEPT__KEPT_NOT_PRESSURE, "another job needed the memory"},
    [SL_NOT_KEPT_STOPPING] = {SLUICE__V1__KEPT__KEPT_NOT_STOPPING, "this worker stops"},
};

// Counts and logs a copy that is left out. The first one for every reason is a warning.
static void count(struct sl_archive *archive, enum sl_not_kept why, int64_t n_tokens, const char *detail) {
    atomic_fetch_add(&archive->n_not_kept[why], 1);
    if (why == SL_NOT_KEPT_STOPPING || atomic_flag_test_and_set(&archive->told[why])) {
        sl_log_info("archive", "tokens=%lld not_kept=%s %s", (long long)n_tokens, sl_kept_word(reasons[why].said),
                    detail);
    } else {
        sl_log_warn("archive",
                    "tokens=%lld not_kept=%s: %s, so later jobs read them again%s%s (said once; "
                    "sluice_capsules_not_kept_total counts)",
                    (long long)n_tokens, sl_kept_word(reasons[why].said), reasons[why].text, detail[0] ? ": " : "",
                    detail);
    }
}

static void write_checkpoint_metrics(struct sl_archive *archive, FILE *page) {
    static const char name[] = "sluice_checkpoints_total";
    static const char *const results[N_CHECKPOINT_RESULTS] = {"stored", "too_large", "failed"};
    sl_metrics_declare(page, SL_COUNTER, name, "Parts of long prompts that were to be stored while they are read.");
    for (int i = 0; i < N_CHECKPOINT_RESULTS; i++) {
        sl_metrics_sample(page, name, (double)atomic_load(&archive->n_checkpoints[i]), "result", results[i], NULL);
    }
}

void sl_archive_write_metrics(struct sl_archive *archive, FILE *page) {
    static const char name[] = "sluice_capsules_not_kept_total";
    sl_metrics_declare(page, SL_COUNTER, name, "Copies for later jobs that did not reach the store.");
    for (int i = 0; i < SL_N_NOT_KEPT; i++) {
        sl_metrics_sample(page, name, (double)atomic_load(&archive->n_not_kept[i]), "reason",
                          sl_kept_word(reasons[i].said), NULL);
    }
    write_checkpoint_metrics(archive, page);
}

// ---- entries -------------------------------------------------------------------------------------------------------

// Drops a copy: one that no ship reads frees its memory now; one that is being sent ends with its ship. Lock held.
static void drop(struct sl_archive *archive, struct entry *entry, enum sl_not_kept why) {
    if (entry->dropped) {
        return;
    }
    entry->dropped = true;
    entry->why = why;
    if (entry->state != SENDING) {
        sl_copy_release_body(entry->copy);
        entry->reads = NULL;
        pthread_cond_broadcast(&archive->loop.changed);
    }
}

// Returns the copy that reads the job's pages. Lock held.
static struct entry *find(struct sl_archive *archive, const struct sl_prefill_job *job) {
    struct entry *entry = archive->current;
    if (!entry || entry->reads != job) {
        for (entry = archive->first; entry && entry->reads != job; entry = entry->next) {
        }
    }
    return entry;
}

// Returns true if no copy goes to this store: one has failed lately, or a look-up has. Lock held.
static bool avoids(struct sl_archive *archive, const char *address) {
    return (sl_now_ns() < archive->avoid_until_ns && strcmp(archive->avoided, address) == 0) ||
           sl_store_channels_standing(sl_store_client_channels(archive->prefill->store), address) != SL_STORE_GOOD;
}

// Appends a copy to the queue. Lock held.
static void push(struct sl_archive *archive, struct entry *entry) {
    *archive->end = entry;
    archive->end = &entry->next;
    pthread_cond_broadcast(&archive->loop.changed);
}

/*
 * Reserves a position in the queue for a copy of `bytes`. Returns SL_N_NOT_KEPT on success, otherwise the reason for
 * the refusal.
 */
static enum sl_not_kept enter(struct sl_archive *archive, const struct sl_prefill_job *job, size_t bytes) {
    enum sl_not_kept why = SL_N_NOT_KEPT;
    SL_LOCKED(&archive->loop.mutex);
    if (archive->loop.stopping) {
        why = SL_NOT_KEPT_STOPPING;
    } else if (job->store_bytes > 0 && bytes > (size_t)job->store_bytes) {
        why = SL_NOT_KEPT_TOO_LARGE;
    } else if (avoids(archive, job->store_address)) {
        why = SL_NOT_KEPT_UNREACHABLE;
    } else if (archive->n_queued == MAX_QUEUED) {
        why = SL_NOT_KEPT_BUSY;
    } else {
        archive->n_queued++;
    }
    return why;
}

static void leave(struct sl_archive *archive, size_t block_bytes) {
    SL_LOCKED(&archive->loop.mutex);
    archive->n_queued--;
    archive->block_bytes -= block_bytes;
}

// ---- states between two chunks (engine's thread) -------------------------------------------------------------------

// Takes a part of the bytes that blocks may use. False: too few are left.
static bool take_block_bytes(struct sl_archive *archive, size_t bytes) {
    SL_LOCKED(&archive->loop.mutex);
    size_t most = (size_t)archive->prefill->node->config.arena_bytes / BLOCK_SHARE;
    bool fits = bytes <= most && archive->block_bytes <= most - bytes;
    archive->block_bytes += fits ? bytes : 0;
    return fits;
}

// Returns the first token whose reading changes pages. If a recipe evicts at the end only and sums no scores, only the
// last chunk changes them.
static int64_t unchanged_until(const struct sl_plan *plan, int64_t n_tokens) {
    bool at_end = !(plan->recipe.when & SL_WHEN_CHUNK);
    return at_end && sl_plan_can_truncate(plan, n_tokens) ? sl_plan_body_tokens(plan) : n_tokens + 1;
}

static enum sl_not_kept put_boundary(struct sl_archive *archive, struct sl_prefill_job *job,
                                     const struct sl_session *session) {
    size_t bytes = sl_capsule_body_bytes(session);
    enum sl_not_kept why = enter(archive, job, bytes);
    if (why != SL_N_NOT_KEPT) {
        return why;
    }
    int64_t until = unchanged_until(&job->plan, session->n_tokens);
    bool stages = sl_node_stages(archive->prefill->node);
    bool in_block = !stages && until <= session->n_tokens + 1 && take_block_bytes(archive, bytes);
    struct entry *entry = calloc(1, sizeof *entry);
    enum sl_copy_from from = stages || in_block ? SL_COPY_FROM_BLOCK : SL_COPY_FROM_PAGES;
    enum sl_status status = entry ? sl_copy_of_boundary(job, session, from, &entry->copy) : SL_ERR_EXHAUSTED;
    if (status != SL_OK) {
        free(entry);
        leave(archive, in_block ? bytes : 0);
        return SL_NOT_KEPT_MEMORY;
    }
    entry->copy->block_bytes = in_block ? bytes : 0;
    SL_LOCKED(&archive->loop.mutex);
    if (from == SL_COPY_FROM_PAGES) {
        entry->reads = job;
        job->release_tokens = until;
        job->release_ns = 0;
    }
    push(archive, entry);
    return SL_N_NOT_KEPT;
}

void sl_archive_put_boundary(struct sl_archive *archive, struct sl_prefill_job *job, const struct sl_session *session) {
    if (!job->store_address[0] || session->n_tokens == 0) {
        return;
    }
    // Pending until a copy that ends quickly writes its result
    atomic_store(&job->kept_state, SLUICE__V1__KEPT__KEPT_PENDING);
    enum sl_not_kept why = put_boundary(archive, job, session);
    if (why != SL_N_NOT_KEPT) {
        count(archive, why, session->n_tokens, "");
        atomic_store(&job->kept_state, reasons[why].said);
    }
}

// Returns true if enough was read since the last checkpoint, and the next chunk is not the last, which quantizes the pages.
static bool is_due(const struct sl_prefill_job *job, const struct sl_session *session) {
    const struct sl_recipe *recipe = &job->plan.recipe;
    int64_t n_tokens = session->n_tokens, interval_ns = job->prefill->checkpoint_ms * SL_NS_PER_MS;
    if (interval_ns == 0 || job->checkpoints_end || !job->store_address[0] || sl_recipe_evicts(recipe) ||
        sl_recipe_offloads(recipe)) {
        return false;
    }
    int64_t before = job->checkpoint_tokens > 0 ? job->checkpoint_tokens : job->n_reused;
    int64_t since_ns = job->checkpoint_tokens > 0 ? job->checkpoint_ns : job->started_ns;
    return n_tokens % SL_PREFIX_BLOCK == 0 && n_tokens > before && n_tokens - before >= before / 2 &&
           n_tokens + sl_reader_next_tokens(job->reader) < job->plan.n_prompt && since_ns > 0 &&
           sl_now_ns() - since_ns >= interval_ns;
}

void sl_archive_put_checkpoint(struct sl_archive *archive, struct sl_prefill_job *job) {
    const struct sl_session *session = sl_reader_session(job->reader);
    if (!is_due(job, session)) {
        return;
    }
    bool busy;
    SL_WITH_LOCK(&archive->loop.mutex, busy = find(archive, job) != NULL);
    size_t bytes = sl_capsule_body_bytes(session);
    double most = (double)job->store_bytes * archive->prefill->checkpoint_share;
    if (job->store_bytes > 0 && (double)bytes > most) { // the finished capsule may fit: it is quantized
        job->checkpoints_end = true;
        atomic_fetch_add(&archive->n_checkpoints[CHECKPOINT_TOO_LARGE], 1);
        sl_log_info("archive", "tokens=%lld checkpoint=too_large bytes=%zu most=%.0f (--checkpoint-share)",
                    (long long)session->n_tokens, bytes, most);
        return;
    }
    if (busy || enter(archive, job, bytes) != SL_N_NOT_KEPT) {
        return;
    }
    job->checkpoint_tokens = session->n_tokens;
    job->checkpoint_ns = sl_now_ns();
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry || sl_copy_of_checkpoint(job, session, &entry->copy) != SL_OK) {
        free(entry);
        leave(archive, 0);
        atomic_fetch_add(&archive->n_checkpoints[CHECKPOINT_FAILED], 1);
        return;
    }
    entry->is_checkpoint = true;
    SL_LOCKED(&archive->loop.mutex);
    if (entry->copy->n_pieces > 0) {
        entry->reads = job;
        job->release_tokens = job->plan.n_prompt;
        job->release_ns = 0;
    }
    push(archive, entry);
}

// Tells the job what became of a copy of its pages.
static void tell(const struct entry *entry, struct sl_prefill_job *job, Sluice__V1__Kept kept) {
    if (entry->is_finished) {
        job->kept = kept;
    } else if (!entry->is_checkpoint) {
        atomic_store(&job->kept_state, kept);
    }
}

// Returns how long the job waits for its state. Without the state, a later prompt reads for as long as this one has.
static int64_t wait_ms(const struct sl_prefill_job *job) {
    int64_t share_ms = (sl_now_ns() - job->started_ns) / SL_NS_PER_MS / READ_SHARE;
    return HOLD_MS + (share_ms < WAIT_MS ? share_ms : WAIT_MS);
}

bool sl_archive_release(struct sl_archive *archive, struct sl_prefill_job *job) {
    SL_LOCKED(&archive->loop.mutex);
    struct entry *entry = find(archive, job);
    if (entry && job->release_ns == 0) {
        job->release_ns = sl_deadline_in_ms(wait_ms(job));
    }
    if (entry && entry->is_checkpoint) {
        drop(archive, entry, SL_NOT_KEPT_LATE);
        entry = find(archive, job);
    } else if (entry && sl_now_ns() >= job->release_ns) {
        tell(entry, job, SLUICE__V1__KEPT__KEPT_NOT_LATE);
        drop(archive, entry, SL_NOT_KEPT_LATE);
        entry = find(archive, job);
    }
    return entry == NULL;
}

// ---- finished sessions (handler's thread) --------------------------------------------------------------------------

// Queues a session that stays here and is too large for a block, from its pages: the job waits for that.
static enum sl_not_kept put_finished(struct sl_archive *archive, struct sl_prefill_job *job) {
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry || sl_copy_of_pages(job, &entry->copy) != SL_OK) {
        free(entry);
        leave(archive, 0);
        return SL_NOT_KEPT_MEMORY;
    }
    job->kept = SLUICE__V1__KEPT__KEPT_PENDING;
    SL_LOCKED(&archive->loop.mutex);
    entry->is_finished = true;
    entry->reads = job;
    job->release_ns = 0;
    push(archive, entry);
    return SL_N_NOT_KEPT;
}

void sl_archive_prepare(struct sl_archive *archive, struct sl_prefill_job *job) {
    if (!job->store_address[0] || job->session->n_tokens == 0) {
        return;
    }
    size_t bytes = sl_capsule_body_bytes(job->session);
    bool in_block = job->here && !sl_node_stages(archive->prefill->node);
    enum sl_not_kept why = enter(archive, job, bytes);
    if (why == SL_N_NOT_KEPT && in_block && !take_block_bytes(archive, bytes)) {
        why = put_finished(archive, job);
        if (why == SL_N_NOT_KEPT) {
            return;
        }
    }
    if (why == SL_N_NOT_KEPT && sl_copy_of_finished(job, &job->copy) != SL_OK) {
        leave(archive, in_block ? bytes : 0);
        why = SL_NOT_KEPT_MEMORY;
    }
    if (why == SL_N_NOT_KEPT) {
        job->copy->block_bytes = in_block ? bytes : 0;
    }
    if (why != SL_N_NOT_KEPT) {
        count(archive, why, job->session->n_tokens, "");
    }
    job->kept = why == SL_N_NOT_KEPT ? SLUICE__V1__KEPT__KEPT_PENDING : reasons[why].said;
}

void sl_archive_end_job(struct sl_archive *archive, struct sl_prefill_job *job, bool arrived) {
    pthread_mutex_lock(&archive->loop.mutex);
    for (struct entry *entry; (entry = find(archive, job)) != NULL;) {
        drop(archive, entry, SL_NOT_KEPT_LATE);
        if (find(archive, job)) {
            sl_loop_wait(&archive->loop,
                         SL_NO_DEADLINE); // the ship notices this within 50 ms, and ends
        }
    }
    pthread_mutex_unlock(&archive->loop.mutex);
    if (!job->copy) {
        return;
    }
    struct entry *entry = arrived ? calloc(1, sizeof *entry) : NULL;
    if (!entry || sl_copy_take_session(job->copy, job) != SL_OK) {
        free(entry);
        if (arrived) {
            count(archive, SL_NOT_KEPT_MEMORY, job->copy->n_tokens, "");
        }
        size_t block_bytes = job->copy->block_bytes;
        sl_copy_destroy(&job->copy);
        leave(archive, block_bytes);
        return;
    }
    entry->copy = job->copy;
    job->copy = NULL;
    SL_WITH_LOCK(&archive->loop.mutex, push(archive, entry));
}

// ---- pressure ------------------------------------------------------------------------------------------------------

// Asks a copy for its memory. False: it holds no memory that jobs could use. Lock held.
static bool press(struct sl_archive *archive, struct entry *entry, int64_t now_ns) {
    if (!entry || !sl_copy_holds_memory(entry->copy)) {
        return false;
    }
    if (entry->pressed_ns == 0) {
        entry->pressed_ns = sl_deadline_in_ms(HOLD_MS);
    } else if (now_ns >= entry->pressed_ns) {
        drop(archive, entry, SL_NOT_KEPT_PRESSURE);
    }
    return true;
}

bool sl_archive_press(struct sl_archive *archive) {
    int64_t now_ns = sl_now_ns();
    SL_LOCKED(&archive->loop.mutex);
    bool held = press(archive, archive->current, now_ns);
    for (struct entry *entry = archive->first; entry; entry = entry->next) {
        held = press(archive, entry, now_ns) || held;
    }
    return held;
}

// ---- sending (own thread) ------------------------------------------------------------------------------------------

static bool on_grant(void *arg) {
    struct sl_archive *archive = arg;
    SL_LOCKED(&archive->loop.mutex);
    bool go_on = !archive->current->dropped && !archive->loop.stopping;
    archive->current->state = go_on ? SENDING : RESERVING;
    return go_on;
}

static bool go_on(void *arg) {
    struct sl_archive *archive = arg;
    SL_LOCKED(&archive->loop.mutex);
    return !archive->current->dropped && !archive->loop.stopping;
}

// Returns why the copy is not in the store; SL_N_NOT_KEPT: it is there. Lock held.
static enum sl_not_kept judge(struct sl_archive *archive, const struct entry *entry, enum sl_status status) {
    if (status == SL_OK || status == SL_ERR_EXISTS) {
        return SL_N_NOT_KEPT;
    }
    if (entry->dropped) {
        return entry->why;
    }
    if (archive->loop.stopping) {
        return SL_NOT_KEPT_STOPPING;
    }
    if (status == SL_ERR_EXHAUSTED || status == SL_ERR_INVALID) {
        return SL_NOT_KEPT_REFUSED;
    }
    strcpy(archive->avoided, entry->copy->store_address);
    archive->avoid_until_ns = sl_deadline_in_ms(AVOID_MS);
    return SL_NOT_KEPT_UNREACHABLE;
}

// Sends a copy. The lock is held before and after the call, but not during the transfer.
static enum sl_status send_copy(struct sl_archive *archive, struct entry *entry, struct sl_error *err) {
    bool avoided = avoids(archive, entry->copy->store_address);
    if (entry->dropped || avoided) {
        entry->why = entry->dropped ? entry->why : SL_NOT_KEPT_UNREACHABLE;
        entry->dropped = true;
        return SL_ERR_CANCELLED;
    }
    entry->state = RESERVING;
    pthread_mutex_unlock(&archive->loop.mutex);
    struct sl_copy_watch watch = {on_grant, go_on, archive};
    enum sl_status status = sl_copy_send(entry->copy, archive->prefill, &watch, err);
    pthread_mutex_lock(&archive->loop.mutex);
    return status;
}

// Ends a copy that has been sent or given up. The lock is held before and after the call, but not during it.
static void end(struct sl_archive *archive, struct entry *entry, enum sl_status status, const struct sl_error *err) {
    enum sl_not_kept why = judge(archive, entry, status);
    if (entry->reads) {
        tell(entry, entry->reads, why == SL_N_NOT_KEPT ? SLUICE__V1__KEPT__KEPT_STORED : reasons[why].said);
    }
    sl_copy_release_body(entry->copy); // before other threads may count the memory that copies hold
    archive->current = NULL;
    archive->n_queued--;
    archive->block_bytes -= entry->copy->block_bytes;
    pthread_cond_broadcast(&archive->loop.changed);
    pthread_mutex_unlock(&archive->loop.mutex);
    if (entry->is_checkpoint) {
        atomic_fetch_add(&archive->n_checkpoints[why == SL_N_NOT_KEPT ? CHECKPOINT_STORED : CHECKPOINT_FAILED], 1);
        sl_log_info("archive", "tokens=%lld checkpoint=%s %s", (long long)entry->copy->n_tokens,
                    why == SL_N_NOT_KEPT ? "stored" : sl_kept_word(reasons[why].said), err->text);
    } else if (why != SL_N_NOT_KEPT) {
        count(archive, why, entry->copy->n_tokens, err->text);
    }
    sl_copy_destroy(&entry->copy);
    free(entry);
    sl_prefill_wake(archive->prefill); // memory was freed, or a job may continue
    pthread_mutex_lock(&archive->loop.mutex);
}

static void *archive_main(void *arg) {
    struct sl_archive *archive = arg;
    SL_LOCKED(&archive->loop.mutex);
    for (;;) {
        struct entry *entry = archive->first;
        if (!entry && archive->loop.stopping) {
            break;
        }
        if (!entry) {
            sl_loop_wait(&archive->loop, SL_NO_DEADLINE);
            continue;
        }
        archive->first = entry->next;
        archive->end = archive->first ? archive->end : &archive->first;
        archive->current = entry;
        if (archive->loop.stopping) {
            drop(archive, entry, SL_NOT_KEPT_STOPPING);
        }
        struct sl_error err = {0};
        enum sl_status status = send_copy(archive, entry, &err);
        end(archive, entry, status, &err);
    }
    return NULL;
}

// ---- life ----------------------------------------------------------------------------------------------------------

enum sl_status sl_archive_create(struct sl_prefill *prefill, struct sl_archive **archive_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_archive, archive, err, "archive: out of memory");
    archive->prefill = prefill;
    archive->end = &archive->first;
    sl_loop_init(&archive->loop);
    for (int i = 0; i < SL_N_NOT_KEPT; i++) {
        atomic_flag_clear(&archive->told[i]);
    }
    SL_TRY_OR(sl_loop_start(&archive->loop, "archive", archive_main, archive, err), sl_archive_destroy(&archive));
    *archive_out = archive;
    return SL_OK;
}

void sl_archive_destroy(struct sl_archive **archive_inout) {
    SL_TAKE_OR_RETURN(archive, archive_inout);
    sl_loop_cleanup(&archive->loop); // bounded: a running ship notices `stopping`
    free(archive);
}
