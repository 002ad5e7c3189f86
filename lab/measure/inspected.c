// SPDX-License-Identifier: Apache-2.0
#include "lab/measure/inspected.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAGIC_BYTES 8

// ---- a document -----------------------------------------------------------------------------------------------------

// A document's file that is being read.
struct reading {
    struct sl_inspected *into;
    struct sl_exported_reader *reader;
    int64_t file_bytes;
    uint8_t *body;     // of into->arena
    size_t part_bytes; // of the part that is being read
    uint8_t block[1 << 16];
};

// Takes memory for all parts, whose sizes add up to the file's.
static enum sl_status take_head(struct reading *reading, struct sl_error *err) {
    struct sl_inspected *into = reading->into;
    into->head = *sl_exported_reader_head(reading->reader);
    const struct sl_exported_head *head = &into->head;
    SL_FAIL_IF(sl_exported_file_bytes(head) > reading->file_bytes, err, SL_ERR_INVALID,
               "cut short: it has %lld bytes, and its parts take %lld", (long long)reading->file_bytes,
               (long long)sl_exported_file_bytes(head));
    _Static_assert(SL_EXPORTED_RECIPE_BYTES <= SL_CAPSULE_LABEL_BYTES, "every recipe can be a label");
    strcpy(into->file.label, head->recipe);
    into->file.header_bytes = (size_t)head->header_bytes;
    into->file.body_bytes = (size_t)head->body_bytes;
    into->file.header = malloc(into->file.header_bytes);
    into->text = head->has_text ? calloc(1, (size_t)head->text_bytes + 1) : NULL;
    SL_FAIL_IF(into->file.header == NULL || (head->has_text && into->text == NULL), err, SL_ERR_EXHAUSTED,
               "out of memory");
    SL_TRY(sl_arena_create_mapped(into->file.body_bytes, &into->arena, err));
    reading->body = sl_arena_alloc(into->arena, into->file.body_bytes);
    return reading->body != NULL ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
}

static enum sl_status take_slice(struct reading *reading, const struct sl_exported_slice *slice, struct sl_error *err) {
    struct sl_inspected *into = reading->into;
    void *parts[SL_EXPORTED_END] = {NULL, into->text, into->file.header, reading->body}; // segments are not shown
    if (slice->n > 0 && parts[slice->part] != NULL) {
        memcpy((char *)parts[slice->part] + reading->part_bytes, slice->bytes, slice->n);
    }
    reading->part_bytes = slice->ends ? 0 : reading->part_bytes + slice->n;
    return slice->ends && slice->part == SL_EXPORTED_HEAD ? take_head(reading, err) : SL_OK;
}

static enum sl_status read_parts(struct reading *reading, FILE *file, struct sl_error *err) {
    enum sl_status status = sl_exported_reader_create(&reading->reader, err);
    size_t n;
    while (status == SL_OK && (n = fread(reading->block, 1, sizeof reading->block, file)) > 0) {
        const uint8_t *at = reading->block;
        while (n > 0 && status == SL_OK) {
            struct sl_exported_slice slice;
            status = sl_exported_reader_take(reading->reader, &at, &n, &slice, err);
            SL_THEN(status, take_slice(reading, &slice, err));
        }
    }
    SL_THEN_FAIL_IF(status, ferror(file), err, SL_ERR_IO, "%s", strerror(errno));
    return status == SL_OK ? sl_exported_reader_finish(reading->reader, err) : status;
}

static enum sl_status read_document(struct sl_inspected *into, FILE *file, int64_t file_bytes, void **body_out,
                                    struct sl_error *err) {
    SL_NEW_OR_FAIL(struct reading, reading, err, "out of memory");
    reading->into = into;
    reading->file_bytes = file_bytes;
    enum sl_status status = read_parts(reading, file, err);
    SL_THEN(status, sl_capsule_read_header(into->file.header, into->file.header_bytes, &into->file.info, err));
    *body_out = reading->body;
    sl_exported_reader_destroy(&reading->reader);
    free(reading);
    return status;
}

// ---- either kind ----------------------------------------------------------------------------------------------------

static enum sl_status read_capsule(struct sl_inspected *into, void **body_out, struct sl_error *err) {
    size_t bytes = into->file.body_bytes ? into->file.body_bytes : 1;
    SL_TRY(sl_arena_create_mapped(bytes, &into->arena, err));
    *body_out = sl_arena_alloc(into->arena, bytes);
    return sl_capsule_file_read_body(&into->file, *body_out, err);
}

static enum sl_status open_session(struct sl_inspected *into, void *body, struct sl_error *err) {
    const struct sl_capsule_info *info = &into->file.info;
    struct sl_capsule_bytes capsule = {body, into->file.body_bytes, into->file.header, into->file.header_bytes};
    SL_TRY_OR(sl_capsule_open(&capsule, into->arena, &info->geometry, &info->id, 1, &into->session, err),
              sl_arena_free(into->arena, body));
    return SL_OK;
}

// Opens the file as a document's; *file_out NULL: it is not one.
static void open_document(const char *path, FILE **file_out, int64_t *bytes_out) {
    char magic[MAGIC_BYTES];
    struct stat found;
    FILE *file = stat(path, &found) == 0 && S_ISREG(found.st_mode) ? fopen(path, "rbe") : NULL; // no pipe is waited for
    bool is_document = file != NULL && fread(magic, 1, sizeof magic, file) == sizeof magic &&
                       memcmp(magic, SL_EXPORTED_MAGIC, sizeof magic) == 0;
    if (file != NULL && !is_document) {
        fclose(file);
        file = NULL;
    }
    if (file != NULL) {
        rewind(file);
        *bytes_out = (int64_t)found.st_size;
    }
    *file_out = file;
}

enum sl_status sl_inspected_open(const char *path, struct sl_inspected *inspected_out, struct sl_error *err) {
    struct sl_inspected *into = inspected_out;
    FILE *document;
    int64_t document_bytes = 0;
    void *body = NULL;
    enum sl_status status;
    *into = (struct sl_inspected){.path = path, .file.fd = -1};
    open_document(path, &document, &document_bytes);
    into->is_document = document != NULL;
    if (document != NULL) {
        status = read_document(into, document, document_bytes, &body, err);
        fclose(document);
    } else {
        status = sl_capsule_file_open(path, &into->file, err); // err names the path
        if (status != SL_OK) {
            return status == SL_ERR_NOT_FOUND ? err->status = SL_ERR_INVALID : status; // usage error
        }
        status = read_capsule(into, &body, err);
    }
    if (status == SL_OK) {
        status = open_session(into, body, err);
    } else if (body != NULL) {
        sl_arena_free(into->arena, body);
    }
    if (status != SL_OK) {
        sl_error_prefix(err, path);
    }
    return status;
}

void sl_inspected_close(struct sl_inspected *inspected) {
    sl_session_destroy(&inspected->session);
    sl_arena_destroy(&inspected->arena);
    sl_capsule_file_close(&inspected->file);
    free(inspected->text);
    inspected->text = NULL;
}
