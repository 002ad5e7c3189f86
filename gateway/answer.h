// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one answer in progress: a job of the cluster, followed by a thread of its own, and the text to be sent.
 *
 * Design: the thread reads the request, submits and watches, and appends text to a bounded buffer; the HTTP daemon
 *         takes from it. If the buffer is empty, the daemon suspends the connection; the thread resumes it. The head is
 *         decided late: until the first byte is sent, a failure can still have an HTTP status. A client that has closed
 *         its side is noticed at the socket within a tenth of a second, also while it is suspended, and its job is
 *         cancelled.
 * Threads: two references: the thread's and the connection's. `mutex` guards what both use.
 */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/trace.h"
#include "client/libsluice/sluice.h"
#include "gateway/documents.h"
#include "gateway/intake.h"

#define SL_HTTP_CLIENT_LEFT    499 // counted, not sent: the client has disconnected
#define SL_DOCUMENT_PATH_BYTES 72  // longer than any name of a document

struct sl_http_answer;

struct sl_http_answer_config {
    struct sl_client *client;
    const char *route;          // "POST /v1/completions": a literal
    enum sl_document_verb verb; // of a call about documents; SL_DOCUMENT_NONE: an answer is wanted
    char document[SL_DOCUMENT_PATH_BYTES];
    int64_t keep_ms;       // of an import
    struct sl_trace trace; // trace that the request belongs to
    int64_t deadline_ms;   // for requests that set none
    int64_t ping_ms;       // a stream without new text sends a ping this often
    int64_t reader_ms;     // after this time without reading, a client counts as lost
    // Called by the thread after it has released everything that the gateway lent it.
    void (*on_end)(void *arg);
    void *arg;
};

/*
 * Begins an answer. Takes over the contents of *intake on success and on failure. Suspends the connection: its handler
 * is called again when the head is decided. But an import begins before its body has arrived, which follows by
 * sl_http_answer_put(). SL_ERR_EXHAUSTED: nothing has begun, and on_end is not called.
 */
enum sl_status sl_http_answer_begin(const struct sl_http_answer_config *config, struct sl_intake *intake,
                                    struct MHD_Connection *connection, struct sl_http_answer **answer_out,
                                    struct sl_error *err);

/*
 * Passes on the next bytes of an import's body, and suspends the connection while there is no room for *n_inout of them,
 * which are left. Returns false if the answer is decided, so that the rest of the body has no use.
 */
bool sl_http_answer_put(struct sl_http_answer *answer, const char *bytes, size_t *n_inout);
// The body is complete. Suspends the connection unless the head is decided; returns whether it is.
bool sl_http_answer_end_body(struct sl_http_answer *answer);

// The head of the response, when the handler is called again. Its body is a stream, one text, or a refusal's.
struct sl_http_answer_head {
    int http_status;
    int64_t retry_after_s;
    struct sl_rate_limits limits;
    bool is_stream;
    int64_t file_bytes;   // of a stream that is a file; 0: it is events
    const char *document; // the file's name, owned by the answer
    const char *ignored; // accepted fields that are not used; owned by the answer, "": none
    const char *text;    // the whole text, not terminated; owned by the answer. NULL: there was no memory for it
    size_t n_text;
};
struct sl_http_answer_head sl_http_answer_head(struct sl_http_answer *answer);

// Takes the next bytes of a stream: returns their number, MHD_CONTENT_READER_END_OF_STREAM, _END_WITH_ERROR for a file that
// is cut short, or 0 with the connection suspended.
ssize_t sl_http_answer_take(struct sl_http_answer *answer, char *buf, size_t n_bytes);

// Cancels the job if it still runs, because the connection is closed. Nulls *answer.
void sl_http_answer_leave(struct sl_http_answer **answer);

// Ends the answer with an error, because the gateway ends.
void sl_http_answer_stop(struct sl_http_answer *answer);
