// SPDX-License-Identifier: Apache-2.0
// Answering questions. See questions.h.
#include "kvstore/questions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/processors.h"
#include "base/thread.h"
#include "kvstore/answers.h"

#define MAX_WAITING   4096
#define MAX_THREADS   1024
#define MAX_OUT_BYTES ((size_t)4 << 30) // of answers that have not been sent
#define KEPT_BYTES    ((size_t)256 << 20)
#define LOOK_MS       1000

// scan_load: samples lie at least SAMPLE_NS apart, so that they reach N_SAMPLES * SAMPLE_NS back.
#define SAMPLE_NS (250 * SL_NS_PER_MS)
#define N_SAMPLES 12

struct waiting {
    struct waiting *next;
    struct sl_question *question;
    struct sl_near_request head; // zero where the request is shorter
};

struct scanner {
    struct sl_questions *questions;
    pthread_t thread;
    struct sl_annex_scratch *scratch;
    // Under the lock:
    bool busy;
    struct sl_near_request head; // of the question being answered
    int64_t busy_ns, since_ns;   // until the last question; of the present one
};

struct sl_questions {
    struct sl_questions_config config;
    struct sl_answers *answers;
    int n_scanners;
    struct scanner *scanners; // [n_scanners]
    pthread_mutex_t mutex;    // over what follows
    pthread_cond_t arrived;   // a question has, or one that others waited for has been answered; or stopping
    struct waiting *slots;    // [MAX_WAITING]
    struct waiting *unused, *oldest, **end;
    bool stopping;
    struct sl_questions_stats stats;
    struct {
        int64_t at_ns, busy_ns;
    } samples[N_SAMPLES];
    int64_t n_samples; // ever taken: sample i lies at i % N_SAMPLES
    struct {
        struct sl_near_answer head;
        char text[64];
    } full, stopped; // answers that need no memory
};

// ---- answers --------------------------------------------------------------------------------------------------------

static void answer_without_memory(struct sl_question *question, struct sl_near_answer *refusal) {
    sl_question_answer(&question, refusal, sizeof *refusal + refusal->n_bytes, NULL, NULL);
}

static void refuse(struct sl_questions *questions, struct sl_question *question, const struct sl_near_request *head,
                   enum sl_status status, const char *text) {
    struct sl_near_answer answer = {
        .magic = SL_NEAR_MAGIC, .status = (int32_t)status, .kind = head->kind, .n_bytes = strlen(text)};
    uint8_t *memory = sl_answers_take(questions->answers, sizeof answer + answer.n_bytes);
    if (!memory) {
        answer_without_memory(question, &questions->full.head);
        return;
    }
    memcpy(memory, &answer, sizeof answer);
    memcpy(memory + sizeof answer, text, answer.n_bytes);
    sl_question_answer(&question, memory, sizeof answer + answer.n_bytes, sl_answers_give, memory);
}

// SL_NEAR_MAP: where everything lies in the window over the arena.
static size_t map_bytes(const struct sl_annex *annex, int *n_out) {
    int n = 0;
    while (sl_annex_stretch(annex, n)) {
        n++;
    }
    *n_out = n;
    return sizeof(struct sl_near_answer) + (size_t)n * sizeof(struct sl_near_stretch);
}

static void write_map(const struct sl_questions *questions, const struct sl_annex *annex, int n,
                      const struct sl_near_request *head, uint8_t *memory) {
    const uint8_t *base = sl_arena_base(questions->config.arena);
    struct sl_near_answer answer = {.magic = SL_NEAR_MAGIC,
                                    .kind = SL_NEAR_MAP,
                                    .n_lanes = head->n_lanes,
                                    .n_bytes = (size_t)n * sizeof(struct sl_near_stretch)};
    memcpy(memory, &answer, sizeof answer);
    for (int i = 0; i < n; i++) {
        const struct sl_stretch *stretch = sl_annex_stretch(annex, i);
        const struct sl_stretch_config *config = sl_stretch_get_config(stretch);
        size_t page_stride, scan_stride;
        const uint8_t *pages = sl_stretch_pages(stretch, &page_stride);
        const uint8_t *copies = sl_stretch_scan_copies(stretch, &scan_stride);
        struct sl_near_stretch place = {.begin = config->begin,
                                        .n_slots = config->n_slots,
                                        .n_lanes = (uint32_t)config->n_lanes,
                                        .offset = (uint64_t)(pages - base),
                                        .scan_offset = (uint64_t)(copies - base),
                                        .scan_stride = scan_stride};
        memcpy(memory + sizeof answer + (size_t)i * sizeof place, &place, sizeof place);
    }
}

// What an answer needs; at least a refusal, since the annex says what is wrong with a request.
static size_t answer_bytes(const struct sl_annex *annex, const struct sl_near_request *head, const void *request,
                           size_t request_bytes, int *n_stretches_out) {
    size_t bytes = head->kind == SL_NEAR_MAP ? map_bytes(annex, n_stretches_out)
                                             : sl_near_answer_bytes(annex, request, request_bytes);
    return bytes > SL_NEAR_REFUSAL_BYTES ? bytes : SL_NEAR_REFUSAL_BYTES;
}

// Consumes the question. Returns how many bytes have been scanned.
static uint64_t answer(struct sl_questions *questions, struct scanner *scanner, struct sl_question *question) {
    const struct sl_near_request *head = &scanner->head;
    if (sl_question_is_void(question)) {
        answer_without_memory(question, &questions->full.head); // nobody will read it
        return 0;
    }
    if (head->magic != SL_NEAR_MAGIC || head->version != SL_NEAR_VERSION) {
        refuse(questions, question, head, SL_ERR_INVALID, "not a question about an annex, or of another version");
        return 0;
    }
    struct sl_held_annex *held = sl_annexes_borrow(questions->config.annexes, head->annex_id);
    if (!held) {
        refuse(questions, question, head, SL_ERR_NOT_FOUND,
               "this annex is not held here, or its lease has ended: open it again");
        return 0;
    }
    size_t request_bytes, n_bytes;
    const void *request = sl_question_request(question, &request_bytes);
    const struct sl_annex *annex = sl_held_annex_get(held);
    int n_stretches = 0;
    n_bytes = answer_bytes(annex, head, request, request_bytes, &n_stretches);
    uint8_t *memory = sl_answers_take(questions->answers, n_bytes);
    struct sl_near_answer said = {0};
    if (memory && head->kind == SL_NEAR_MAP) {
        write_map(questions, annex, n_stretches, head, memory);
        n_bytes = sizeof said + (size_t)n_stretches * sizeof(struct sl_near_stretch);
    } else if (memory) {
        sl_near_serve(annex, sl_held_annex_memory(held), scanner->scratch, request, request_bytes, memory, &n_bytes);
    }
    sl_annexes_return(questions->config.annexes, &held);
    if (!memory) {
        refuse(questions, question, head, SL_ERR_EXHAUSTED,
               "no memory for the answer: too many have not been taken yet; ask again");
        return 0;
    }
    memcpy(&said, memory, sizeof said);
    sl_question_answer(&question, memory, n_bytes, sl_answers_give, memory);
    return said.scan_bytes;
}

// ---- the queue ------------------------------------------------------------------------------------------------------

// On the fabric's progress thread.
static void on_question(void *arg, struct sl_question *question) {
    struct sl_questions *questions = arg;
    size_t bytes;
    const void *request = sl_question_request(question, &bytes);
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

// Does the answer change what is remembered of the asker's places?
static bool changes_memory(const struct sl_near_request *head) {
    return head->kind == SL_NEAR_TOPK && !(head->flags & SL_NEAR_PROBE);
}

// Lock held.
static bool may_be_answered_now(const struct sl_questions *questions, const struct sl_near_request *head) {
    for (int i = 0; changes_memory(head) && i < questions->n_scanners; i++) {
        const struct scanner *scanner = &questions->scanners[i];
        if (scanner->busy && changes_memory(&scanner->head) && scanner->head.annex_id == head->annex_id &&
            (uint64_t)scanner->head.first_lane < (uint64_t)head->first_lane + head->n_lanes &&
            (uint64_t)head->first_lane < (uint64_t)scanner->head.first_lane + scanner->head.n_lanes) {
            return false;
        }
    }
    return true;
}

// Lock held: take the oldest question that may be answered now, or NULL.
static struct sl_question *take(struct sl_questions *questions, struct sl_near_request *head_out) {
    struct waiting **at = &questions->oldest;
    while (*at && !may_be_answered_now(questions, &(*at)->head)) {
        at = &(*at)->next;
    }
    struct waiting *waiting = *at;
    if (!waiting) {
        return NULL;
    }
    *at = waiting->next;
    if (questions->end == &waiting->next) {
        questions->end = at;
    }
    waiting->next = questions->unused;
    questions->unused = waiting;
    *head_out = waiting->head;
    return waiting->question;
}

static void *scanner_main(void *arg) {
    struct scanner *scanner = arg;
    struct sl_questions *questions = scanner->questions;
    pthread_mutex_lock(&questions->mutex);
    while (!questions->stopping) {
        struct sl_question *question = take(questions, &scanner->head);
        if (!question) {
            sl_cond_wait_until(&questions->arrived, &questions->mutex, sl_deadline_in_ms(LOOK_MS));
            continue;
        }
        scanner->busy = true;
        scanner->since_ns = sl_now_ns();
        pthread_mutex_unlock(&questions->mutex);
        uint64_t scanned = answer(questions, scanner, question);
        pthread_mutex_lock(&questions->mutex);
        scanner->busy = false;
        scanner->busy_ns += sl_now_ns() - scanner->since_ns;
        questions->stats.n_answered++;
        questions->stats.scanned_bytes += (int64_t)scanned;
        if (questions->oldest) {
            pthread_cond_signal(&questions->arrived); // it may have waited for this one
        }
    }
    pthread_mutex_unlock(&questions->mutex);
    return NULL;
}

// ---- load -----------------------------------------------------------------------------------------------------------

// Lock held.
static int64_t busy_ns(const struct sl_questions *questions, int64_t now_ns) {
    int64_t sum = 0;
    for (int i = 0; i < questions->n_scanners; i++) {
        const struct scanner *scanner = &questions->scanners[i];
        sum += scanner->busy_ns + (scanner->busy ? now_ns - scanner->since_ns : 0);
    }
    return sum;
}

void sl_questions_sample(struct sl_questions *questions) {
    pthread_mutex_lock(&questions->mutex);
    int64_t now_ns = sl_now_ns(), n = questions->n_samples;
    if (n == 0 || now_ns - questions->samples[(n - 1) % N_SAMPLES].at_ns >= SAMPLE_NS) {
        questions->samples[n % N_SAMPLES].at_ns = now_ns;
        questions->samples[n % N_SAMPLES].busy_ns = busy_ns(questions, now_ns);
        questions->n_samples++;
    }
    pthread_mutex_unlock(&questions->mutex);
}

void sl_questions_get_stats(struct sl_questions *questions, struct sl_questions_stats *stats_out) {
    pthread_mutex_lock(&questions->mutex);
    *stats_out = questions->stats;
    stats_out->n_threads = questions->n_scanners;
    if (questions->n_samples > 0 && questions->n_scanners > 0) {
        int64_t first = questions->n_samples > N_SAMPLES ? questions->n_samples - N_SAMPLES : 0;
        int64_t now_ns = sl_now_ns(), then_ns = questions->samples[first % N_SAMPLES].at_ns;
        int64_t busy = busy_ns(questions, now_ns) - questions->samples[first % N_SAMPLES].busy_ns;
        stats_out->scan_load =
            now_ns > then_ns ? (double)busy / ((double)(now_ns - then_ns) * questions->n_scanners) : 0;
    }
    pthread_mutex_unlock(&questions->mutex);
}

// ---- life -----------------------------------------------------------------------------------------------------------

static enum sl_status pin_scanners(struct sl_questions *questions, struct sl_error *err) {
    cpu_set_t allowed;
    int processors[MAX_THREADS];
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return sl_fail(err, SL_ERR_IO, "questions: the processors of this process cannot be read");
    }
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
    return status;
}

static enum sl_status start_scanners(struct sl_questions *questions, int n_threads, struct sl_error *err) {
    for (int i = 0; i < n_threads; i++) {
        struct scanner *scanner = &questions->scanners[i];
        char name[16];
        snprintf(name, sizeof name, "scan-%d", i);
        scanner->questions = questions;
        scanner->scratch = sl_annex_scratch_create(NULL);
        enum sl_status status =
            scanner->scratch ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "questions: no memory for thread %d", i);
        pthread_mutex_lock(&questions->mutex); // threads that run already look at n_scanners
        if (status == SL_OK) {
            status = sl_thread_start(name, scanner_main, scanner, &scanner->thread, err);
        }
        questions->n_scanners += status == SL_OK;
        pthread_mutex_unlock(&questions->mutex);
        if (status != SL_OK) {
            sl_annex_scratch_destroy(&scanner->scratch);
            return status;
        }
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
    struct sl_questions *questions = calloc(1, sizeof *questions);
    if (!questions) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "questions: out of memory");
    }
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
    sl_fabric_on_question(config->fabric, on_question, questions);
    *questions_out = questions;
    return SL_OK;
}

void sl_questions_stop(struct sl_questions *questions) {
    pthread_mutex_lock(&questions->mutex);
    questions->stopping = true;
    pthread_cond_broadcast(&questions->arrived);
    pthread_mutex_unlock(&questions->mutex);
    for (int i = 0; i < questions->n_scanners; i++) {
        pthread_join(questions->scanners[i].thread, NULL);
        sl_annex_scratch_destroy(&questions->scanners[i].scratch);
    }
    pthread_mutex_lock(&questions->mutex);
    questions->n_scanners = 0;
    for (struct waiting *waiting = questions->oldest; waiting; waiting = waiting->next) {
        answer_without_memory(waiting->question, &questions->stopped.head); // nothing arrives any more
    }
    questions->oldest = NULL;
    pthread_mutex_unlock(&questions->mutex);
}

void sl_questions_destroy(struct sl_questions **questions_inout) {
    struct sl_questions *questions = *questions_inout;
    if (!questions) {
        return;
    }
    sl_answers_destroy(&questions->answers);
    pthread_cond_destroy(&questions->arrived);
    pthread_mutex_destroy(&questions->mutex);
    free(questions->slots);
    free(questions->scanners);
    free(questions);
    *questions_inout = NULL;
}
