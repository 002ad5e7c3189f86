// SPDX-License-Identifier: Apache-2.0
// Capsules as files. See folder.h.
#include "kvstore/disk/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"

#define PIECE_BYTES     ((size_t)1 << 20) // hashed while it is in the caches
#define BLOCK_BYTES     4096              // a file takes whole blocks
#define INDEX_SHARE     64                // one of so many bytes, but at least
#define MIN_INDEX_BYTES ((int64_t)4 << 20)
#define FILE_PREFIX     "capsule-"

struct sl_disk_folder {
    char path[PATH_MAX - 32];
    int dir_fd, owner_fd;
    struct sl_disk_index *index;
    int64_t max_bytes; // of files
    _Atomic int64_t n_capsules, bytes;
};

static int64_t file_bytes(const struct sl_disk_entry *entry) {
    return (int64_t)((entry->header_bytes + entry->body_bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES);
}

static void name_file(uint64_t id, char name[40]) {
    snprintf(name, 40, FILE_PREFIX "%016" PRIx64, id);
}

static enum sl_status io_failed(const struct sl_disk_folder *folder, const char *name, const char *what,
                                struct sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "%.200s/%s: %s: %s", folder->path, name, what, strerror(errno));
}

// Remove an entry and its file. SL_ERR_NOT_FOUND: somebody else has.
static enum sl_status remove_capsule(struct sl_disk_folder *folder, uint64_t id, struct sl_error *err) {
    struct sl_disk_entry entry;
    enum sl_status status = sl_disk_index_remove(folder->index, id, &entry, err);
    if (status != SL_OK) {
        return status;
    }
    char name[40];
    struct stat file;
    name_file(id, name);
    if (sl_disk_entry_is_damaged(&entry) && fstatat(folder->dir_fd, name, &file, 0) == 0) { // as it was counted
        entry.header_bytes = 0;
        entry.body_bytes = (uint64_t)file.st_size;
    }
    atomic_fetch_sub(&folder->n_capsules, 1);
    atomic_fetch_sub(&folder->bytes, file_bytes(&entry));
    if (unlinkat(folder->dir_fd, name, 0) != 0 && errno != ENOENT) {
        return io_failed(folder, name, "cannot be removed", err);
    }
    return SL_OK;
}

// SL_ERR_NOT_FOUND: there is none.
static enum sl_status remove_oldest(struct sl_disk_folder *folder, struct sl_error *err) {
    uint64_t id;
    enum sl_status status = sl_disk_index_oldest(folder->index, &id, err);
    return status == SL_OK ? remove_capsule(folder, id, err) : status;
}

static enum sl_status shrink_to(struct sl_disk_folder *folder, int64_t bytes, struct sl_error *err) {
    enum sl_status status = SL_OK;
    while (status == SL_OK && atomic_load(&folder->bytes) > bytes) {
        status = remove_oldest(folder, err);
    }
    return status;
}

// ---- open and close ---------------------------------------------------------------------------------------------------

static enum sl_status open_directory(struct sl_disk_folder *folder, struct sl_error *err) {
    if (mkdir(folder->path, 0700) != 0 && errno != EEXIST) {
        return sl_fail(err, SL_ERR_IO, "--disk %s: cannot be made: %s; give a folder that this user can write to",
                       folder->path, strerror(errno));
    }
    folder->dir_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->dir_fd >= 0) {
        folder->owner_fd = openat(folder->dir_fd, "owner", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    }
    if (folder->dir_fd < 0 || folder->owner_fd < 0) {
        return sl_fail(err, SL_ERR_IO, "--disk %s: %s; give a folder that this user can write to", folder->path,
                       strerror(errno));
    }
    if (flock(folder->owner_fd, LOCK_EX | LOCK_NB) != 0) {
        return sl_fail(err, SL_ERR_PRECONDITION,
                       "--disk %s: another process is using it (%s); give every store a folder of its own",
                       folder->path, strerror(errno));
    }
    return SL_OK;
}

// Count what is there; entries whose file is gone or of another size go.
static enum sl_status count_entries(struct sl_disk_folder *folder, struct sl_error *err) {
    enum sl_status status;
    int64_t n_lost = 0;
    uint64_t id = 0;
    while ((status = sl_disk_index_walk(folder->index, id, &id, err)) == SL_OK) {
        struct sl_disk_entry entry;
        struct stat file;
        char name[40];
        name_file(id, name);
        atomic_fetch_add(&folder->n_capsules, 1);
        status = sl_disk_index_get(folder->index, id, &entry, err);
        bool is_whole = status == SL_OK && fstatat(folder->dir_fd, name, &file, 0) == 0 &&
                        (uint64_t)file.st_size == entry.header_bytes + entry.body_bytes;
        if (is_whole) {
            atomic_fetch_add(&folder->bytes, file_bytes(&entry));
        } else {
            int64_t bytes = atomic_load(&folder->bytes);
            status = remove_capsule(folder, id, err);
            atomic_store(&folder->bytes, bytes); // it was never counted
            n_lost++;
        }
        if (status != SL_OK) {
            return status;
        }
        id++;
    }
    if (n_lost > 0) {
        sl_log_warn("disk", "%s: files=%lld are gone, cut short or damaged: forgotten", folder->path,
                    (long long)n_lost);
    }
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

// Files without an entry: a process was killed while it wrote them.
static enum sl_status sweep(struct sl_disk_folder *folder, struct sl_error *err) {
    DIR *dir = opendir(folder->path);
    if (!dir) {
        return io_failed(folder, "", "cannot be listed", err);
    }
    for (struct dirent *file; (file = readdir(dir));) {
        uint64_t id;
        char name[40];
        struct sl_disk_entry entry;
        if (sscanf(file->d_name, FILE_PREFIX "%16" SCNx64, &id) != 1) {
            continue;
        }
        name_file(id, name);
        if (strcmp(name, file->d_name) == 0 && sl_disk_index_get(folder->index, id, &entry, NULL) == SL_ERR_NOT_FOUND) {
            unlinkat(folder->dir_fd, name, 0);
        }
    }
    closedir(dir);
    return SL_OK;
}

enum sl_status sl_disk_folder_open(const char *path, int64_t max_bytes, struct sl_disk_folder **folder_out,
                                   struct sl_error *err) {
    if (max_bytes < SL_DISK_MIN_BYTES) {
        return sl_fail(err, SL_ERR_INVALID, "--disk %s: give --disk-bytes, at least %lld", path,
                       (long long)SL_DISK_MIN_BYTES);
    }
    struct sl_disk_folder *folder = calloc(1, sizeof *folder);
    if (!folder) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "disk: out of memory");
    }
    folder->dir_fd = folder->owner_fd = -1;
    enum sl_status status = SL_OK;
    if ((size_t)snprintf(folder->path, sizeof folder->path, "%s", path) >= sizeof folder->path) {
        status = sl_fail(err, SL_ERR_INVALID, "--disk: the folder's name is too long");
    }
    if (status == SL_OK) {
        status = open_directory(folder, err);
    }
    int64_t index_bytes = max_bytes / INDEX_SHARE > MIN_INDEX_BYTES ? max_bytes / INDEX_SHARE : MIN_INDEX_BYTES;
    index_bytes -= index_bytes % BLOCK_BYTES;
    folder->max_bytes = max_bytes - index_bytes;
    if (status == SL_OK) {
        char index_path[PATH_MAX];
        snprintf(index_path, sizeof index_path, "%s/index.mdb", folder->path);
        status = sl_disk_index_open(index_path, (size_t)index_bytes, &folder->index, err);
    }
    if (status == SL_OK) {
        status = count_entries(folder, err);
    }
    if (status == SL_OK) {
        status = sweep(folder, err);
    }
    if (status == SL_OK) {
        status = shrink_to(folder, folder->max_bytes, err);
    }
    if (status != SL_OK) {
        sl_disk_folder_close(&folder);
        return status;
    }
    *folder_out = folder;
    return SL_OK;
}

void sl_disk_folder_close(struct sl_disk_folder **folder_inout) {
    struct sl_disk_folder *folder = *folder_inout;
    if (!folder) {
        return;
    }
    sl_disk_index_close(&folder->index);
    if (folder->owner_fd >= 0) {
        close(folder->owner_fd);
    }
    if (folder->dir_fd >= 0) {
        close(folder->dir_fd);
    }
    free(folder);
    *folder_inout = NULL;
}

// ---- writing --------------------------------------------------------------------------------------------------------

struct writing {
    int fd;
    bool (*go_on)(void *arg);
    void *arg;
    uint64_t digest;
    size_t at; // in the file
};

// SL_ERR_IO: errno says why.
static enum sl_status write_part(struct writing *writing, const uint8_t *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        size_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        if (writing->go_on && !writing->go_on(writing->arg)) {
            return SL_ERR_CANCELLED;
        }
        writing->digest = sl_hash(data + done, piece, writing->digest);
        for (size_t written = 0; written < piece;) {
            ssize_t n = pwrite(writing->fd, data + done + written, piece - written, (off_t)(writing->at + written));
            if (n < 0 && errno != EINTR) {
                return SL_ERR_IO;
            }
            written += n > 0 ? (size_t)n : 0;
        }
        done += piece;
        writing->at += piece;
    }
    return SL_OK;
}

static enum sl_status write_file(struct sl_disk_folder *folder, const char *name,
                                 const struct sl_capsule_bytes *capsule, struct writing *writing,
                                 struct sl_error *err) {
    writing->fd = openat(folder->dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (writing->fd < 0) {
        return io_failed(folder, name, "cannot be made", err);
    }
    // All of it at once, so that a full disk is known first. Where a file system cannot do that, writing will say so.
    enum sl_status status = SL_OK;
    if (fallocate(writing->fd, 0, 0, (off_t)(capsule->header_bytes + capsule->body_bytes)) != 0 && errno == ENOSPC) {
        status = SL_ERR_IO;
    }
    if (status == SL_OK) {
        status = write_part(writing, capsule->header, capsule->header_bytes);
    }
    if (status == SL_OK) {
        status = write_part(writing, capsule->body, capsule->body_bytes);
    }
    if (status == SL_ERR_CANCELLED) {
        sl_fail(err, status, "given up while writing %s", name);
    } else if (status != SL_OK) {
        io_failed(folder, name, "cannot be written", err);
    }
    if (close(writing->fd) != 0 && status == SL_OK) {
        status = io_failed(folder, name, "cannot be written", err);
    }
    return status;
}

enum sl_status sl_disk_folder_write(struct sl_disk_folder *folder, const struct sl_stored *stored,
                                    bool (*go_on)(void *arg), void *arg, struct sl_error *err) {
    uint64_t id;
    if (sl_disk_index_has(folder->index, &stored->keys.id, &id)) {
        return sl_fail(err, SL_ERR_EXISTS, "this capsule is on disk already");
    }
    struct sl_disk_entry entry = {.key = stored->keys.id,
                                  .n_tokens = stored->n_tokens,
                                  .header_bytes = stored->capsule.header_bytes,
                                  .body_bytes = stored->capsule.body_bytes,
                                  .n_hashes = stored->keys.n_hashes,
                                  .stride = stored->keys.stride};
    if (file_bytes(&entry) > folder->max_bytes) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "a capsule of %lld bytes is larger than all that --disk-bytes allows",
                       (long long)file_bytes(&entry));
    }
    enum sl_status status = shrink_to(folder, folder->max_bytes - file_bytes(&entry), err);
    char name[40];
    id = sl_disk_index_next(folder->index);
    name_file(id, name);
    struct writing writing = {.fd = -1, .go_on = go_on, .arg = arg};
    if (status == SL_OK) {
        status = write_file(folder, name, &stored->capsule, &writing, err);
        entry.file_digest = writing.digest;
    }
    while (status == SL_OK &&
           (status = sl_disk_index_put(folder->index, id, &entry, stored->keys.hashes, err)) == SL_AGAIN) {
        status = remove_oldest(folder, err); // the index is full
        if (status == SL_ERR_NOT_FOUND) {
            status = sl_fail(err, SL_ERR_IO, "disk: the index is full and nothing is left to remove");
        }
    }
    if (status == SL_OK) {
        atomic_fetch_add(&folder->n_capsules, 1);
        atomic_fetch_add(&folder->bytes, file_bytes(&entry));
    } else if (writing.fd >= 0) {
        unlinkat(folder->dir_fd, name, 0);
    }
    return status;
}

// ---- reading --------------------------------------------------------------------------------------------------------

enum sl_status sl_disk_folder_discard(struct sl_disk_folder *folder, uint64_t id, const char *why,
                                      struct sl_error *err) {
    enum sl_status status = remove_capsule(folder, id, err);
    if (status == SL_OK) {
        sl_log_warn("disk", "%s: capsule=%016" PRIx64 " removed: %s", folder->path, id, why);
    }
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

enum sl_status sl_disk_folder_find(struct sl_disk_folder *folder, const struct sl_prefix *prefixes, size_t n_prefixes,
                                   struct sl_disk_found *found_out, struct sl_error *err) {
    enum sl_status status;
    struct sl_error why = {0};
    while ((status = sl_disk_index_find(folder->index, prefixes, n_prefixes, &found_out->at, &found_out->id,
                                        &found_out->entry, &why)) == SL_ERR_INVALID) {
        status = sl_disk_folder_discard(folder, found_out->id, why.text, err);
        if (status != SL_OK) {
            return status;
        }
    }
    return status == SL_OK ? SL_OK : sl_fail(err, status, "%s", status == SL_ERR_NOT_FOUND ? "not on disk" : why.text);
}

// False: it is not all there, or not readable.
static bool read_part(int fd, size_t *at_inout, uint8_t *data, size_t bytes, uint64_t *digest_inout) {
    for (size_t done = 0; done < bytes;) {
        size_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        for (size_t n_read = 0; n_read < piece;) {
            ssize_t n = pread(fd, data + done + n_read, piece - n_read, (off_t)(*at_inout + n_read));
            if (n == 0 || (n < 0 && errno != EINTR)) {
                return false;
            }
            n_read += n > 0 ? (size_t)n : 0;
        }
        *digest_inout = sl_hash(data + done, piece, *digest_inout);
        done += piece;
        *at_inout += piece;
    }
    return true;
}

// SL_ERR_INVALID: it is damaged, or gone.
static enum sl_status read_file(struct sl_disk_folder *folder, const struct sl_disk_found *found,
                                const struct sl_capsule_bytes *into, struct sl_error *err) {
    char name[40];
    name_file(found->id, name);
    int fd = openat(folder->dir_fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT) {
        return io_failed(folder, name, "cannot be opened", err);
    }
    if (fd < 0) {
        return sl_fail(err, SL_ERR_INVALID, "its file is gone");
    }
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    size_t at = 0;
    uint64_t digest = 0;
    bool is_whole = read_part(fd, &at, into->header, into->header_bytes, &digest) &&
                    read_part(fd, &at, into->body, into->body_bytes, &digest) && digest == found->entry.file_digest;
    close(fd);
    return is_whole ? SL_OK : sl_fail(err, SL_ERR_INVALID, "its file cannot be read, or fails its digest");
}

enum sl_status sl_disk_folder_read(struct sl_disk_folder *folder, const struct sl_disk_found *found, void *body,
                                   struct sl_capsule_bytes *capsule_out, struct sl_capsule_keys *keys_out,
                                   struct sl_error *err) {
    const struct sl_disk_entry *entry = &found->entry;
    struct sl_capsule_bytes capsule = {body, (size_t)entry->body_bytes, malloc((size_t)entry->header_bytes + 1),
                                       (size_t)entry->header_bytes};
    struct sl_capsule_keys keys = {entry->key, malloc(sizeof *keys.hashes * ((size_t)entry->n_hashes + 1)),
                                   (size_t)entry->n_hashes, entry->stride};
    struct sl_error why = {0};
    enum sl_status status = SL_OK;
    if (!capsule.header || !keys.hashes) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "disk: out of memory");
    } else {
        status = sl_disk_index_list(folder->index, found->id, entry, keys.hashes, &why);
        if (status == SL_OK) {
            status = read_file(folder, found, &capsule, &why);
        }
        if (status == SL_ERR_INVALID) { // or removed meanwhile, file and all: then nobody says anything
            status = sl_disk_folder_discard(folder, found->id, why.text, err);
            status = status == SL_OK ? sl_fail(err, SL_ERR_NOT_FOUND, "not on disk any more") : status;
        } else if (status != SL_OK) {
            sl_fail(err, status, "%s", why.text);
        }
    }
    if (status != SL_OK) {
        free(capsule.header);
        free(keys.hashes);
        return status;
    }
    *capsule_out = capsule;
    *keys_out = keys;
    return SL_OK;
}

bool sl_disk_folder_has(struct sl_disk_folder *folder, const struct sl_capsule_id *key) {
    uint64_t id;
    return sl_disk_index_has(folder->index, key, &id);
}

enum sl_status sl_disk_folder_touch(struct sl_disk_folder *folder, const struct sl_capsule_id *key,
                                    struct sl_error *err) {
    uint64_t id;
    return sl_disk_index_has(folder->index, key, &id) ? sl_disk_index_touch(folder->index, id, err) : SL_ERR_NOT_FOUND;
}

void sl_disk_folder_get_size(struct sl_disk_folder *folder, int64_t *n_capsules_out, int64_t *bytes_out) {
    *n_capsules_out = atomic_load(&folder->n_capsules);
    *bytes_out = atomic_load(&folder->bytes);
}
