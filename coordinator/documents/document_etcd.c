// SPDX-License-Identifier: Apache-2.0
#include "coordinator/documents/document_etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/log.h"
#include "coordinator/documents/documents.h"

#define RECORDS    "documents/"
#define TEXTS      "texts/"
#define NAME_BYTES (sizeof RECORDS + SL_DOCUMENT_DIGITS + 8)

// ---- writing --------------------------------------------------------------------------------------------------------

static enum sl_status remove_keys(struct sl_etcd *etcd, int64_t term, const char *digits, struct sl_error *err) {
    char record[NAME_BYTES], text[NAME_BYTES];
    const char *const names[] = {record, text};
    snprintf(record, sizeof record, RECORDS "%s", digits);
    snprintf(text, sizeof text, TEXTS "%s/", digits);
    return sl_etcd_remove(etcd, term, names, 2, err);
}

enum sl_status sl_document_etcd_remove(struct sl_etcd *etcd, int64_t term, const struct sl_document *document,
                                       struct sl_error *err) {
    char digits[SL_DOCUMENT_DIGITS + 1];
    sl_document_digits(document, digits);
    return remove_keys(etcd, term, digits, err);
}

// Writes the compressed text.
static enum sl_status write_pieces(struct sl_etcd *etcd, int64_t term, const uint8_t *bytes, size_t n,
                                   const char *digits, struct sl_error *err) {
    enum sl_status status = remove_keys(etcd, term, digits, err); // a longer text may be left that was not added
    size_t piece = 0;
    for (size_t at = 0; at < n && status == SL_OK; at += SL_ETCD_MAX_VALUE_BYTES) {
        char name[NAME_BYTES];
        size_t left = n - at;
        snprintf(name, sizeof name, TEXTS "%s/%04zx", digits, piece++);
        status = sl_etcd_put(etcd, term, name, bytes + at,
                             left < SL_ETCD_MAX_VALUE_BYTES ? left : SL_ETCD_MAX_VALUE_BYTES, err);
    }
    return status;
}

static enum sl_status write_text(struct sl_etcd *etcd, int64_t term, const struct sl_document *document,
                                 const char *digits, struct sl_error *err) {
    uLongf n = compressBound(document->text_bytes);
    uint8_t *bytes = malloc(n);
    enum sl_status status = SL_OK;
    if (bytes == NULL || compress(bytes, &n, (const uint8_t *)document->text, document->text_bytes) != Z_OK) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory to compress a document");
    } else {
        status = write_pieces(etcd, term, bytes, n, digits, err);
    }
    free(bytes);
    return status;
}

enum sl_status sl_document_etcd_write(struct sl_etcd *etcd, int64_t term, const struct sl_document *document,
                                      bool is_new, struct sl_error *err) {
    char digits[SL_DOCUMENT_DIGITS + 1], name[NAME_BYTES];
    size_t n = 0;
    sl_document_digits(document, digits);
    snprintf(name, sizeof name, RECORDS "%s", digits);
    uint8_t *bytes = sl_document_pack(document, false, &n);
    SL_FAIL_IF(bytes == NULL, err, SL_ERR_EXHAUSTED, "no memory to write a document");
    enum sl_status status = is_new ? write_text(etcd, term, document, digits, err) : SL_OK;
    SL_THEN(status, sl_etcd_put(etcd, term, name, bytes, n, err));
    free(bytes);
    return status;
}

// ---- reading --------------------------------------------------------------------------------------------------------

struct record {
    char digits[SL_DOCUMENT_DIGITS + 1];
    Sluice__V1__KeptDocument *kept; // owned; NULL: it is damaged
    uint8_t *packed;                // the compressed text; owned
    size_t n_packed, most_packed;   // most_packed: as many as the text can become
};

struct reading {
    struct sl_etcd *etcd;
    int64_t term;
    struct record *records; // [n]; by digits, as etcd sorts them
    size_t n, at;           // at: the record of the last piece
    char removed[SL_DOCUMENT_DIGITS + 1];
};

static void say_damaged(const char *digits, const char *why) {
    sl_log_warn("documents", "etcd: " RECORDS "%s is lost: %s", digits, why);
}

static enum sl_status take_record(void *arg, const char *name, const uint8_t *bytes, size_t n, struct sl_error *) {
    struct reading *reading = arg;
    const char *digits = name + strlen(RECORDS);
    if (strlen(digits) != SL_DOCUMENT_DIGITS || reading->n == SL_MAX_DOCUMENTS) {
        say_damaged(digits,
                    reading->n == SL_MAX_DOCUMENTS ? "there are too many documents" : "its key is not a document's");
        return SL_OK;
    }
    struct record *record = &reading->records[reading->n++];
    struct sl_error why = {0};
    *record = (struct record){0};
    strcpy(record->digits, digits);
    enum sl_status status = sl_document_unpack(bytes, n, &record->kept, &why);
    int64_t n_text = status == SL_OK && record->kept->document != NULL ? record->kept->document->text_bytes : -1;
    SL_THEN_IF(status, record->kept->text[0] != '\0' || n_text < 1 || n_text > SL_DOCUMENT_MAX_BYTES,
               sl_fail(&why, SL_ERR_INVALID, "its text or size cannot be right"));
    if (status != SL_OK) {
        say_damaged(digits, why.text);
        sluice__v1__kept_document__free_unpacked(record->kept, NULL);
        record->kept = NULL;
        return SL_OK;
    }
    record->most_packed = compressBound((uLong)n_text);
    return SL_OK;
}

static enum sl_status add_piece(struct record *record, const uint8_t *bytes, size_t n, struct sl_error *err) {
    if (n > record->most_packed - record->n_packed) {
        return SL_OK; // what is missing then does not become the text
    }
    uint8_t *packed = realloc(record->packed, record->n_packed + n + 1);
    SL_FAIL_IF(packed == NULL, err, SL_ERR_EXHAUSTED, "no memory for the documents in etcd");
    memcpy(packed + record->n_packed, bytes, n);
    record->packed = packed;
    record->n_packed += n;
    return SL_OK;
}

// Takes the next piece of a text. One without a record was not added: its coordinator ended before.
static enum sl_status take_piece(void *arg, const char *name, const uint8_t *bytes, size_t n, struct sl_error *err) {
    struct reading *reading = arg;
    char digits[SL_DOCUMENT_DIGITS + 1];
    snprintf(digits, sizeof digits, "%s", name + strlen(TEXTS));
    while (reading->at < reading->n && strcmp(reading->records[reading->at].digits, digits) < 0) {
        reading->at++;
    }
    struct record *record = reading->at < reading->n ? &reading->records[reading->at] : NULL;
    if (record != NULL && strcmp(record->digits, digits) == 0) {
        return record->kept != NULL ? add_piece(record, bytes, n, err) : SL_OK;
    }
    if (strcmp(reading->removed, digits) != 0) {
        strcpy(reading->removed, digits);
        return remove_keys(reading->etcd, reading->term, digits, err);
    }
    return SL_OK;
}

static enum sl_status make(struct record *record, struct sl_document **document_out, struct sl_error *err) {
    uLongf n = (uLongf)record->kept->document->text_bytes;
    char *text = calloc(1, n + 1);
    SL_FAIL_IF(text == NULL, err, SL_ERR_EXHAUSTED, "no memory for its text");
    if (uncompress((uint8_t *)text, &n, record->packed, record->n_packed) != Z_OK) {
        free(text);
        return sl_fail(err, SL_ERR_INVALID, "its text is damaged");
    }
    record->kept->text = text; // freed with the record
    return sl_document_make(record->kept, document_out, err);
}

enum sl_status sl_documents_etcd_read(struct sl_etcd *etcd, int64_t term, sl_document_fn fn, void *arg,
                                      struct sl_error *err) {
    struct reading reading = {.etcd = etcd, .term = term};
    reading.records = malloc(SL_MAX_DOCUMENTS * sizeof *reading.records);
    SL_FAIL_IF(reading.records == NULL, err, SL_ERR_EXHAUSTED, "no memory for the documents in etcd");
    enum sl_status status = sl_etcd_read(etcd, RECORDS, take_record, &reading, err);
    SL_THEN(status, sl_etcd_read(etcd, TEXTS, take_piece, &reading, err));
    for (size_t i = 0; i < reading.n; i++) {
        struct sl_document *document = NULL;
        struct sl_error why = {0};
        if (status == SL_OK && reading.records[i].kept != NULL) {
            if (make(&reading.records[i], &document, &why) == SL_OK) {
                (void)fn(arg, document);
            } else {
                say_damaged(reading.records[i].digits, why.text);
            }
        }
        free(reading.records[i].packed);
        sluice__v1__kept_document__free_unpacked(reading.records[i].kept, NULL);
    }
    free(reading.records);
    return status;
}
