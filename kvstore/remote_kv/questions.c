// SPDX-License-Identifier: Apache-2.0
#include "kvstore/remote_kv/questions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/processors.h"
#include "base/thread.h"
#include "kvstore/remote_kv/answers.h"

#define MAX_WAITING   4096
#define MAX_THREADS   1024
#define MAX_OUT_BYTES ((size_t)4 << 30) // of answers that have not been sent yet
#define KEPT_BYTES    ((size_t)256 << 20)
#define LOOK_MS       1000

// scan_load: samples are at least SAMPLE_NS apart, so N_SAMPLES of them reach N_SAMPLES * SAMPLE_NS back.
#define SAMPLE_NS (250 * SL_NS_PER_MS)
#define N_SAMPLES 12

// A question in the queue, or one that is being answered.
struct waiting {
    struct waiting *next;
    struct sl_fabric_incoming *question;
    struct sl_near_request head; // zeros where the request is shorter
};

struct scanner {
    struct sl_questions *questions;
    pthread_t thread;
    struct sl_remote_kv_scratch *scratch;
    struct sl_progress_counter progress_counter;
    char name[16];
    // Under the lock:
    struct waiting *taken;     // answered in one pass; NULL: idle
    int64_t busy_ns, since_ns; // up to the last pass; when the current one began
};

struct sl_questions {
    struct sl_questions_config config;
    struct sl_answers *answers;
    int n_scanners;
    struct scanner *scanners; // [n_scanners]
    pthread_mutex_t mutex;    // guards the following
    pthread_cond_t arrived;   // a question arrived, or one that others waited for is answered; or stopping
    struct waiting *slots;    // [MAX_WAITING]
    struct waiting *unused, *oldest, **end;
    bool stopping;
    struct sl_questions_stats stats;
    struct {
        int64_t at_ns, busy_ns;
    } samples[N_SAMPLES];
    int64_t n_samples; // since the start: sample i is at i % N_SAMPLES
    struct {
        struct sl_near_answer head;
        char text[64];
    } full, stopped; // answers that need no allocation
};

// ---- answers --------------------------------------------------------------------------------------------------------

static void answer_without_memory(struct sl_fabric_incoming *question, struct sl_near_answer *refusal) {
    sl_fabric_incoming_reply(&question, refusal, sizeof *refusal + refusal->n_bytes, NULL, NULL);
}

static void refuse(struct sl_questions *questions, struct sl_fabric_incoming *question,
                   const struct sl_near_request *head, enum sl_status status, const char *text) {
    struct sl_near_answer answer = {
        .magic = SL_NEAR_MAGIC, .status = (int32_t)status, .kind = head->kind, .n_bytes = strlen(text)};
    uint8_t *memory = sl_answers_take(questions->answers, sizeof answer + answer.n_bytes);
    if (!memory) {
        answer_without_memory(question, &questions->full.head);
        return;
    }
    memcpy(memory, &answer, sizeof answer);
    memcpy(memory + sizeof answer, text, answer.n_bytes);
    sl_fabric_incoming_reply(&question, memory, sizeof answer + answer.n_bytes, sl_answers_give, memory);
}

// SL_NEAR_MAP: returns where all parts of the remote KV lie in the window over the arena.
static size_t map_bytes(const struct sl_remote_kv *remote_kv, int *n_out) {
    int n = 0;
    while (sl_remote_kv_segment(remote_kv, n)) {
        n++;
    }
    *n_out = n;
    return sizeof(struct sl_near_answer) + (size_t)n * sizeof(struct sl_near_segment);
}

static void write_map(const struct sl_questions *questions, int n, const struct sl_near_request *head,
                      struct sl_near_served *served) {
    const uint8_t *base = sl_arena_base(questions->config.arena);
    uint8_t *memory = served->answer;
    struct sl_near_answer answer = {.magic = SL_NEAR_MAGIC,
                                    .kind = SL_NEAR_MAP,
                                    .n_offloaded_heads = head->n_offloaded_heads,
                                    .n_bytes = (size_t)n * sizeof(struct sl_near_segment)};
    memcpy(memory, &answer, sizeof answer);
    for (int i = 0; i < n; i++) {
        const struct sl_kv_segment *segment = sl_remote_kv_segment(served->remote_kv, i);
        const struct sl_kv_segment_config *config = sl_kv_segment_get_config(segment);
        size_t page_stride, scan_stride;
        const uint8_t *pages = sl_kv_segment_pages(segment, &page_stride);
        const uint8_t *indexes = sl_kv_segment_key_indexes(segment, &scan_stride);
        struct sl_near_segment place = {.begin = config->begin,
                                        .n_slots = config->n_slots,
                                        .n_offloaded_heads = (uint32_t)config->n_offloaded_heads,
                                        .offset = (uint64_t)(pages - base),
                                        .scan_offset = (uint64_t)(indexes - base),
                                        .scan_stride = scan_stride};
        memcpy(memory + sizeof answer + (size_t)i * sizeof place, &place, sizeof place);
    }
    served->n_out = sizeof answer + answer.n_bytes;
}

// Returns the bytes that an answer needs; at least a refusal, as the remote KV reports what is wrong with a request.
static size_t answer_bytes(const struct sl_remote_kv *remote_kv, const struct sl_near_request *head,
                           const void *request, size_t request_bytes, int *n_segments_out) {
    size_t bytes = head->kind == SL_NEAR_MAP ? map_bytes(remote_kv, n_segments_out)
                                             : sl_near_answer_bytes(remote_kv, request, request_bytes);
    return bytes > SL_NEAR_REFUSAL_BYTES ? bytes : SL_NEAR_REFUSAL_BYTES;
}

// One question of a pass, with its remote KV and the memory for its answer; or it has been answered already.
struct asked {
    struct sl_fabric_incoming *question; // NULL: answered
    struct sl_held_remote_kv *held;
    int n_segments; // of a map
};

/*
 * Finds the remote KV and the memory for a question. Answers it here if it cannot be served: its asker has gone, there
 * is no such remote KV, or no memory.
 */
static struct asked prepare(struct sl_questions *questions, const struct waiting *taken,
                            struct sl_near_served *served_out) {
    const struct sl_near_request *head = &taken->head;
    struct asked asked = {.question = NULL};
    if (sl_fabric_incoming_is_cancelled(taken->question)) {
        answer_without_memory(taken->question, &questions->full.head); // its asker has gone
        return asked;
    }
    if (head->magic != SL_NEAR_MAGIC || head->version != SL_NEAR_VERSION) {
        refuse(questions, taken->question, head, SL_ERR_INVALID,
               "not a question about a remote KV, or of another version");
        return asked;
    }
    asked.held = sl_remote_kv_table_borrow(questions->config.remote_kvs, head->remote_kv_id);
    if (!asked.held) {
        refuse(questions, taken->question, head, SL_ERR_NOT_FOUND,
               "this remote KV is not held here, or its lease has ended: open it again");
        return asked;
    }
    *served_out = (struct sl_near_served){.remote_kv = sl_held_remote_kv_get(asked.held),
                                          .memory = sl_held_remote_kv_memory(asked.held)};
    served_out->request = sl_fabric_incoming_body(taken->question, &served_out->request_bytes);
    size_t bytes =
        answer_bytes(served_out->remote_kv, head, served_out->request, served_out->request_bytes, &asked.n_segments);
    served_out->answer = sl_answers_take(questions->answers, bytes);
    if (!served_out->answer) {
        sl_remote_kv_table_return(questions->config.remote_kvs, &asked.held);
        refuse(questions, taken->question, head, SL_ERR_EXHAUSTED,
               "no memory for the answer: too many have not been taken yet; ask again");
        return asked;
    }
    asked.question = taken->question;
    return asked;
}

// Answers all questions that a thread has taken. Returns how many bytes were scanned.
static uint64_t answer_all(struct sl_questions *questions, struct scanner *scanner) {
    struct asked asked[SL_NEAR_MAX_TOGETHER];
    struct sl_near_served served[SL_NEAR_MAX_TOGETHER];
    int n = 0;
    bool is_map = scanner->taken->head.kind == SL_NEAR_MAP; // taken alone
    for (const struct waiting *taken = scanner->taken; taken; taken = taken->next) {
        asked[n] = prepare(questions, taken, &served[n]);
        n += asked[n].question != NULL;
    }
    if (n > 0 && is_map) {
        write_map(questions, asked[0].n_segments, &scanner->taken->head, &served[0]);
    } else if (n > 0) {
        sl_near_serve_together(served, n, scanner->scratch);
    }
    uint64_t scanned = 0;
    for (int i = 0; i < n; i++) {
        struct sl_near_answer said;
        memcpy(&said, served[i].answer, sizeof said);
        scanned += said.scan_bytes;
        sl_remote_kv_table_return(questions->config.remote_kvs, &asked[i].held);
        sl_fabric_incoming_reply(&asked[i].question, served[i].answer, served[i].n_out, sl_answers_give,
                                 served[i].answer);
    }
    return scanned;
}

// ---- the queue ------------------------------------------------------------------------------------------------------

// Runs on the fabric's progress thread.
static void on_question(void *arg, struct sl_fabric_incoming *question) {
    struct sl_questions *questions = arg;
    size_t bytes;
    const void *request = sl_fabric_incoming_body(question, &bytes);
    pthread_mutex_lock(&questions->mutex);
    struct waiting *waiting = questions->unused;
    bool stopping = questions->stopping;
    if (waiting && !stopping) {
        questions->unused = waiting->next;
        *waiting = (struct waiting){.question = question};
        if (bytes >= sizeof waiting->head) {
            memcpy(&waiting->head, request, sizeof waiting->head);
        }
        *questions->end = waiting;
        questions->end = &waiting->next;
        question = NULL;
        pthread_cond_signal(&questions->arrived);
    }
    pthread_mutex_unlock(&questions->mutex);
    if (question) {
        answer_without_memory(question, stopping ? &questions->stopped.head : &questions->full.head);
    }
}

// Returns true if the answer changes what the store remembers of the asker's slots.
static bool changes_memory(const struct sl_near_request *head) {
    return head->kind == SL_NEAR_TOPK && !(head->flags & SL_NEAR_PROBE);
}

static bool same_offloaded_heads(const struct sl_near_request *a, const struct sl_near_request *b) {
    return (uint64_t)a->first_offloaded_head < (uint64_t)b->first_offloaded_head + b->n_offloaded_heads &&
           (uint64_t)b->first_offloaded_head < (uint64_t)a->first_offloaded_head + a->n_offloaded_heads;
}

// Returns true if one of two questions must wait for the other's answer.
static bool collide(const struct sl_near_request *a, const struct sl_near_request *b) {
    return a->remote_kv_id == b->remote_kv_id && changes_memory(a) && changes_memory(b) && same_offloaded_heads(a, b);
}

// Call with the lock held.
static bool may_be_answered_now(const struct sl_questions *questions, const struct sl_near_request *head) {
    for (int i = 0; i < questions->n_scanners; i++) {
        for (const struct waiting *taken = questions->scanners[i].taken; taken; taken = taken->next) {
            if (collide(&taken->head, head)) {
                return false;
            }
        }
    }
    return true;
}

// Returns true if two questions read the same bytes: the remote KVs begin alike, and the offloaded heads are the same.
static bool share_a_pass(const struct sl_near_request *a, const struct sl_near_request *b) {
    return a->kind == SL_NEAR_TOPK && b->kind == SL_NEAR_TOPK && same_offloaded_heads(a, b) &&
           sl_remote_kv_table_begin_alike(a->remote_kv_id, b->remote_kv_id);
}

// Call with the lock held. Takes *at out of the queue.
static struct waiting *dequeue(struct sl_questions *questions, struct waiting **at) {
    struct waiting *waiting = *at;
    *at = waiting->next;
    if (questions->end == &waiting->next) {
        questions->end = at;
    }
    waiting->next = NULL;
    return waiting;
}

/*
 * Call with the lock held. Takes the oldest question that may be answered now. If no thread is idle, also takes others
 * that share its pass. False: there is none.
 */
static bool take(struct sl_questions *questions, struct scanner *scanner) {
    struct waiting **at = &questions->oldest;
    while (*at && !may_be_answered_now(questions, &(*at)->head)) {
        at = &(*at)->next;
    }
    if (!*at) {
        return false;
    }
    struct waiting *last = scanner->taken = dequeue(questions, at);
    bool all_busy = true;
    for (int i = 0; i < questions->n_scanners; i++) {
        all_busy &= questions->scanners[i].taken != NULL;
    }
    for (int n = 1; all_busy && *at && n < SL_NEAR_MAX_TOGETHER;) {
        if (share_a_pass(&scanner->taken->head, &(*at)->head) && may_be_answered_now(questions, &(*at)->head)) {
            last->next = dequeue(questions, at);
            last = last->next;
            n++;
        } else {
            at = &(*at)->next;
        }
    }
    return true;
}

// Call with the lock held. Returns the slots of the answered questions.
static void give_back(struct sl_questions *questions, struct scanner *scanner) {
    while (scanner->taken) {
        struct waiting *taken = scanner->taken;
        scanner->taken = taken->next;
        taken->next = questions->unused;
        questions->unused = taken;
        questions->stats.n_answered++;
    }
}

static void *scanner_main(void *arg) {
    struct scanner *scanner = arg;
    struct sl_questions *questions = scanner->questions;
    pthread_mutex_lock(&questions->mutex);
    while (!questions->stopping) {
        if (!take(questions, scanner)) {
            sl_cond_wait_until(&questions->arrived, &questions->mutex, sl_deadline_in_ms(LOOK_MS));
            continue;
        }
        scanner->since_ns = sl_now_ns();
        atomic_store(&scanner->progress_counter.n_waiting, 1);
        pthread_mutex_unlock(&questions->mutex);
        uint64_t scanned = answer_all(questions, scanner);
        pthread_mutex_lock(&questions->mutex);
        give_back(questions, scanner);
        atomic_store(&scanner->progress_counter.n_waiting, 0);
        sl_progress_counter_tick(&scanner->progress_counter);
        scanner->busy_ns += sl_now_ns() - scanner->since_ns;
        questions->stats.n_passes++;
        questions->stats.scanned_bytes += (int64_t)scanned;
        if (questions->oldest) {
            pthread_cond_signal(&questions->arrived); // it may have waited for this one
        }
    }
    pthread_mutex_unlock(&questions->mutex);
    return NULL;
}

// ---- load -----------------------------------------------------------------------------------------------------------

// Call with the lock held.
static int64_t busy_ns(const struct sl_questions *questions, int64_t now_ns) {
    int64_t sum = 0;
    for (int i = 0; i < questions->n_scanners; i++) {
        const struct scanner *scanner = &questions->scanners[i];
        sum += scanner->busy_ns + (scanner->taken ? now_ns - scanner->since_ns : 0);
    }
    return sum;
}

void sl_questions_sample(struct sl_questions *questions) {
    SL_LOCKED(&questions->mutex);
    int64_t now_ns = sl_now_ns(), n = questions->n_samples;
    if (n == 0 || now_ns - questions->samples[(n - 1) % N_SAMPLES].at_ns >= SAMPLE_NS) {
        questions->samples[n % N_SAMPLES].at_ns = now_ns;
        questions->samples[n % N_SAMPLES].busy_ns = busy_ns(questions, now_ns);
        questions->n_samples++;
    }
}

void sl_questions_get_stats(struct sl_questions *questions, struct sl_questions_stats *stats_out) {
    SL_LOCKED(&questions->mutex);
    *stats_out = questions->stats;
    stats_out->n_threads = questions->n_scanners;
    if (questions->n_samples > 0 && questions->n_scanners > 0) {
        int64_t first = questions->n_samples > N_SAMPLES ? questions->n_samples - N_SAMPLES : 0;
        int64_t now_ns = sl_now_ns(), then_ns = questions->samples[first % N_SAMPLES].at_ns;
        int64_t busy = busy_ns(questions, now_ns) - questions->samples[first % N_SAMPLES].busy_ns;
        stats_out->scan_load =
            now_ns > then_ns ? (double)busy / ((double)(now_ns - then_ns) * questions->n_scanners) : 0;
    }
}

// ---- life -----------------------------------------------------------------------------------------------------------

static enum sl_status pin_scanners(struct sl_questions *questions, struct sl_error *err) {
    cpu_set_t allowed;
    SL_FAIL_IF(sched_getaffinity(0, sizeof allowed, &allowed) != 0, err, SL_ERR_IO,
               "questions: the processors of this process cannot be read");
    int *processors = malloc((size_t)questions->n_scanners * sizeof *processors);
    SL_FAIL_IF(!processors, err, SL_ERR_EXHAUSTED, "questions: no memory to pin threads");
    enum sl_status status = sl_processors_place("", &allowed, questions->n_scanners, processors, err);
    for (int i = 0; status == SL_OK && i < questions->n_scanners; i++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)processors[i], &set);
        int rc = pthread_setaffinity_np(questions->scanners[i].thread, sizeof set, &set);
        if (rc != 0) {
            status = sl_fail(err, SL_ERR_IO, "questions: pinning thread %d to processor %d: %s", i, processors[i],
                             strerror(rc));
        }
    }
    free(processors);
    return status;
}

static enum sl_status start_scanners(struct sl_questions *questions, int n_threads, struct sl_error *err) {
    for (int i = 0; i < n_threads; i++) {
        struct scanner *scanner = &questions->scanners[i];
        snprintf(scanner->name, sizeof scanner->name, "scan-%d", i);
        scanner->questions = questions;
        scanner->progress_counter.name = scanner->name;
        scanner->scratch = sl_remote_kv_scratch_create(NULL);
        enum sl_status status =
            scanner->scratch ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "questions: no memory for thread %d", i);
        pthread_mutex_lock(&questions->mutex); // running threads already read n_scanners
        SL_THEN(status, sl_thread_start(scanner->name, scanner_main, scanner, &scanner->thread, err));
        questions->n_scanners += status == SL_OK;
        pthread_mutex_unlock(&questions->mutex);
        SL_TRY_OR(status, sl_remote_kv_scratch_destroy(&scanner->scratch));
    }
    return questions->config.pin ? pin_scanners(questions, err) : SL_OK;
}

static void prepare_refusal(struct sl_near_answer *head, char *text, size_t text_bytes, enum sl_status status,
                            const char *what) {
    snprintf(text, text_bytes, "%s", what);
    *head = (struct sl_near_answer){.magic = SL_NEAR_MAGIC, .status = (int32_t)status, .n_bytes = strlen(text)};
}

enum sl_status sl_questions_create(const struct sl_questions_config *config, struct sl_questions **questions_out,
                                   struct sl_error *err) {
    int n_threads = config->n_threads > 0 ? config->n_threads : sl_processors_count();
    n_threads = n_threads < MAX_THREADS ? n_threads : MAX_THREADS;
    SL_NEW_OR_FAIL(struct sl_questions, questions, err, "questions: out of memory");
    questions->config = *config;
    pthread_mutex_init(&questions->mutex, NULL);
    sl_cond_init(&questions->arrived);
    questions->scanners = calloc((size_t)n_threads, sizeof *questions->scanners);
    questions->slots = calloc(MAX_WAITING, sizeof *questions->slots);
    questions->end = &questions->oldest;
    prepare_refusal(&questions->full.head, questions->full.text, sizeof questions->full.text, SL_ERR_EXHAUSTED,
                    "too many questions wait here; ask again");
    prepare_refusal(&questions->stopped.head, questions->stopped.text, sizeof questions->stopped.text, SL_ERR_PEER_LOST,
                    "this store is stopping");
    enum sl_status status = questions->scanners && questions->slots
                                ? sl_answers_create(MAX_OUT_BYTES, KEPT_BYTES, &questions->answers, err)
                                : sl_fail(err, SL_ERR_EXHAUSTED, "questions: out of memory");
    if (status == SL_OK) {
        for (int i = 0; i < MAX_WAITING; i++) {
            questions->slots[i].next = i + 1 < MAX_WAITING ? &questions->slots[i + 1] : NULL;
        }
        questions->unused = questions->slots;
        status = start_scanners(questions, n_threads, err);
    }
    if (status != SL_OK) {
        sl_questions_stop(questions);
        sl_questions_destroy(&questions);
        return status;
    }
    sl_fabric_on_request(config->fabric, on_question, questions);
    *questions_out = questions;
    return SL_OK;
}

struct sl_progress_counter *sl_questions_progress_counter(struct sl_questions *questions, int i) {
    return i < questions->n_scanners ? &questions->scanners[i].progress_counter : NULL;
}

void sl_questions_stop(struct sl_questions *questions) {
    pthread_mutex_lock(&questions->mutex);
    questions->stopping = true;
    pthread_cond_broadcast(&questions->arrived);
    pthread_mutex_unlock(&questions->mutex);
    for (int i = 0; i < questions->n_scanners; i++) {
        pthread_join(questions->scanners[i].thread, NULL);
        sl_remote_kv_scratch_destroy(&questions->scanners[i].scratch);
    }
    SL_LOCKED(&questions->mutex);
    questions->n_scanners = 0;
    for (struct waiting *waiting = questions->oldest; waiting; waiting = waiting->next) {
        answer_without_memory(waiting->question, &questions->stopped.head); // no more arrive
    }
    questions->oldest = NULL;
    sl_log_info("questions", "stopped answered=%lld passes=%lld scanned_bytes=%lld",
                (long long)questions->stats.n_answered, (long long)questions->stats.n_passes,
                (long long)questions->stats.scanned_bytes);
}

void sl_questions_destroy(struct sl_questions **questions_inout) {
    SL_TAKE_OR_RETURN(questions, questions_inout);
    sl_answers_destroy(&questions->answers);
    pthread_cond_destroy(&questions->arrived);
    pthread_mutex_destroy(&questions->mutex);
    free(questions->slots);
    free(questions->scanners);
    free(questions);
}
