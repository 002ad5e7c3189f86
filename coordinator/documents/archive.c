// SPDX-License-Identifier: Apache-2.0
#include "coordinator/documents/archive.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "coordinator/documents/document_file.h"

enum sl_status sl_document_archive_open(struct sl_document_archive *archive_out, const char *folder,
                                        struct sl_etcd *etcd, struct sl_error *err) {
    archive_out->etcd = etcd;
    archive_out->folder = folder[0] != '\0' ? strdup(folder) : NULL;
    return folder[0] == '\0' || archive_out->folder != NULL ? SL_OK
                                                            : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for documents");
}

void sl_document_archive_close(struct sl_document_archive *archive) {
    free(archive->folder);
    archive->folder = NULL;
}

struct moving {
    struct sl_document_archive *archive;
    int64_t term;
    sl_document_fn fn;
    void *arg;
    enum sl_status status; // of the first document that could not be moved, with *err
    struct sl_error *err;
};

static bool move(void *arg, struct sl_document *document) {
    struct moving *moving = arg;
    bool taken = moving->status == SL_OK && moving->fn(moving->arg, sl_document_ref(document));
    if (taken) {
        moving->status = sl_document_etcd_write(moving->archive->etcd, moving->term, document, true, moving->err);
    }
    if (taken && moving->status == SL_OK) {
        sl_log_info("documents", "%s moves from --state to etcd", document->name);
        moving->status = sl_document_file_remove(moving->archive->folder, document, moving->err);
    }
    sl_document_unref(&document);
    return taken;
}

enum sl_status sl_document_archive_read(struct sl_document_archive *archive, int64_t term, sl_document_fn fn, void *arg,
                                        struct sl_error *err) {
    struct moving moving = {.archive = archive, .term = term, .fn = fn, .arg = arg, .err = err};
    enum sl_status status = archive->etcd != NULL ? sl_documents_etcd_read(archive->etcd, term, fn, arg, err) : SL_OK;
    if (status != SL_OK || archive->folder == NULL) {
        return status;
    }
    if (archive->etcd == NULL) {
        return sl_document_files_read(archive->folder, fn, arg, err);
    }
    status = sl_document_files_read(archive->folder, move, &moving, err);
    return status == SL_OK ? moving.status : status;
}

enum sl_status sl_document_archive_write(struct sl_document_archive *archive, const struct sl_document *document,
                                         bool is_new, struct sl_error *err) {
    if (archive->etcd != NULL) {
        return sl_document_etcd_write(archive->etcd, atomic_load(&archive->term), document, is_new, err);
    }
    return archive->folder != NULL ? sl_document_file_write(archive->folder, document, err) : SL_OK;
}

enum sl_status sl_document_archive_remove(struct sl_document_archive *archive, const struct sl_document *document,
                                          struct sl_error *err) {
    if (archive->etcd != NULL) {
        return sl_document_etcd_remove(archive->etcd, atomic_load(&archive->term), document, err);
    }
    return archive->folder != NULL ? sl_document_file_remove(archive->folder, document, err) : SL_OK;
}
