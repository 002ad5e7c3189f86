// SPDX-License-Identifier: Apache-2.0
#include "gateway/answer.h"

#include <inttypes.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "base/array.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/thread.h"
#include "gateway/openai/answer.h"
#include "net/rpc/rpc.h"
#include "net/trace/trace.h"

enum {
    BUFFER_BYTES = 256 << 10, // limit of text that waits for its reader
    BODY_BYTES = 256 << 10,   // limit of an import's body that waits for the coordinator
    GONE_MS = 100,            // between checks whether the client has left
    LOOK_MS = 50,             // between checks whether a slow client reads
    LATE_MS = 10000, // the job has a deadline; after this additional time we stop waiting for the report of its end
};

struct sl_http_answer {
    struct sl_http_answer_config config;
    struct sl_intake intake;           // used by the thread only, as are the fields up to the mutex
    struct sl_openai_request *request; // NULL: not read yet
    struct sl_openai_answer words;
    char job_id[SL_JOB_ID_BYTES], first_job_id[SL_JOB_ID_BYTES];
    int64_t n_read_tokens; // of the prompts that were answered
    bool failed;
    int64_t appended_ns; // time when something was last appended
    int64_t until_ns;    // of an import

    pthread_mutex_t mutex; // guards the fields below
    pthread_cond_t taken;  // text was taken, or will never be; or a part of the body has come
    struct MHD_Connection *connection;
    int fd; // socket of the connection; -1: it is closed
    int n_refs;
    bool suspended, decided, is_stream, ended, stopped, left; // left: the client has disconnected
    bool is_cut;                                              // the file ends early
    int64_t file_bytes;                                       // of the file that is sent; 0: none
    char *body;                                               // of an import; malloc'd, BODY_BYTES
    size_t n_body;
    bool body_ended;
    char ignored[sizeof((struct sl_openai_request *)0)->ignored];
    struct sl_refusal refusal;         // http_status 0: no refusal
    struct sl_rate_limits rate_limits; // rate limits, sent with the head
    char *text;                        // malloc'd
    size_t n_text, n_taken, text_bytes;
};

// ---- the buffer -----------------------------------------------------------------------------------------------------

// Resumes the connection if it is suspended. Mutex held.
static void resume(struct sl_http_answer *answer) {
    if (answer->suspended && answer->fd >= 0) {
        answer->suspended = false;
        MHD_resume_connection(answer->connection);
    }
}

// Returns the bytes that wait for the client, in the buffer and in the socket: fewer than before mean that it reads, even
// while the socket takes no more from the daemon. Mutex held.
static size_t count_untaken(const struct sl_http_answer *answer) {
    int in_socket = 0;
    return ioctl(answer->fd, SIOCOUTQ, &in_socket) == 0 ? answer->n_text - answer->n_taken + (size_t)in_socket
                                                        : answer->n_text - answer->n_taken;
}

static bool has_room(const struct sl_http_answer *answer, size_t n) {
    return answer->n_text == answer->n_taken || answer->n_text - answer->n_taken + n <= BUFFER_BYTES;
}

// Waits for room for n more bytes, while too much is buffered; a piece of a file may need long. False: the client has
// read nothing for its time. Mutex held.
static bool wait_for_room(struct sl_http_answer *answer, size_t n) {
    int64_t deadline_ns = sl_deadline_in_ms(answer->config.reader_ms);
    size_t least = SIZE_MAX;
    while (answer->fd >= 0 && !answer->stopped && !has_room(answer, n)) {
        size_t untaken = count_untaken(answer);
        if (untaken < least) {
            least = untaken;
            deadline_ns = sl_deadline_in_ms(answer->config.reader_ms);
        } else if (sl_deadline_left_ms(deadline_ns) == 0) {
            sl_log_warn("gateway", "job=%s: the client has taken nothing for %lld ms", answer->job_id,
                        (long long)answer->config.reader_ms);
            return false;
        }
        int64_t look_ns = sl_deadline_in_ms(LOOK_MS);
        (void)sl_cond_wait_until(&answer->taken, &answer->mutex, look_ns < deadline_ns ? look_ns : deadline_ns);
    }
    return answer->fd >= 0;
}

static bool grow(struct sl_http_answer *answer, size_t n) {
    if (answer->n_taken > 0) {
        memmove(answer->text, answer->text + answer->n_taken, answer->n_text - answer->n_taken);
        answer->n_text -= answer->n_taken;
        answer->n_taken = 0;
    }
    return sl_array_reserve(&answer->text, &answer->text_bytes, answer->n_text + n, 1);
}

// Appends bytes for the client. Mutex held. False: the answer has stopped.
static bool append_bytes(struct sl_http_answer *answer, const void *bytes, size_t n) {
    if (!bytes || !wait_for_room(answer, n) || !grow(answer, n)) {
        answer->stopped = true;
    } else if (n > 0) {
        memcpy(answer->text + answer->n_text, bytes, n);
        answer->n_text += n;
        answer->decided = true;
        resume(answer);
    }
    return !answer->stopped;
}

// Appends text for the client and frees `text`; NULL means that there was no memory for it. From the first call on, the
// answer is a stream.
static void append(struct sl_http_answer *answer, char *text) {
    SL_WITH_LOCK(&answer->mutex, (void)append_bytes(answer, text, text ? strlen(text) : 0));
    answer->appended_ns = sl_now_ns();
    free(text);
}

// Starts a stream with the role, before the first event.
static void begin_stream(struct sl_http_answer *answer) {
    if (!answer->is_stream) {
        answer->is_stream = true; // the daemon reads it only after the head is decided
        append(answer, sl_openai_begin(&answer->words));
    }
}

// ---- the thread -----------------------------------------------------------------------------------------------------

static void refuse(struct sl_http_answer *answer, const struct sl_refusal *refusal) {
    answer->failed = true;
    char *json = sl_refusal_json(refusal), *event = NULL;
    if (answer->is_stream) { // too late for an HTTP status
        if (json && asprintf(&event, "data: %s\n\n", json) < 0) {
            event = NULL;
        }
        append(answer, event);
    } else {
        SL_WITH_LOCK(&answer->mutex, answer->refusal = *refusal);
        append(answer, json ? strdup(json) : NULL);
    }
    free(json);
}

static void refuse_error(struct sl_http_answer *answer, const struct sl_error *err) {
    struct sl_refusal refusal;
    sl_refuse_error(&refusal, err);
    refuse(answer, &refusal);
}

static void finish(struct sl_http_answer *answer, const Sluice__V1__Finished *finished) {
    if (finished->statistics && finished->statistics->n_prompt_tokens > 0) {
        answer->n_read_tokens += finished->statistics->n_prompt_tokens;
    }
    const bool is_last = finished->status_code != 0 || answer->words.index + 1 >= answer->request->n_prompts;
    // A client that leaves before the last prompt owes those that were read, with their documents.
    if (answer->n_read_tokens > (is_last ? 0 : answer->intake.n_charged_tokens)) {
        sl_intake_reconcile(&answer->intake, answer->n_read_tokens);
    }
    if (finished->status_code != 0) {
        struct sl_error err;
        sl_fail(&err, sl_rpc_status_of_code(finished->status_code), "%s", finished->status_text);
        refuse_error(answer, &err);
    } else if (answer->request->stream) {
        begin_stream(answer);
        append(answer, sl_openai_end(&answer->words, finished));
    } else {
        struct sl_refusal refusal;
        append(answer, sl_openai_whole(&answer->words, finished));
        if (!is_last && sl_openai_check_room(&answer->words, &refusal) != SL_OK) {
            refuse(answer, &refusal);
        }
    }
}

static void on_event(void *arg, const Sluice__V1__Event *event) {
    struct sl_http_answer *answer = arg;
    answer->words.job_id = answer->job_id;
    if (answer->first_job_id[0] == '\0') {
        strcpy(answer->first_job_id, answer->job_id);
        answer->words.first_job_id = answer->first_job_id;
    }
    if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED) {
        finish(answer, event->finished);
    } else if (event->what_case == SLUICE__V1__EVENT__WHAT_TOKEN && answer->request->stream) {
        begin_stream(answer);
        append(answer, sl_openai_token(&answer->words, event->token));
    } else if (event->what_case == SLUICE__V1__EVENT__WHAT_TOKEN &&
               sl_openai_keep(&answer->words, event->token) != SL_OK) {
        append(answer, NULL);
    }
}

// Returns true if the client has disconnected. A suspended connection does not notice that; its socket does.
static bool is_gone(int fd) {
    struct pollfd polled = {.fd = fd, .events = POLLRDHUP};
    return poll(&polled, 1, 0) > 0 && (polled.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

static bool stopped(void *arg) {
    struct sl_http_answer *answer = arg;
    pthread_mutex_lock(&answer->mutex);
    answer->left |= answer->fd < 0 || is_gone(answer->fd);
    bool over = answer->stopped || answer->left;
    pthread_mutex_unlock(&answer->mutex);
    if (!over && answer->request && answer->request->stream &&
        sl_now_ns() - answer->appended_ns > answer->config.ping_ms * SL_NS_PER_MS) {
        begin_stream(answer);
        append(answer, strdup(": ping\n\n"));
    }
    return over;
}

static void unref(struct sl_http_answer *answer) {
    bool last;
    SL_WITH_LOCK(&answer->mutex, last = --answer->n_refs == 0);
    if (last) {
        sl_openai_request_destroy(&answer->request);
        sl_intake_cleanup(&answer->intake);
        sl_openai_answer_cleanup(&answer->words);
        pthread_cond_destroy(&answer->taken);
        pthread_mutex_destroy(&answer->mutex);
        free(answer->text);
        free(answer->body);
        free(answer);
    }
}

static enum sl_status read_request(struct sl_http_answer *answer, struct sl_error *err) {
    struct sl_refusal refusal;
    enum sl_status status = sl_intake_read(&answer->intake, stopped, answer, &answer->request, &refusal);
    SL_WITH_LOCK(&answer->mutex, answer->rate_limits = answer->intake.rate_limits);
    if (status != SL_OK) {
        refuse(answer, &refusal);
        return sl_fail(err, status, "%.300s", refusal.text);
    }
    answer->words.request = answer->request;
    SL_LOCKED(&answer->mutex);
    strcpy(answer->ignored, answer->request->ignored);
    return SL_OK;
}

// Answers the prompts one after another: a request is one of its key's concurrent answers.
static enum sl_status generate(struct sl_http_answer *answer, struct sl_error *err) {
    Sluice__V1__GenerateRequest *message = &answer->request->message;
    const int64_t wanted_ms = message->deadline_ms > 0 ? message->deadline_ms : answer->config.deadline_ms;
    const int64_t deadline_ns = sl_deadline_in_ms(wanted_ms);
    struct sl_watch watch = {
        .deadline_ns = sl_deadline_in_ms(wanted_ms + LATE_MS),
        .on_event = on_event,
        .stopped = stopped,
        .arg = answer,
    };
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < answer->request->n_prompts && status == SL_OK && !answer->failed; i++) {
        const int64_t left_ms = sl_deadline_left_ms(deadline_ns);
        message->deadline_ms = i == 0 ? wanted_ms : left_ms > 0 ? left_ms : 1;
        if (i > 0) {
            sl_openai_request_select(answer->request, i);
        }
        answer->job_id[0] = '\0';
        status = sl_client_generate(answer->config.client, message, &watch, answer->job_id, err);
        // Then no job was made. Returned before the client gets the refusal: it may ask again at once
        if (answer->job_id[0] == '\0') {
            sl_intake_reconcile(&answer->intake, answer->n_read_tokens);
        }
        if (status != SL_OK) {
            refuse_error(answer, err);
        }
    }
    return status;
}

static enum sl_status send_piece(void *arg, const void *bytes, size_t n, int64_t file_bytes, struct sl_error *err) {
    struct sl_http_answer *answer = arg;
    SL_LOCKED(&answer->mutex);
    answer->file_bytes = file_bytes;
    answer->is_stream = true;
    bool sent = append_bytes(answer, bytes, n);
    return sent ? SL_OK : sl_fail(err, SL_ERR_CANCELLED, "the client is gone");
}

// Takes the next piece of an import's body; waits for it.
static enum sl_status receive_piece(void *arg, void *bytes_out, size_t size, size_t *n_out, struct sl_error *err) {
    struct sl_http_answer *answer = arg;
    enum sl_status status = SL_OK;
    SL_LOCKED(&answer->mutex);
    while (answer->n_body == 0 && !answer->body_ended && status == SL_OK) {
        if (answer->stopped || answer->fd < 0 || is_gone(answer->fd)) {
            status = sl_fail(err, SL_ERR_CANCELLED, "the client is gone");
        } else if (sl_now_ns() >= answer->until_ns) {
            status = sl_fail(err, SL_ERR_DEADLINE, "the file has not come within %" PRId64 " ms",
                             answer->config.deadline_ms);
        } else {
            (void)sl_cond_wait_until(&answer->taken, &answer->mutex, sl_deadline_in_ms(GONE_MS));
        }
    }
    size_t n = answer->n_body < size ? answer->n_body : size;
    if (status == SL_OK) {
        memcpy(bytes_out, answer->body, n);
        memmove(answer->body, answer->body + n, answer->n_body - n);
        answer->n_body -= n;
        *n_out = n;
        if (!answer->body_ended) {
            resume(answer);
        }
    }
    return status;
}

static enum sl_status call_documents(struct sl_http_answer *answer, struct sl_error *err) {
    const struct sl_document_call call = {.client = answer->config.client,
                                          .verb = answer->config.verb,
                                          .name = answer->config.document,
                                          .keep_ms = answer->config.keep_ms,
                                          .deadline_ms = answer->config.deadline_ms,
                                          .stopped = stopped,
                                          .read_fn = receive_piece,
                                          .write_fn = send_piece,
                                          .arg = answer};
    struct sl_refusal refusal;
    char *json = NULL;
    enum sl_status status = sl_document_call_run(&call, &answer->intake, &json, &refusal);
    pthread_mutex_lock(&answer->mutex);
    answer->rate_limits = answer->intake.rate_limits;
    bool is_file = answer->file_bytes > 0;
    answer->is_cut = is_file && status != SL_OK; // too late for an HTTP status
    pthread_mutex_unlock(&answer->mutex);
    if (status != SL_OK) {
        if (!is_file) {
            refuse(answer, &refusal);
        }
        return sl_fail(err, status, "%.300s", refusal.text);
    }
    if (!is_file) {
        append(answer, json);
    }
    return SL_OK;
}

static void *answer_thread(void *arg) {
    struct sl_http_answer *answer = arg;
    struct sl_error err = {0};
    struct sl_span span;
    sl_trace_set(&answer->config.trace);
    sl_span_begin(&span, answer->config.route, SL_SPAN_SERVER);
    enum sl_status status =
        answer->config.verb != SL_DOCUMENT_NONE ? call_documents(answer, &err) : read_request(answer, &err);
    SL_THEN_IF(status, answer->config.verb == SL_DOCUMENT_NONE, generate(answer, &err));
    sl_span_set_text(&span, "gen_ai.request.model", answer->intake.model.name);
    sl_span_set_text(&span, "sluice.job", answer->job_id);
    sl_span_end(&span, status, err.text);
    pthread_mutex_lock(&answer->mutex);
    answer->decided = answer->ended = true;
    resume(answer);
    pthread_mutex_unlock(&answer->mutex);
    void (*on_end)(void *) = answer->config.on_end;
    void *on_end_arg = answer->config.arg;
    unref(answer);
    on_end(on_end_arg);
    return NULL;
}

// ---- called by the HTTP daemon --------------------------------------------------------------------------------------

enum sl_status sl_http_answer_begin(const struct sl_http_answer_config *config, struct sl_intake *intake,
                                    struct MHD_Connection *connection, struct sl_http_answer **answer_out,
                                    struct sl_error *err) {
    struct sl_http_answer *answer = calloc(1, sizeof *answer);
    if (!answer) {
        sl_intake_drop(intake);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for an answer");
    }
    answer->config = *config;
    answer->intake = *intake;
    answer->words = (struct sl_openai_answer){.model = answer->intake.model.name, .created = (int64_t)time(NULL)};
    answer->appended_ns = sl_now_ns();
    answer->until_ns = sl_deadline_in_ms(config->deadline_ms);
    pthread_mutex_init(&answer->mutex, NULL);
    sl_cond_init(&answer->taken);
    answer->connection = connection;
    answer->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    answer->n_refs = 2;
    bool receives = config->verb == SL_DOCUMENT_IMPORT;
    answer->body = receives ? malloc(BODY_BYTES) : NULL;
    pthread_t thread;
    pthread_mutex_lock(&answer->mutex); // the thread must not resume the connection before it is suspended
    enum sl_status status = receives && !answer->body ? sl_fail(err, SL_ERR_EXHAUSTED, "no memory for an answer")
                                                      : sl_thread_start("answer", answer_thread, answer, &thread, err);
    if (status == SL_OK && !receives) {
        answer->suspended = true;
        MHD_suspend_connection(connection);
    }
    pthread_mutex_unlock(&answer->mutex);
    if (status != SL_OK) {
        answer->n_refs = 1;
        unref(answer);
        return status;
    }
    pthread_detach(thread); // on_end reports its end
    *answer_out = answer;
    return SL_OK;
}

bool sl_http_answer_put(struct sl_http_answer *answer, const char *bytes, size_t *n_inout) {
    SL_LOCKED(&answer->mutex);
    bool decided = answer->decided;
    size_t room = BODY_BYTES - answer->n_body, n = *n_inout < room ? *n_inout : room;
    if (!decided) {
        memcpy(answer->body + answer->n_body, bytes, n);
        answer->n_body += n;
        *n_inout -= n;
        pthread_cond_signal(&answer->taken);
    }
    if (!decided && *n_inout > 0) {
        answer->suspended = true;
        MHD_suspend_connection(answer->connection);
    }
    return !decided;
}

bool sl_http_answer_end_body(struct sl_http_answer *answer) {
    SL_LOCKED(&answer->mutex);
    bool decided = answer->decided;
    answer->body_ended = true;
    pthread_cond_signal(&answer->taken);
    if (!decided) {
        answer->suspended = true;
        MHD_suspend_connection(answer->connection);
    }
    return decided;
}

struct sl_http_answer_head sl_http_answer_head(struct sl_http_answer *answer) {
    SL_LOCKED(&answer->mutex);
    struct sl_http_answer_head head = {
        .http_status = answer->left                  ? SL_HTTP_CLIENT_LEFT
                       : answer->refusal.http_status ? answer->refusal.http_status
                                                     : 200,
        .ignored = answer->ignored,
        .retry_after_s = answer->refusal.retry_after_s,
        .limits = answer->rate_limits,
        .is_stream = answer->is_stream,
        .file_bytes = answer->file_bytes,
        .document = answer->config.document,
        .text = answer->n_text > 0 ? answer->text : NULL,
        .n_text = answer->n_text,
    };
    return head;
}

ssize_t sl_http_answer_take(struct sl_http_answer *answer, char *buf, size_t n_bytes) {
    SL_LOCKED(&answer->mutex);
    size_t n = answer->n_text - answer->n_taken;
    ssize_t taken = (ssize_t)(n < n_bytes ? n : n_bytes);
    if (taken > 0) {
        memcpy(buf, answer->text + answer->n_taken, (size_t)taken);
        answer->n_taken += (size_t)taken;
        pthread_cond_signal(&answer->taken);
    } else if (answer->ended) {
        taken = answer->is_cut ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        answer->suspended = true;
        MHD_suspend_connection(answer->connection);
    }
    return taken;
}

void sl_http_answer_leave(struct sl_http_answer **answer) {
    struct sl_http_answer *left = *answer;
    *answer = NULL;
    pthread_mutex_lock(&left->mutex);
    left->fd = -1;
    pthread_cond_signal(&left->taken);
    pthread_mutex_unlock(&left->mutex);
    unref(left);
}

void sl_http_answer_stop(struct sl_http_answer *answer) {
    SL_LOCKED(&answer->mutex);
    answer->stopped = true;
    pthread_cond_signal(&answer->taken);
}
