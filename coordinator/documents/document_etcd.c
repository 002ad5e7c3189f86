// SPDX-License-Identifier: Apache-2.0
// Purpose: see document_etcd.h.
#include "coordinator/documents/document_etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static enum sl_status write_text(struct sl_etcd *etcd, int64_t term, const struct sl_document *document,
                                 const char *digits, struct sl_error *err) {
    enum sl_status status = remove_keys(etcd, term, digits, err); // a longer text may be left that was not added
    size_t piece = 0;
    for (size_t at = 0; at < document->text_bytes && status == SL_OK; at += SL_ETCD_MAX_VALUE_BYTES) {
        char name[NAME_BYTES];
        size_t left = document->text_bytes - at;
        snprintf(name, sizeof name, TEXTS "%s/%04zx", digits, piece++);
        status = sl_etcd_put(etcd, term, name, document->text + at,
                             left < SL_ETCD_MAX_VALUE_BYTES ? left : SL_ETCD_MAX_VALUE_BYTES, err);
    }
    return status;
}

enum sl_status sl_document_etcd_write(struct sl_etcd *etcd, int64_t term, const struct sl_document *document,
                                      bool is_new, struct sl_error *err) {
    char digits[SL_DOCUMENT_DIGITS + 1], name[NAME_BYTES];
    size_t n = 0;
    sl_document_digits(document, digits);
    snprintf(name, sizeof name, RECORDS "%s", digits);
    uint8_t *bytes = sl_document_pack(document, false, &n);
    if (bytes == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory to write a document");
    }
    enum sl_status status = is_new ? write_text(etcd, term, document, digits, err) : SL_OK;
    status = status == SL_OK ? sl_etcd_put(etcd, term, name, bytes, n, err) : status;
    free(bytes);
    return status;
}

// ---- reading --------------------------------------------------------------------------------------------------------

struct record {
    char digits[SL_DOCUMENT_DIGITS + 1];
    Sluice__V1__KeptDocument *kept; // owned; NULL: it is damaged
    size_t n_text;                  // bytes of kept->text that were read
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

// Takes a record, and memory for its text.
static enum sl_status take_record(void *arg, const char *name, const uint8_t *bytes, size_t n, struct sl_error *err) {
    struct reading *reading = arg;
    const char *digits = name + strlen(RECORDS);
    if (strlen(digits) != SL_DOCUMENT_DIGITS || reading->n == SL_MAX_DOCUMENTS) {
        say_damaged(digits, reading->n == SL_MAX_DOCUMENTS ? "there are too many documents" : "its key is none");
        return SL_OK;
    }
    struct record *record = &reading->records[reading->n++];
    struct sl_error why = {0};
    *record = (struct record){0};
    strcpy(record->digits, digits);
    enum sl_status status = sl_document_unpack(bytes, n, &record->kept, &why);
    int64_t n_text = status == SL_OK && record->kept->document != NULL ? record->kept->document->text_bytes : -1;
    if (status == SL_OK && (record->kept->text[0] != '\0' || n_text < 1 || n_text > SL_DOCUMENT_MAX_BYTES)) {
        status = sl_fail(&why, SL_ERR_INVALID, "its text or size cannot be right");
    }
    if (status != SL_OK) {
        say_damaged(digits, why.text);
        sluice__v1__kept_document__free_unpacked(record->kept, NULL);
        record->kept = NULL;
        return SL_OK;
    }
    char *text = calloc(1, (size_t)n_text + 1);
    if (text == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the documents in etcd");
    }
    record->kept->text = text; // freed with the record
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
        if (record->kept != NULL && n <= (size_t)record->kept->document->text_bytes - record->n_text) {
            memcpy(record->kept->text + record->n_text, bytes, n);
            record->n_text += n;
        }
        return SL_OK; // the text's digest finds what is missing or too much
    }
    if (strcmp(reading->removed, digits) != 0) {
        strcpy(reading->removed, digits);
        return remove_keys(reading->etcd, reading->term, digits, err);
    }
    return SL_OK;
}

enum sl_status sl_documents_etcd_read(struct sl_etcd *etcd, int64_t term, sl_document_fn fn, void *arg,
                                      struct sl_error *err) {
    struct reading reading = {.etcd = etcd, .term = term};
    reading.records = malloc(SL_MAX_DOCUMENTS * sizeof *reading.records);
    if (reading.records == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the documents in etcd");
    }
    enum sl_status status = sl_etcd_read(etcd, RECORDS, take_record, &reading, err);
    status = status == SL_OK ? sl_etcd_read(etcd, TEXTS, take_piece, &reading, err) : status;
    for (size_t i = 0; i < reading.n; i++) {
        struct sl_document *document = NULL;
        struct sl_error why = {0};
        if (status == SL_OK && reading.records[i].kept != NULL) {
            enum sl_status made = sl_document_make(reading.records[i].kept, &document, &why);
            if (made == SL_OK) {
                (void)fn(arg, document);
            } else {
                say_damaged(reading.records[i].digits, why.text);
            }
        }
        sluice__v1__kept_document__free_unpacked(reading.records[i].kept, NULL);
    }
    free(reading.records);
    return status;
}
