// SPDX-License-Identifier: Apache-2.0
// Purpose: the declarations that the files of this folder share; not for other folders.
#pragma once

#include <stdatomic.h>

#include "base/loop.h"
#include "net/admin/admin.h"
#include "coordinator/coordinator.h"
#include "coordinator/documents/copies.h"
#include "coordinator/documents/keeper.h"
#include "coordinator/election/election.h"
#include "coordinator/election/etcd.h"
#include "coordinator/run/figures.h"
#include "coordinator/jobs/conversations.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/jobs/request.h"
#include "coordinator/jobs/tokenizing.h"
#include "coordinator/state/state.h"
#include "coordinator/workers/admit.h"
#include "coordinator/workers/affinity.h"
#include "coordinator/workers/registry.h"
#include "engine/model/model.h"
#include "net/rpc/rpc_selfcheck.h"
#include "net/rpc/standard/rpc_standard.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "net/trust/tenant_salt.h"

struct sl_coordinator {
    struct sl_coordinator_config config;
    struct sl_admin *admin; // opened before the following parts
    bool vllm_names;
    struct sl_rpc_credentials *credentials; // NULL: none
    struct sl_salt_secret salt_secret;
    char *default_recipe;                // owned copy
    struct sl_known_recipe known_recipe; // the same
    char *model_name;                    // owned copy
    uint64_t model_fingerprint;
    struct sl_model_config model;
    struct sl_tokenizer *tokenizer;
    struct sl_chat_template *chat_template; // NULL: the model has none, or one that is not supported
    struct sl_error no_chat;                // the reason
    struct sl_request_rules rules;
    struct sl_registry *registry;
    struct sl_affinity *affinity;
    struct sl_admission *admission;
    struct sl_tenants *tenants;
    struct sl_tokenizing *tokenizing;
    struct sl_jobs *jobs;
    struct sl_conversations *conversations;
    struct sl_documents *documents;
    struct sl_etcd *etcd; // the documents'; NULL: this coordinator is alone
    struct sl_document_keeper *keeper;
    struct sl_document_copies *copies;
    struct sl_document *read_again;   // the keeper's: a lost document whose text is read again, or NULL,
    struct sl_job *read_again_job;    // and the job
    struct sl_state *state;           // NULL: jobs end with the process
    struct sl_restored_job *restored; // jobs that start with the server, or NULL
    struct sl_election *election;     // NULL: this coordinator is alone
    atomic_llong complained_ns;       // when a worker's term that is newer than ours was last logged
    struct sl_rpc_standard standard;  // in addition to the coordinator's own services
    struct sl_rpc_server *server;
    struct sl_rpc_selfcheck *selfcheck; // of the server, for the admin port
    atomic_int n_watchers;              // handlers that may run for a long time
    struct sl_rpc_usage usage;          // the server's
    atomic_llong call_bytes;            // memory of calls that may last
    struct sl_job_figures figures;
    _Atomic int64_t swept_ns; // when the sweeper last ran

    struct sl_loop sweeper;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    _Atomic bool stopping; // no new jobs; set under the mutex
    bool served;           // sl_coordinator_run() has returned
    int64_t grace_end_ns;  // once stopping
    int n_fibers;          // of jobs
};

// The relation of a job to the call that submits it.
enum sl_job_kind {
    SL_JOB_DETACHED,
    SL_JOB_ATTACHED,       // it ends with its call (Generate)
    SL_JOB_READS_DOCUMENT, // likewise, and one store gets all that it leaves
};

/*
 * submit.c: checks a request, puts it in the line and starts its fiber; or finds the job that the same idempotency key made before.
 * The caller owns the reference *job_out. call_deadline_ns: SL_NO_DEADLINE for Submit.
 */
enum sl_status sl_coordinator_submit(struct sl_coordinator *coordinator, const struct sl_identity *caller,
                                     const Sluice__V1__GenerateRequest *request, int64_t call_deadline_ns,
                                     enum sl_job_kind kind, struct sl_job **job_out, struct sl_error *err);

// submit.c: waits for a turn to tokenize a tenant's request of this deadline (deadline_ms 0: the default), or of its call.
enum sl_status sl_coordinator_begin_tokenizing(struct sl_coordinator *coordinator, const char *tenant,
                                               int64_t deadline_ms, int64_t call_deadline_ns,
                                               struct sl_tokenizing_turn *turn_out, struct sl_error *err);

// submit.c: starts a job that an earlier process accepted.
enum sl_status sl_coordinator_resume(struct sl_coordinator *coordinator, struct sl_job *job, struct sl_error *err);

// restore.c: reads the jobs in --state, before clients can ask for them; continues the unfinished ones, once the election has begun.
enum sl_status sl_coordinator_restore(struct sl_coordinator *coordinator, struct sl_error *err);
void sl_coordinator_go_on(struct sl_coordinator *coordinator);
void sl_coordinator_forget_restored(struct sl_coordinator *coordinator);

// coordinator_metrics.c: adds metrics and checks to the admin port; call it when all parts exist.
void sl_coordinator_add_probes(struct sl_coordinator *coordinator);

// documents_again.c: reads the texts of documents whose stores were lost, one at a time; called by the keeper's thread.
void sl_coordinator_read_again(void *coordinator);
void sl_coordinator_forget_reading(struct sl_coordinator *coordinator);

// inference_service.c: counts a call that may last long, within the limit of all calls and its tenant's share. Pair it with the second.
enum sl_status sl_coordinator_enter_watcher(struct sl_coordinator *coordinator, const struct sl_rpc_call *call,
                                            struct sl_tenant **tenant_out, struct sl_error *err);
void sl_coordinator_leave_watcher(struct sl_coordinator *coordinator, struct sl_tenant **tenant);
// The memory of a call that waits for its client or for a job. Zero-initialized, except the first three.
struct sl_call_memory {
    struct sl_coordinator *coordinator;
    struct sl_rpc_call *call;
    struct sl_tenant *tenant; // outlives it
    int64_t bytes;            // counted so far
};
// inference_service.c: counts all memory that the call has now, and `more` that it takes, within the bound of all such calls and its
// tenant's share of it. SL_ERR_EXHAUSTED. Release it also then.
enum sl_status sl_call_memory_hold(struct sl_call_memory *memory, size_t more, struct sl_error *err);
void sl_call_memory_release(struct sl_call_memory *memory);
// inference_service.c: returns the tenant whose jobs and documents the caller may see; NULL: all.
const char *sl_coordinator_sees(const struct sl_rpc_call *call);

// lead.c: finds a document of a tenant, with a reference. SL_ERR_NOT_FOUND, or as sl_coordinator_check_documents() (lead.h).
enum sl_status sl_coordinator_find_document(struct sl_coordinator *coordinator, const char *tenant, const char *name,
                                            struct sl_document **document_out, struct sl_error *err);
// documents_add.c: the handler that adds a document, and its checks, which others take too.
enum sl_status sl_coordinator_handle_add(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                         struct sl_error *err);
// Checks fields of a request. SL_ERR_INVALID: err begins with the field.
enum sl_status sl_coordinator_check_kept(int64_t keep_ms, int32_t replicas, struct sl_error *err);
// Returns SL_ERR_PRECONDITION: fewer stores are ready than should keep a document.
enum sl_status sl_coordinator_too_few_stores(int replicas, int n_stores, struct sl_error *err);
// Waits until the stores that have a document report whether their disks took it; not for long. SL_ERR_CANCELLED.
enum sl_status sl_coordinator_await_disks(struct sl_coordinator *coordinator, struct sl_rpc_call *call,
                                          const struct sl_document *document, struct sl_error *err);
// Sends a document: as an event of Add or alone, and whether it was there before the call.
enum sl_document_reply { SL_DOCUMENT_ALONE = 0, SL_DOCUMENT_EVENT = 1, SL_DOCUMENT_WAS_THERE = 2 };
enum sl_status sl_coordinator_send_document(struct sl_coordinator *coordinator, struct sl_rpc_call *call,
                                            const struct sl_document *document, unsigned reply);
/*
 * documents_add.c: checks a document as it is added, and makes it, with the key of its capsule, without entering it into the
 * registry. known_tokens: how many it had when it was read. The caller owns the reference *document_out and *tokens_out, its
 * n_tokens token ids. Statuses as those of Add.
 */
enum sl_status sl_coordinator_plan_document(struct sl_call_memory *memory, const Sluice__V1__AddDocumentRequest *asked,
                                            int64_t known_tokens, struct sl_document **document_out,
                                            int32_t **tokens_out, struct sl_error *err);
// documents_add.c: enters a planned document into the registry, if its store has room for it, and tells the stores.
enum sl_status sl_coordinator_enter_document(struct sl_coordinator *coordinator, struct sl_document *document,
                                             struct sl_error *err);
// The prompt of a question on several documents.
struct sl_joined_prompt {
    struct sl_document *documents[SL_MAX_JOINS_OF_JOB + 1]; // [n_documents], with references
    int n_documents;
    struct sl_hash128 salt; // the tenant's
    int32_t n_reread;       // tokens of each later document that no part covers
    Sluice__V1__TokenIds ids;
    int64_t first_tokens;      // of the prompt, that the first document's capsule has
    struct sl_job_join *joins; // [n_joins]
    int n_joins;
    int64_t joined_tokens;
    Sluice__V1__NotJoined not_joined; // why there are no joins
};
/*
 * documents_join.c: makes the prompt of the request's documents and its own text or messages. SL_ERR_INVALID: err begins with
 * the field, and names the document that cannot be joined. SL_ERR_NOT_FOUND, SL_ERR_PRECONDITION, SL_ERR_EXHAUSTED.
 */
enum sl_status sl_joined_prompt_init(struct sl_joined_prompt *prompt, struct sl_coordinator *coordinator,
                                     const struct sl_identity *caller, const Sluice__V1__GenerateRequest *request,
                                     struct sl_error *err);
void sl_joined_prompt_cleanup(struct sl_joined_prompt *prompt); // frees what a job has not taken over
/*
 * documents_join.c: encodes a text as the beginning of a question on it, for a capsule or a segment that cannot be cut
 * afterwards. *ids_inout: NULL, or the text's own tokens, which it replaces; *n_inout: at most this many, and no more than both
 * prompts begin with.
 */
enum sl_status sl_coordinator_encode_compacted(const struct sl_coordinator *coordinator, const char *text, bool chat,
                                               int32_t **ids_inout, int64_t *n_inout, struct sl_error *err);

// documents_export.c, documents_import.c: the handlers about documents in files.
enum sl_status sl_coordinator_handle_export(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                            struct sl_error *err);
enum sl_status sl_coordinator_handle_import(void *service, struct sl_rpc_call *call, const ProtobufCMessage *no_request,
                                            struct sl_error *err);

// inference_service.c, documents_service.c, cluster_service.c: the implementations of the services in proto/.
struct sl_rpc_implementation sl_inference_service(struct sl_coordinator *coordinator);
struct sl_rpc_implementation sl_documents_service(struct sl_coordinator *coordinator);
struct sl_rpc_implementation sl_cluster_service(struct sl_coordinator *coordinator);
