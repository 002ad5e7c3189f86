// SPDX-License-Identifier: Apache-2.0
#include "coordinator/documents/archive.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/whole_file.h"

#define PREFIX "document-"

// ---- files ----------------------------------------------------------------------------------------------------------

// Writes the path of a document's file, malloc'd.
static enum sl_status path_of(const char *folder, const struct sl_document *document, char **path_out,
                              struct sl_error *err) {
    char digits[SL_DOCUMENT_DIGITS + 1];
    sl_document_digits(document, digits);
    if (asprintf(path_out, "%s/" PREFIX "%s", folder, digits) < 0) {
        *path_out = NULL;
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a path");
    }
    return SL_OK;
}

static enum sl_status write_file(const char *folder, const struct sl_document *document, struct sl_error *err) {
    char *path = NULL;
    size_t n = 0;
    SL_TRY(path_of(folder, document, &path, err));
    uint8_t *bytes = sl_document_pack(document, true, &n);
    struct sl_whole_file *whole = malloc(sizeof *whole); // larger than a stack frame should be
    enum sl_status status = SL_OK;
    if (bytes == NULL || whole == NULL) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory to write a document");
    } else {
        status = sl_whole_file_open(whole, path, err);
    }
    if (status == SL_OK) {
        whole->mode = 0600;                     // the folder is closed to others anyway
        (void)fwrite(bytes, n, 1, whole->file); // the stream keeps its error for the end
        status = sl_whole_file_finish(whole, err);
    }
    free(whole);
    free(bytes);
    free(path);
    return status;
}

static enum sl_status remove_file(const char *folder, const struct sl_document *document, struct sl_error *err) {
    char *path = NULL;
    enum sl_status status = path_of(folder, document, &path, err);
    SL_THEN_IF(status, unlink(path) != 0 && errno != ENOENT,
               sl_fail(err, SL_ERR_IO, "%s: cannot be removed: %s", path, strerror(errno)));
    free(path);
    return status;
}

static enum sl_status read_file(const char *path, struct sl_document **document_out, struct sl_error *err) {
    FILE *file = fopen(path, "rbe");
    SL_FAIL_IF(file == NULL, err, SL_ERR_IO, "%s", strerror(errno));
    long n = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    uint8_t *bytes = n >= 0 && n <= SL_DOCUMENT_MAX_BYTES ? malloc((size_t)n + 1) : NULL;
    enum sl_status status = SL_OK;
    if (bytes == NULL || fseek(file, 0, SEEK_SET) != 0 || fread(bytes, 1, (size_t)n, file) != (size_t)n) {
        status = sl_fail(err, SL_ERR_IO, "it cannot be read, or there is no memory for %ld bytes", n);
    } else {
        Sluice__V1__KeptDocument *kept = NULL;
        status = sl_document_unpack(bytes, (size_t)n, &kept, err);
        SL_THEN(status, sl_document_make(kept, document_out, err));
        sluice__v1__kept_document__free_unpacked(kept, NULL);
    }
    free(bytes);
    fclose(file);
    return status;
}

// Renames a damaged file; one that cannot be read now stays for the next start.
static void put_aside(const char *folder, const char *name, const char *path, enum sl_status status, const char *why) {
    char *aside;
    if (asprintf(&aside, "%s/damaged-%s", folder, name) < 0) {
        aside = NULL;
    }
    bool moved = status == SL_ERR_INVALID && aside != NULL && rename(path, aside) == 0;
    sl_log_warn("documents", "%s is lost%s: %s", path, moved ? ", and renamed to damaged-..." : "", why);
    free(aside);
}

// Reads the file of this name, if it is a document's; calls fn.
static void read_entry(const char *folder, const char *name, sl_document_fn fn, void *arg) {
    char *path = NULL;
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 ||
        strlen(name) != strlen(PREFIX) + SL_DOCUMENT_DIGITS || // a file that a killed process has not finished
        asprintf(&path, "%s/%s", folder, name) < 0) {
        return;
    }
    struct sl_document *document = NULL;
    struct sl_error why = {0};
    enum sl_status status = read_file(path, &document, &why);
    if (status == SL_OK) {
        (void)fn(arg, document);
    } else {
        put_aside(folder, name, path, status, why.text);
    }
    free(path);
}

static enum sl_status read_files(const char *folder, sl_document_fn fn, void *arg, struct sl_error *err) {
    DIR *dir = opendir(folder);
    SL_FAIL_IF(dir == NULL, err, SL_ERR_IO, "--state %s: cannot be listed: %s", folder, strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        read_entry(folder, entry->d_name, fn, arg);
    }
    closedir(dir);
    return SL_OK;
}

// ---- the archive ----------------------------------------------------------------------------------------------------

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
        moving->status = remove_file(moving->archive->folder, document, moving->err);
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
        return read_files(archive->folder, fn, arg, err);
    }
    status = read_files(archive->folder, move, &moving, err);
    return status == SL_OK ? moving.status : status;
}

enum sl_status sl_document_archive_write(struct sl_document_archive *archive, const struct sl_document *document,
                                         bool is_new, struct sl_error *err) {
    if (archive->etcd != NULL) {
        return sl_document_etcd_write(archive->etcd, atomic_load(&archive->term), document, is_new, err);
    }
    return archive->folder != NULL ? write_file(archive->folder, document, err) : SL_OK;
}

enum sl_status sl_document_archive_remove(struct sl_document_archive *archive, const struct sl_document *document,
                                          struct sl_error *err) {
    if (archive->etcd != NULL) {
        return sl_document_etcd_remove(archive->etcd, atomic_load(&archive->term), document, err);
    }
    return archive->folder != NULL ? remove_file(archive->folder, document, err) : SL_OK;
}
