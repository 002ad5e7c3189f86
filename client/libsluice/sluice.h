// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libsluice, the C client of a cluster: submits a job, follows it, cancels it, lists jobs and workers.
 *
 * Design: messages are those of proto/sluice/v1, as protobuf-c generates them, so no translation is needed. Every call
 *         blocks until its deadline (base/clock.h). Calls that can be repeated without harm are repeated here: a watch
 *         that loses its connection continues after the last event that it delivered. An answer whose coordinator is
 *         lost continues at the next one after the last token.
 *         This header, those that it includes, and their declarations are the public interface of an installation
 *         (docs/EMBEDDING.md).
 * Threads: a client may be used by many threads at once.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/job_id.h"
#include "base/status.h"
#include "net/trust/tls_paths.h"
#include "proto/sluice/v1/cluster.pb-c.h"
#include "proto/sluice/v1/documents.pb-c.h"
#include "proto/sluice/v1/inference.pb-c.h"

// The shared library exports the declarations between these, and no others.
#pragma GCC visibility push(default)

/*
 * Starts the parts that connections need, including threads; the first client starts them, and the last one stops them.
 * A process that forks must fork before or after. A program that creates many clients one after another calls this pair
 * around them, to keep the parts running.
 */
void sl_client_init(void);
void sl_client_shutdown(void);

struct sl_client;

/*
 * Creates a client for the coordinators: "HOST:PORT", or several of one cluster, "HOST:PORT,HOST:PORT,..."; every call
 * then finds the leader among them. Connects on demand: the first call reports an absent coordinator. tls: our
 * certificate, for a cluster with authentication; NULL, or no files: no TLS. SL_ERR_INVALID names the file that cannot
 * be read.
 */
enum sl_status sl_client_connect(const char *coordinators, const struct sl_tls_files *tls,
                                 struct sl_client **client_out, struct sl_error *err);
void sl_client_close(struct sl_client **client); // accepts NULL, nulls *client

/*
 * Submits a job. SL_ERR_INVALID names the field; SL_ERR_EXHAUSTED contains the time of the next try; SL_ERR_PEER_LOST:
 * no coordinator, a few times in a row. A request without an idempotency key gets a random one, so that it is one job
 * even if it is sent several times.
 */
enum sl_status sl_client_submit(struct sl_client *client, const Sluice__V1__GenerateRequest *request,
                                int64_t deadline_ns, char job_id_out[SL_JOB_ID_BYTES], struct sl_error *err);

struct sl_watch {
    const char *job_id;
    int64_t from_sequence; // 0 or 1: from the beginning
    int64_t deadline_ns;   // SL_NO_DEADLINE: until the job ends
    int64_t reconnect_ms;  // give up after this long without a coordinator; 0: 30 s

    // Called with each event, in order, once. The event is freed afterwards.
    void (*on_event)(void *arg, const Sluice__V1__Event *event);
    // Called when the connection was lost and another attempt follows; may be NULL.
    void (*on_reconnect)(void *arg, const struct sl_error *why);
    // Called about ten times a second and after each event; true ends the watch with SL_ERR_CANCELLED. May be NULL.
    bool (*stopped)(void *arg);
    void *arg;
};

/*
 * Delivers the events of a job until its last one (Finished): SL_OK, whether the job succeeded or not.
 * SL_ERR_NOT_FOUND: no such job. SL_ERR_PEER_LOST: the coordinator could not be reached again within reconnect_ms.
 * SL_ERR_DEADLINE. SL_ERR_CANCELLED: `stopped` returned true; the job itself goes on.
 */
enum sl_status sl_client_watch(struct sl_client *client, const struct sl_watch *watch, struct sl_error *err);

/*
 * Submits and watches a job (watch->job_id and from_sequence are ignored). Cancels the job when the watch does not
 * reach its end, so that an abandoned answer costs the cluster nothing. The job id is written before the first event.
 * When the job's coordinator is lost, or has lost the job, submits it again to the leader, where it continues under
 * another id, which is written. Its events report states again, but no token twice and no different token.
 * SL_ERR_PEER_CORRUPT: the new tokens do not continue the answer that had begun.
 */
enum sl_status sl_client_generate(struct sl_client *client, const Sluice__V1__GenerateRequest *request,
                                  const struct sl_watch *watch, char job_id_out[SL_JOB_ID_BYTES], struct sl_error *err);

/*
 * Like sl_client_generate(), but delivers only text: on_text is called with each piece of it. If the job failed, this
 * call fails: SL_OK means that the answer is complete.
 */
enum sl_status sl_client_ask(struct sl_client *client, const Sluice__V1__GenerateRequest *request, int64_t deadline_ns,
                             void (*on_text)(void *arg, const char *text), void *arg, struct sl_error *err);

// Replies are freed with the _free_unpacked() function of their type. job_out may be NULL.
enum sl_status sl_client_cancel(struct sl_client *client, const char *job_id, int64_t deadline_ns,
                                Sluice__V1__Job **job_out, struct sl_error *err);
enum sl_status sl_client_get(struct sl_client *client, const char *job_id, int64_t deadline_ns,
                             Sluice__V1__Job **job_out, struct sl_error *err);
// Lists jobs, newest first, if the bit (1 << state) of their state is in `states`; 0: all.
enum sl_status sl_client_list(struct sl_client *client, unsigned states, int32_t limit, int64_t deadline_ns,
                              Sluice__V1__ListReply **reply_out, struct sl_error *err);
enum sl_status sl_client_model(struct sl_client *client, int64_t deadline_ns, Sluice__V1__ModelReply **reply_out,
                               struct sl_error *err);
// Frees what a worker retains of a conversation (GenerateRequest.conversation) now, instead of when its time is over.
// Copies in stores are freed when stores need the memory.
enum sl_status sl_client_end_conversation(struct sl_client *client, const char *id, int64_t deadline_ns,
                                          struct sl_error *err);

// ---- documents (proto/sluice/v1/documents.proto) -------------------------------------------------------------------

struct sl_document_watch {
    int64_t deadline_ns; // of the whole call; SL_NO_DEADLINE: none
    // Called with each event of the job that reads the text; the event is freed afterwards. May be NULL.
    void (*on_event)(void *arg, const Sluice__V1__Event *event);
    // Called about ten times a second; true ends the call with SL_ERR_CANCELLED, and leaves no document. May be NULL.
    bool (*stopped)(void *arg);
    void *arg;
};
// Adds a document; returns when a store has its capsule. Not repeated after a lost connection: SL_ERR_PEER_LOST.
enum sl_status sl_client_add_document(struct sl_client *client, const Sluice__V1__AddDocumentRequest *request,
                                      const struct sl_document_watch *watch, Sluice__V1__Document **document_out,
                                      struct sl_error *err);
enum sl_status sl_client_get_document(struct sl_client *client, const char *name, int64_t deadline_ns,
                                      Sluice__V1__Document **document_out, struct sl_error *err);
enum sl_status sl_client_list_documents(struct sl_client *client, int64_t deadline_ns,
                                        Sluice__V1__ListDocumentsReply **reply_out, struct sl_error *err);
// Changes how long a document is kept, and in how many stores.
enum sl_status sl_client_pin_document(struct sl_client *client, const Sluice__V1__PinDocumentRequest *request,
                                      int64_t deadline_ns, Sluice__V1__Document **document_out, struct sl_error *err);
enum sl_status sl_client_delete_document(struct sl_client *client, const char *name, int64_t deadline_ns,
                                         Sluice__V1__Document **document_out, struct sl_error *err);

struct sl_document_pieces {
    int64_t deadline_ns; // of the whole call, at most an hour
    // Export: called with each piece of the file; a status other than SL_OK ends the call, and is returned.
    enum sl_status (*write_fn)(void *arg, const void *bytes, size_t n, struct sl_error *err);
    // Import: writes the next piece of the file to bytes_out; *n_out 0: there are no more. A status other than SL_OK ends
    // the call. If a part of the file was missing then, it is returned, and the cluster keeps nothing.
    enum sl_status (*read_fn)(void *arg, void *bytes_out, size_t size, size_t *n_out, struct sl_error *err);
    bool (*stopped)(void *arg); // as in struct sl_document_watch
    void *arg;
};
// Exports a document as a file (docs/CAPSULE.md). no_text: only with the text's digest.
enum sl_status sl_client_export_document(struct sl_client *client, const char *name, bool no_text,
                                         const struct sl_document_pieces *pieces, struct sl_error *err);
// Adds a document from such a file. text: of a file without text; or "".
enum sl_status sl_client_import_document(struct sl_client *client, const char *name, const char *text, int64_t keep_ms,
                                         const struct sl_document_pieces *pieces, Sluice__V1__Document **document_out,
                                         struct sl_error *err);

// ---- the cluster ---------------------------------------------------------------------------------------------------

enum sl_status sl_client_workers(struct sl_client *client, int64_t deadline_ns, Sluice__V1__WorkersReply **reply_out,
                                 struct sl_error *err);
enum sl_status sl_client_drain(struct sl_client *client, const char *worker, bool undo, int64_t deadline_ns,
                               int32_t *jobs_running_out, struct sl_error *err);

#pragma GCC visibility pop
