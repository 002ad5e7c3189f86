// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libsluice, the C client of a cluster: submit a job, follow it, cancel it, ask about jobs and workers.
 *
 * Design: messages are those of proto/sluice/v1, as protobuf-c makes them: one vocabulary, nothing to translate.
 *         Everything blocks until its deadline (base/clock.h). What can be repeated without harm is repeated here:
 *         a watch that loses its connection goes on behind the last event it delivered, and an answer whose coordinator is lost goes on
 *         at the next one behind the last token.
 *         This header, those that it includes, and what they declare are what an installation shows to others (docs/EMBEDDING.md).
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
#include "proto/sluice/v1/inference.pb-c.h"

// The shared library shows what is declared between these, and nothing else.
#pragma GCC visibility push(default)

/*
 * What connections are made with, threads among it, is started with the first client and stopped with the last one: a process that forks
 * does so before or after. Who makes many clients, one after the other, keeps it between these two.
 */
void sl_client_init(void);
void sl_client_shutdown(void);

struct sl_client;

/*
 * Remember where the coordinators are: "HOST:PORT", or several of one cluster, "HOST:PORT,HOST:PORT,...", of which one leads and is
 * looked for by every call. Connects on demand: an absent coordinator is reported by the first call. tls: who we are, to a
 * cluster that asks; NULL, or no files: in the clear. SL_ERR_INVALID names the file that cannot be read.
 */
enum sl_status sl_client_connect(const char *coordinators, const struct sl_tls_files *tls,
                                 struct sl_client **client_out, struct sl_error *err);
void sl_client_close(struct sl_client **client); // accepts NULL, nulls *client

/*
 * Submit a job. SL_ERR_INVALID names the field; SL_ERR_EXHAUSTED says when to try again; SL_ERR_PEER_LOST: no
 * coordinator, a few times in a row. A request without an idempotency key is given a random one: however often it has to be sent,
 * it is one job.
 */
enum sl_status sl_client_submit(struct sl_client *client, const Sluice__V1__GenerateRequest *request,
                                int64_t deadline_ns, char job_id_out[SL_JOB_ID_BYTES], struct sl_error *err);

struct sl_watch {
    const char *job_id;
    int64_t from_sequence; // 0 or 1: from the beginning
    int64_t deadline_ns;   // SL_NO_DEADLINE: as long as the job lives
    int64_t reconnect_ms;  // give up after so long without a coordinator; 0: 30 s

    // Called with each event, in order, once. The event is freed afterwards.
    void (*on_event)(void *arg, const Sluice__V1__Event *event);
    // Called when the connection was lost and another attempt follows; may be NULL.
    void (*on_reconnect)(void *arg, const struct sl_error *why);
    // Asked about ten times a second and after each event; true ends the watch with SL_ERR_CANCELLED. May be NULL.
    bool (*stopped)(void *arg);
    void *arg;
};

/*
 * Deliver the events of a job until its last one (Finished): SL_OK, however the job ended.
 * SL_ERR_NOT_FOUND: no such job. SL_ERR_PEER_LOST: the coordinator could not be reached again within reconnect_ms.
 * SL_ERR_DEADLINE. SL_ERR_CANCELLED: `stopped` said so; the job itself goes on.
 */
enum sl_status sl_client_watch(struct sl_client *client, const struct sl_watch *watch, struct sl_error *err);

/*
 * Submit and watch (watch->job_id and from_sequence are ignored), and cancel the job when the watch does not reach its
 * end, so that an abandoned answer costs the cluster nothing. The job id is written before the first event. When the job's coordinator is
 * lost, or has lost the job, it is submitted again to the one that leads, and goes on there: under another id, which is written, with
 * events that tell of its states again, but no token twice and none that is another.
 * SL_ERR_PEER_CORRUPT: what came then is not the answer that had begun.
 */
enum sl_status sl_client_generate(struct sl_client *client, const Sluice__V1__GenerateRequest *request,
                                  const struct sl_watch *watch, char job_id_out[SL_JOB_ID_BYTES], struct sl_error *err);

/*
 * The same for who wants the text and nothing else: on_text is called with each piece of it. A job that failed is a failure here: SL_OK means
 * that the answer is whole.
 */
enum sl_status sl_client_ask(struct sl_client *client, const Sluice__V1__GenerateRequest *request, int64_t deadline_ns,
                             void (*on_text)(void *arg, const char *text), void *arg, struct sl_error *err);

// Replies are freed with the _free_unpacked() function of their type. job_out may be NULL.
enum sl_status sl_client_cancel(struct sl_client *client, const char *job_id, int64_t deadline_ns,
                                Sluice__V1__Job **job_out, struct sl_error *err);
enum sl_status sl_client_get(struct sl_client *client, const char *job_id, int64_t deadline_ns,
                             Sluice__V1__Job **job_out, struct sl_error *err);
// Newest first, of jobs whose state's bit (1 << state) is in `states`; 0: of all.
enum sl_status sl_client_list(struct sl_client *client, unsigned states, int32_t limit, int64_t deadline_ns,
                              Sluice__V1__ListReply **reply_out, struct sl_error *err);
enum sl_status sl_client_model(struct sl_client *client, int64_t deadline_ns, Sluice__V1__ModelReply **reply_out,
                               struct sl_error *err);
// What a worker keeps of a conversation (GenerateRequest.conversation) goes at once, and not when its time is over. Copies in stores go when
// those need the memory.
enum sl_status sl_client_end_conversation(struct sl_client *client, const char *id, int64_t deadline_ns,
                                          struct sl_error *err);
enum sl_status sl_client_workers(struct sl_client *client, int64_t deadline_ns, Sluice__V1__WorkersReply **reply_out,
                                 struct sl_error *err);
enum sl_status sl_client_drain(struct sl_client *client, const char *worker, bool undo, int64_t deadline_ns,
                               int32_t *jobs_running_out, struct sl_error *err);

#pragma GCC visibility pop
