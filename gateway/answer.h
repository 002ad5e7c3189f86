// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one answer under way: a job of the cluster, followed by a thread of its own, and what is to be sent of it.
 *
 * Design: the thread reads the request, submits and watches, and appends text to a bounded buffer; the HTTP daemon takes from it. Whoever finds nothing to
 *         take suspends the connection; the thread resumes it. The head is decided late: while nothing was sent, a failure still has
 *         its status of HTTP. A client that has closed its side is noticed at the socket within a tenth of a second, also while it is
 *         suspended, and its job is cancelled.
 * Threads: two references: the thread's and the connection's. `mutex` guards what both use.
 */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/trace.h"
#include "client/libsluice/sluice.h"
#include "gateway/intake.h"

struct sl_http_answer;

struct sl_http_answer_config {
    struct sl_client *client;
    const char *route;     // "POST /v1/completions": a literal
    struct sl_trace trace; // what the request is a part of
    int64_t deadline_ms;   // of requests that name none
    int64_t ping_ms;       // a stream that has nothing to say says so this often
    int64_t reader_ms;     // a client that takes nothing for so long is taken for gone
    // Called by the thread when it is the last to let go of what the gateway lent it.
    void (*on_end)(void *arg);
    void *arg;
};

/*
 * Begin. Takes over what the request has brought, whether or not this succeeds. The connection is suspended: its handler is called again
 * when the head is decided. SL_ERR_EXHAUSTED: nothing has begun, on_end is not called.
 */
enum sl_status sl_http_answer_begin(const struct sl_http_answer_config *config, struct sl_intake *intake,
                                    struct MHD_Connection *connection, struct sl_http_answer **answer_out,
                                    struct sl_error *err);

// The handler was called again: what to send. Its body is a stream, one text, or a refusal's.
struct sl_http_answer_head {
    int http_status;
    int64_t retry_after_s;
    struct sl_limits_told limits;
    bool is_stream;
    const char *text; // of one text, not terminated; the answer's. NULL: there was no memory for it
    size_t n_text;
};
struct sl_http_answer_head sl_http_answer_head(struct sl_http_answer *answer);

// Of a stream: bytes, MHD_CONTENT_READER_END_OF_STREAM, or 0 with the connection suspended.
ssize_t sl_http_answer_take(struct sl_http_answer *answer, char *buf, size_t n_bytes);

// The connection is over: the job is cancelled if it still runs. Nulls *answer.
void sl_http_answer_leave(struct sl_http_answer **answer);

// The gateway ends: so does the answer, with an error.
void sl_http_answer_stop(struct sl_http_answer *answer);
