// SPDX-License-Identifier: Apache-2.0
#include "gateway/documents.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/openai/request.h"
#include "net/document/exported.h"

enum {
    CALL_MS = 10000,
    LATE_MS = 15000,          // the coordinator ends the reading at its deadline, and then waits for the store
    MAX_TEXT_BYTES = 4000000, // the coordinator takes messages of 4 MiB
    // JSON writes a character of two bytes as six. A longer body is refused before it is parsed.
    MAX_BODY_BYTES = 3 * MAX_TEXT_BYTES + (64 << 10),
    BYTES_A_TOKEN = 4, // until the number is known
    MAX_TRANSFER_MS = 3600000,
};

// ---- replies --------------------------------------------------------------------------------------------------------

static json_t *describe(const Sluice__V1__Document *document) {
    char fingerprint[24]; // a text, because most JSON readers round 64 bits
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, document->model_fingerprint);
    json_t *stores = json_array();
    for (size_t i = 0; i < document->n_stores; i++) {
        json_array_append_new(stores, json_string(document->stores[i]));
    }
    return json_pack("{s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:s, s:b, s:s, s:b, s:s, s:b, s:b, s:I, s:b, s:i, s:o, s:I, "
                     "s:I, s:f, s:s, s:I, s:s, s:s, s:s, s:I}",
                     "id", document->name, "object", "document", "created", (json_int_t)(document->created_ms / 1000),
                     "sha256", document->sha256, "bytes", (json_int_t)document->text_bytes, "n_tokens",
                     (json_int_t)document->n_tokens, "capsule_bytes", (json_int_t)document->capsule_bytes, "recipe",
                     document->recipe, "chat", document->chat, "store", document->store, "on_disk", document->on_disk,
                     "fingerprint", fingerprint, "other_model", document->other_model, "reading", document->reading,
                     "expires_ms", (json_int_t)document->expires_ms, "ends_with_cluster", document->ends_with_cluster,
                     "replicas", document->replicas, "stores", stores, "questions", (json_int_t)document->n_questions,
                     "saved_tokens", (json_int_t)document->saved_tokens, "saved_ms", document->saved_ms, "lost_points",
                     document->lost_points, "lost_tokens", (json_int_t)document->lost_tokens, "lost_model",
                     document->lost_model, "caution", document->caution, "not_on_disk", document->not_on_disk,
                     "offloaded_bytes", (json_int_t)document->offloaded_bytes);
}

static char *print(json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}

// A client that repeats the call does not help against what is refused as 409: documents have to be deleted first.
static enum sl_status refuse(enum sl_status status, const struct sl_error *err, struct sl_refusal *refusal) {
    if (status == SL_ERR_PRECONDITION) {
        sl_refuse(refusal, 409, "%s", err->text);
    } else {
        sl_refuse_error_of_ours(refusal, err);
    }
    return status;
}

static enum sl_status refuse_one(enum sl_status status, const struct sl_error *err, struct sl_refusal *refusal) {
    if (status != SL_ERR_NOT_FOUND) {
        return refuse(status, err, refusal);
    }
    sl_refuse_unknown(refusal, "document", "%s", err->text);
    return status;
}

// ---- adding ---------------------------------------------------------------------------------------------------------

static enum sl_status take_string(const json_t *value, const char *name, char **string_out,
                                  struct sl_refusal *refusal) {
    *string_out = (char *)json_string_value(value);
    return *string_out ? SL_OK : sl_refuse_field(refusal, name, "%s: expected a string", name);
}

static enum sl_status take_ms(const json_t *value, const char *name, int64_t min, int64_t max, int64_t *ms_out,
                              struct sl_refusal *refusal) {
    *ms_out = json_integer_value(value);
    return json_is_integer(value) && *ms_out >= min && *ms_out <= max
               ? SL_OK
               : sl_refuse_field(refusal, name, "%s: expected a number of ms, %" PRId64 " to %" PRId64, name, min, max);
}

static enum sl_status take_field(const char *name, const json_t *value, Sluice__V1__AddDocumentRequest *request,
                                 struct sl_refusal *refusal) {
    if (strcmp(name, "name") == 0) {
        return take_string(value, name, &request->name, refusal);
    }
    if (strcmp(name, "text") == 0) {
        return take_string(value, name, &request->text, refusal);
    }
    if (strcmp(name, "recipe") == 0) {
        return take_string(value, name, &request->recipe, refusal);
    }
    if (strcmp(name, "ship_at_most") == 0) {
        return sl_openai_take_share(value, true, &request->recipe, refusal);
    }
    if (strcmp(name, "keep_ms") == 0) {
        return take_ms(value, name, 0, INT64_MAX, &request->keep_ms, refusal);
    }
    if (strcmp(name, "deadline_ms") == 0) {
        return take_ms(value, name, 1, INT32_MAX, &request->deadline_ms, refusal);
    }
    if (strcmp(name, "replicas") == 0) {
        request->replicas = (int32_t)json_integer_value(value);
        return json_is_integer(value) && json_integer_value(value) >= 1 && json_integer_value(value) <= 8
                   ? SL_OK
                   : sl_refuse_field(refusal, name, "replicas: expected a number of stores, 1 to 8");
    }
    if (strcmp(name, "raw") == 0) {
        request->raw = json_is_true(value);
        return json_is_boolean(value) ? SL_OK : sl_refuse_field(refusal, name, "raw: expected true or false");
    }
    return sl_refuse_field(refusal, strlen(name) < sizeof refusal->param ? name : "", "unknown field \"%.60s\"", name);
}

// Reads the body, in its turn, and frees it. The request points into *json_out, which the caller releases.
static enum sl_status parse(const struct sl_document_call *call, struct sl_intake *intake, json_t **json_out,
                            Sluice__V1__AddDocumentRequest *request, struct sl_refusal *refusal) {
    if (intake->n_body > MAX_BODY_BYTES) {
        sl_refuse(refusal, 413, "the body has %zu bytes; a document's has at most %d", intake->n_body, MAX_BODY_BYTES);
        sl_intake_drop(intake);
        return SL_ERR_RANGE;
    }
    SL_TRY(sl_intake_begin(intake, call->stopped, call->arg, refusal));
    json_error_t error;
    json_t *json = sl_json_parse(intake->body ? intake->body : "", intake->n_body, JSON_REJECT_DUPLICATES,
                                 &intake->json, NULL, &error, refusal);
    sl_intake_end(intake);
    *json_out = json;
    if (refusal->http_status != 0) {
        return SL_ERR_EXHAUSTED;
    }
    SL_REFUSE_FIELD_IF(!json_is_object(json), refusal, "",
                       json ? "the body is JSON, but not an object" : "the body is not JSON: %s", error.text);
    json_t *recipe = json_object_get(json, "recipe"), *share = json_object_get(json, "ship_at_most");
    if (json_is_string(recipe) && json_string_length(recipe) == 0) { // left out, as in questions
        json_object_del(json, "recipe");
        recipe = NULL;
    }
    SL_REFUSE_FIELD_IF(recipe && share && !json_is_null(recipe) && !json_is_null(share), refusal, "ship_at_most",
                       "recipe, ship_at_most: each chooses the recipe: give one of them");
    const char *name;
    json_t *value;
    enum sl_status status = SL_OK;
    json_object_foreach(json, name, value) {
        SL_THEN_IF(status, !json_is_null(value), take_field(name, value, request, refusal));
    }
    SL_THEN_IF(status, strlen(request->text) > MAX_TEXT_BYTES,
               sl_refuse_field(refusal, "text", "text: has %zu bytes, at most %d are allowed", strlen(request->text),
                               MAX_TEXT_BYTES));
    return status;
}

struct watching {
    const struct sl_document_call *call;
    bool has_job; // the text is being read, so its tokens stay charged
};

static void on_event(void *arg, const Sluice__V1__Event *) {
    ((struct watching *)arg)->has_job = true;
}

static bool stopped(void *arg) {
    const struct watching *watching = arg;
    return watching->call->stopped(watching->call->arg);
}

static enum sl_status send_request(const struct sl_document_call *call, Sluice__V1__AddDocumentRequest *request,
                                   struct sl_intake *intake, char **json_out, struct sl_refusal *refusal) {
    int64_t guessed = (int64_t)(strlen(request->text) / BYTES_A_TOKEN + 1);
    SL_TRY(sl_intake_charge(intake, guessed, refusal));
    if (request->deadline_ms == 0) {
        request->deadline_ms = call->deadline_ms;
    }
    struct watching watching = {call, false};
    struct sl_document_watch watch = {.deadline_ns = sl_deadline_in_ms(request->deadline_ms + LATE_MS),
                                      .on_event = on_event,
                                      .stopped = stopped,
                                      .arg = &watching};
    Sluice__V1__Document *document;
    struct sl_error err = {0};
    enum sl_status status = sl_client_add_document(call->client, request, &watch, &document, &err);
    if (status != SL_OK && !watching.has_job) {
        sl_intake_reconcile(intake, 0);
    }
    if (status == SL_ERR_EXHAUSTED && watching.has_job) { // a client that repeats it reads the text in vain again
        sl_refuse(refusal, 507, "%s", err.text);
        return status;
    }
    if (status != SL_OK) {
        return refuse(status, &err, refusal);
    }
    // A document that is there already costs no reading.
    sl_intake_reconcile(intake, watching.has_job ? document->n_tokens : 0);
    json_t *described = describe(document);
    json_object_set_new(described, "was_there", json_boolean(document->was_there));
    *json_out = print(described);
    sluice__v1__document__free_unpacked(document, NULL);
    return SL_OK;
}

static enum sl_status add(const struct sl_document_call *call, struct sl_intake *intake, char **json_out,
                          struct sl_refusal *refusal) {
    Sluice__V1__AddDocumentRequest request = SLUICE__V1__ADD_DOCUMENT_REQUEST__INIT;
    json_t *json = NULL;
    enum sl_status status = parse(call, intake, &json, &request, refusal);
    SL_THEN(status, send_request(call, &request, intake, json_out, refusal));
    json_decref(json);
    return status;
}

// ---- the others -----------------------------------------------------------------------------------------------------

static enum sl_status list(const struct sl_document_call *call, char **json_out, struct sl_refusal *refusal) {
    Sluice__V1__ListDocumentsReply *reply;
    struct sl_error err = {0};
    enum sl_status status = sl_client_list_documents(call->client, sl_deadline_in_ms(CALL_MS), &reply, &err);
    if (status != SL_OK) {
        return refuse(status, &err, refusal);
    }
    json_t *data = json_array();
    for (size_t i = 0; i < reply->n_documents; i++) {
        json_array_append_new(data, describe(reply->documents[i]));
    }
    sluice__v1__list_documents_reply__free_unpacked(reply, NULL);
    *json_out = print(json_pack("{s:s, s:o}", "object", "list", "data", data));
    return SL_OK;
}

static enum sl_status show_or_delete(const struct sl_document_call *call, char **json_out, struct sl_refusal *refusal) {
    bool deletes = call->verb == SL_DOCUMENT_DELETE;
    Sluice__V1__Document *document;
    struct sl_error err = {0};
    int64_t deadline_ns = sl_deadline_in_ms(CALL_MS);
    enum sl_status status = deletes ? sl_client_delete_document(call->client, call->name, deadline_ns, &document, &err)
                                    : sl_client_get_document(call->client, call->name, deadline_ns, &document, &err);
    if (status != SL_OK) {
        return refuse_one(status, &err, refusal);
    }
    *json_out = print(deletes ? json_pack("{s:s, s:s, s:b}", "id", document->name, "object", "document", "deleted", 1)
                              : describe(document));
    sluice__v1__document__free_unpacked(document, NULL);
    return SL_OK;
}

// ---- files ----------------------------------------------------------------------------------------------------------

static int64_t transfer_deadline_ns(const struct sl_document_call *call) {
    return sl_deadline_in_ms(call->deadline_ms < MAX_TRANSFER_MS ? call->deadline_ms : MAX_TRANSFER_MS);
}

static enum sl_status import(const struct sl_document_call *call, char **json_out, struct sl_refusal *refusal) {
    const struct sl_document_pieces pieces = {.deadline_ns = transfer_deadline_ns(call),
                                              .read_fn = call->read_fn,
                                              .stopped = call->stopped,
                                              .arg = call->arg};
    Sluice__V1__Document *document;
    struct sl_error err = {0};
    enum sl_status status =
        sl_client_import_document(call->client, call->name, "", call->keep_ms, &pieces, &document, &err);
    if (status != SL_OK) {
        return refuse(status, &err, refusal);
    }
    *json_out = print(describe(document));
    sluice__v1__document__free_unpacked(document, NULL);
    return SL_OK;
}

struct exporting {
    const struct sl_document_call *call;
    struct sl_exported_reader *reader;
    int64_t file_bytes;                                      // 0: the head has not arrived
    uint8_t first[SL_EXPORTED_HEAD_BYTES + SL_SHA256_BYTES]; // what has arrived up to then
    size_t n_first;
};

// Holds the first bytes until the head has told the size of the file.
static enum sl_status take_head(struct exporting *exporting, const uint8_t *bytes, size_t n, struct sl_error *err) {
    struct sl_exported_slice slice = {0};
    SL_FAIL_IF(n > sizeof exporting->first - exporting->n_first, err, SL_ERR_PEER_CORRUPT,
               "the coordinator sends another file than a document");
    memcpy(exporting->first + exporting->n_first, bytes, n);
    exporting->n_first += n;
    enum sl_status status = SL_OK;
    while (n > 0 && status == SL_OK && !(slice.part == SL_EXPORTED_HEAD && slice.ends)) {
        status = sl_exported_reader_take(exporting->reader, &bytes, &n, &slice, err);
    }
    SL_FAIL_IF(status != SL_OK, err, SL_ERR_PEER_CORRUPT, "what arrived is %s", err->text);
    if (!slice.ends) {
        return SL_OK;
    }
    exporting->file_bytes = sl_exported_file_bytes(sl_exported_reader_head(exporting->reader));
    bool measures = exporting->call->verb == SL_DOCUMENT_MEASURE;
    status = exporting->call->write_fn(exporting->call->arg, exporting->first, measures ? 0 : exporting->n_first,
                                       exporting->file_bytes, err);
    return status == SL_OK && measures ? sl_fail(err, SL_ERR_CANCELLED, "the size is known") : status;
}

static enum sl_status write_piece(void *arg, const void *bytes, size_t n, struct sl_error *err) {
    struct exporting *exporting = arg;
    return exporting->file_bytes == 0
               ? take_head(exporting, bytes, n, err)
               : exporting->call->write_fn(exporting->call->arg, bytes, n, exporting->file_bytes, err);
}

static bool export_stopped(void *arg) {
    const struct exporting *exporting = arg;
    return exporting->call->stopped(exporting->call->arg);
}

static enum sl_status export(const struct sl_document_call *call, struct sl_refusal *refusal) {
    struct exporting exporting = {.call = call};
    const struct sl_document_pieces pieces = {.deadline_ns = transfer_deadline_ns(call),
                                              .write_fn = write_piece,
                                              .stopped = export_stopped,
                                              .arg = &exporting};
    struct sl_error err = {0};
    enum sl_status status = sl_exported_reader_create(&exporting.reader, &err);
    SL_THEN(status, sl_client_export_document(call->client, call->name, false, &pieces, &err));
    sl_exported_reader_destroy(&exporting.reader);
    bool is_measured = exporting.file_bytes > 0 && call->verb == SL_DOCUMENT_MEASURE;
    return status == SL_OK || is_measured ? SL_OK : refuse_one(status, &err, refusal);
}

enum sl_status sl_document_call_run(const struct sl_document_call *call, struct sl_intake *intake, char **json_out,
                                    struct sl_refusal *refusal) {
    *json_out = NULL;
    if (call->verb == SL_DOCUMENT_ADD) {
        return add(call, intake, json_out, refusal);
    }
    switch (call->verb) { // the intake of these holds the memory of the transfer until they end
    case SL_DOCUMENT_IMPORT:
        return import(call, json_out, refusal);
    case SL_DOCUMENT_EXPORT:
    case SL_DOCUMENT_MEASURE:
        return export(call, refusal);
    default:
        sl_intake_drop(intake);
    }
    return call->verb == SL_DOCUMENT_LIST ? list(call, json_out, refusal) : show_or_delete(call, json_out, refusal);
}

// ---- the query of an import -----------------------------------------------------------------------------------------

struct query {
    const char *name;
    int64_t keep_ms;
    struct sl_refusal *refusal;
    enum sl_status status;
};

// Reads a field; MHD_NO: it is refused.
static enum MHD_Result read_field(void *arg, enum MHD_ValueKind, const char *key, const char *value) {
    struct query *query = arg;
    char *end = "";
    if (strcmp(key, "name") == 0) {
        query->name = value;
    } else if (strcmp(key, "keep_ms") == 0 && value && value[0] >= '0' && value[0] <= '9') {
        query->keep_ms = strtoll(value, &end, 10);
    } else {
        end = NULL;
    }
    if (end && *end == '\0') {
        return MHD_YES;
    }
    query->status = strcmp(key, "keep_ms") == 0
                        ? sl_refuse_field(query->refusal, key, "keep_ms: expected a number of ms")
                        : sl_refuse_field(query->refusal, "", "unknown field \"%.60s\"", key);
    return MHD_NO;
}

enum sl_status sl_documents_read_query(struct MHD_Connection *connection, const char **name_out, int64_t *keep_ms_out,
                                       struct sl_refusal *refusal) {
    struct query query = {.refusal = refusal, .status = SL_OK};
    MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, read_field, &query);
    SL_REFUSE_FIELD_IF(query.status == SL_OK && (!query.name || query.name[0] == '\0'), refusal, "name",
                       "name: expected in the query: /v1/documents/import?name=NAME");
    *name_out = query.name;
    *keep_ms_out = query.keep_ms;
    return query.status;
}
