// SPDX-License-Identifier: Apache-2.0
// Purpose: see record.h.
#include "coordinator/state/record.h"

#include <string.h>

#include "base/hash.h"

struct head {
    uint32_t kind, bytes;
    uint64_t check, digest;
};
_Static_assert(sizeof(struct head) == SL_RECORD_HEAD_BYTES, "the layout of files");

struct file_head {
    char magic[8];
    uint32_t version, zero;
};
_Static_assert(sizeof(struct file_head) == SL_RECORDS_HEAD_BYTES, "the layout of files");

static const struct file_head file_head = {{'S', 'L', 'U', 'I', 'C', 'E', 'J', 'B'}, SL_RECORDS_VERSION, 0};

static struct sl_record_chain chain_of(const char *job_id) {
    return (struct sl_record_chain){sl_hash(job_id, strlen(job_id), SL_RECORDS_VERSION)};
}

void sl_records_begin(const char *job_id, uint8_t *head_out, struct sl_record_chain *chain_out) {
    memcpy(head_out, &file_head, sizeof file_head);
    *chain_out = chain_of(job_id);
}

static struct head head_of(const struct sl_record_chain *chain, uint32_t kind, const void *payload, uint32_t bytes) {
    struct head head = {.kind = kind, .bytes = bytes};
    head.check = sl_hash(&head, offsetof(struct head, check), chain->digest);
    head.digest = sl_hash(payload, bytes, head.check);
    return head;
}

void sl_record_head(struct sl_record_chain *chain, enum sl_record_kind kind, const void *payload, size_t bytes,
                    uint8_t *head_out) {
    struct head head = head_of(chain, kind, payload, (uint32_t)bytes);
    memcpy(head_out, &head, sizeof head);
    chain->digest = head.digest;
}

enum sl_status sl_records_open(const char *job_id, const uint8_t *file, size_t bytes,
                               struct sl_record_reader *reader_out, struct sl_error *err) {
    if (bytes < sizeof file_head || memcmp(file, &file_head, sizeof file_head) != 0) {
        return sl_fail(err, SL_ERR_INVALID, "it is no job, was never finished, or is of another version");
    }
    *reader_out = (struct sl_record_reader){file, bytes, sizeof file_head, chain_of(job_id)};
    return SL_OK;
}

// What a system leaves that crashed before all blocks of a file were on disk.
static bool is_zero(const uint8_t *bytes, size_t n) {
    return n == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0);
}

enum sl_status sl_records_next(struct sl_record_reader *reader, struct sl_record *record_out, struct sl_error *err) {
    const uint8_t *at = reader->file + reader->at;
    size_t left = reader->bytes - reader->at;
    struct head head;
    if (left < sizeof head || is_zero(at, left)) {
        return SL_ERR_NOT_FOUND;
    }
    memcpy(&head, at, sizeof head);
    if (head.check != sl_hash(&head, offsetof(struct head, check), reader->chain.digest)) {
        return sl_fail(err, SL_ERR_INVALID, "it is damaged at byte %zu", reader->at);
    }
    if (head.bytes > left - sizeof head) {
        return SL_ERR_NOT_FOUND;
    }
    if (head.digest != sl_hash(at + sizeof head, head.bytes, head.check)) {
        return head.bytes == left - sizeof head // the last one, half of which reached the disk
                   ? SL_ERR_NOT_FOUND
                   : sl_fail(err, SL_ERR_INVALID, "it is damaged behind byte %zu", reader->at);
    }
    *record_out = (struct sl_record){(enum sl_record_kind)head.kind, at + sizeof head, head.bytes, reader->at};
    reader->at += sizeof head + head.bytes;
    reader->chain.digest = head.digest;
    return SL_OK;
}
