// SPDX-License-Identifier: Apache-2.0
#include "kvstore/disk/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/owned_folder.h"
#include "kvstore/disk/scan.h"

#define BLOCK_BYTES     4096 // a file occupies whole blocks
#define INDEX_SHARE     64   // the index may take this fraction of the bytes, within
#define MIN_INDEX_BYTES ((int64_t)4 << 20)
#define MAX_INDEX_BYTES ((int64_t)1 << 30)
#define MAKE_WAY_MS     60000
#define MOST_FAILURES                                                                                                  \
    8 // of a file while no other is read; the folder is opened anew between them, after longer and longer pauses

struct sl_disk_folder {
    struct sl_owned_folder place;
    struct sl_disk_index *index;
    struct sl_protected *protected; // NULL: none
    int64_t max_bytes;
    dev_t disk;
    _Atomic int64_t n_capsules, bytes;
    // Used by the writer alone:
    uint64_t next_id;
    int64_t last_use_ns;
    bool is_short;          // other programs have filled the disk, and the log has said so
    int64_t make_way_at_ns; // until then no capsule is evicted to make room on a full disk
    struct sl_hash128 hashes[SL_CAPSULE_CACHE_MAX_PREFIXES - 1]; // of the file that is being restored
};

static int64_t in_blocks(int64_t bytes) {
    return (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

static int64_t bytes_of(const struct sl_disk_entry *entry) {
    return in_blocks(sl_disk_head_file_bytes(&entry->head));
}

// Fails with errno's text.
static enum sl_status failed(const struct sl_disk_folder *folder, uint64_t id, const char *what, enum sl_status status,
                             struct sl_error *err) {
    return sl_fail(err, status, "%.200s/%s: %s: %s", folder->place.path, sl_disk_file_name(id).text, what,
                   strerror(errno));
}

// Returns the timestamp of this use: the time, but later than all earlier uses.
static struct timespec count_use(struct sl_disk_folder *folder) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t now_ns = now.tv_sec * SL_NS_PER_S + now.tv_nsec;
    folder->last_use_ns = now_ns > folder->last_use_ns ? now_ns : folder->last_use_ns + 1;
    return (struct timespec){folder->last_use_ns / SL_NS_PER_S, folder->last_use_ns % SL_NS_PER_S};
}

// ---- room -----------------------------------------------------------------------------------------------------------

bool sl_disk_folder_hide(struct sl_disk_folder *folder, const struct sl_disk_entry *entry) {
    bool is_there = sl_disk_index_remove(folder->index, entry);
    if (is_there) {
        atomic_fetch_sub(&folder->n_capsules, 1);
        atomic_fetch_sub(&folder->bytes, bytes_of(entry));
    }
    return is_there;
}

// Removes a capsule and its file. SL_ERR_NOT_FOUND: another thread already has.
static enum sl_status remove_capsule(struct sl_disk_folder *folder, const struct sl_disk_entry *entry,
                                     struct sl_error *err) {
    return sl_disk_folder_hide(folder, entry) ? sl_disk_folder_remove(folder, entry->id, err)
                                              : sl_fail(err, SL_ERR_NOT_FOUND, "not on disk any more");
}

enum sl_status sl_disk_folder_remove(struct sl_disk_folder *folder, uint64_t id, struct sl_error *err) {
    if (unlinkat(folder->place.dir_fd, sl_disk_file_name(id).text, 0) != 0 && errno != ENOENT) {
        return failed(folder, id, "cannot be removed", SL_ERR_IO, err);
    }
    return SL_OK;
}

// Removes the capsule that the policy chooses. SL_ERR_NOT_FOUND: there is none, or documents alone.
static enum sl_status remove_victim(struct sl_disk_folder *folder, struct sl_error *err) {
    struct sl_disk_entry entry;
    SL_FAIL_IF(!sl_protected_is_known(folder->protected) ||
                   !sl_disk_index_victim(folder->index, folder->protected, &entry),
               err, SL_ERR_NOT_FOUND, "nothing on disk may be evicted");
    enum sl_status status = remove_capsule(folder, &entry, err);
    return status == SL_ERR_NOT_FOUND ? SL_OK : status; // a reader found it damaged and has removed it
}

static enum sl_status shrink_to(struct sl_disk_folder *folder, int64_t bytes, struct sl_error *err) {
    enum sl_status status = SL_OK;
    while (status == SL_OK && atomic_load(&folder->bytes) > bytes) {
        status = remove_victim(folder, err);
    }
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

// Enters the capsule of a file as the most recently used.
static enum sl_status enter(struct sl_disk_folder *folder, const struct sl_disk_entry *entry,
                            const struct sl_hash128 *hashes, struct sl_error *err) {
    enum sl_status status;
    while ((status = sl_disk_index_put(folder->index, entry, hashes, err)) == SL_AGAIN) {
        status = remove_victim(folder, err);
        SL_TRY(status);
    }
    if (status == SL_OK) {
        atomic_fetch_add(&folder->n_capsules, 1);
        atomic_fetch_add(&folder->bytes, bytes_of(entry));
    }
    return status;
}

// ---- open and close ---------------------------------------------------------------------------------------------------

// Opens a file for reading. SL_ERR_INVALID: it cannot be used. SL_ERR_EXHAUSTED, SL_ERR_IO: it may be fine, but cannot
// be opened now.
static enum sl_status open_file(const struct sl_disk_folder *folder, uint64_t id, int *fd_out, struct sl_error *err) {
    int fd = sl_disk_file_open(folder->place.dir_fd, id);
    if (fd < 0) {
        bool not_now = errno == EMFILE || errno == ENFILE || errno == ENOMEM,
             is_gone = errno == ENOENT || errno == ELOOP;
        return sl_fail(err,
                       not_now   ? SL_ERR_EXHAUSTED
                       : is_gone ? SL_ERR_INVALID
                                 : SL_ERR_IO,
                       "it cannot be opened: %s", strerror(errno));
    }
    *fd_out = fd;
    return SL_OK;
}

// Drops the file from the page cache, also what was written lately: what is read then comes from the disk. False: some of it may not.
static bool drop_cached(int fd) {
    return fdatasync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0;
}

// Reads the head of a file that existed before we started. SL_ERR_INVALID: the file cannot be used. SL_ERR_IO: it cannot
// be read now.
static enum sl_status read_entry(const struct sl_disk_folder *folder, uint64_t id, struct sl_disk_entry *entry_out,
                                 struct sl_hash128 hashes_out[SL_CAPSULE_CACHE_MAX_PREFIXES - 1],
                                 struct sl_error *err) {
    int fd = -1;
    SL_TRY(open_file(folder, id, &fd, err));
    entry_out->id = id;
    enum sl_status status = sl_disk_file_read_head(fd, &entry_out->head, hashes_out, err);
    close(fd);
    SL_THEN_IF(status, bytes_of(entry_out) > folder->max_bytes,
               sl_fail(err, SL_ERR_INVALID, "it is larger than all that --disk-bytes allows"));
    return status;
}

// Enters such a file as the most recently used capsule, or removes it, or an older one of the same capsule; marks one that
// cannot be read now.
static enum sl_status restore(struct sl_disk_folder *folder, struct sl_disk_file *file, int64_t *n_removed,
                              struct sl_error *err) {
    struct sl_disk_entry entry, other;
    struct sl_error why = {0};
    enum sl_status status = read_entry(folder, file->id, &entry, folder->hashes, &why);
    file->is_unread = status == SL_ERR_IO;
    if (status == SL_ERR_INVALID) {
        sl_log_debug("disk", "%s/%s: %s", folder->place.path, sl_disk_file_name(file->id).text, why.text);
        ++*n_removed;
        return sl_disk_folder_remove(folder, file->id, err);
    }
    SL_FAIL_IF(status != SL_OK, err, file->is_unread ? SL_OK : status, "%.200s/%s: %s", folder->place.path,
               sl_disk_file_name(file->id).text, why.text);
    entry.used_ns = file->used_ns;
    if (sl_disk_index_get(folder->index, &entry.head.key, &other)) {
        ++*n_removed;
        if (other.used_ns > entry.used_ns) { // this one is read again, after younger ones
            return sl_disk_folder_remove(folder, file->id, err);
        }
        status = remove_capsule(folder, &other, err);
    }
    return status == SL_OK ? enter(folder, &entry, folder->hashes, err) : status;
}

// Returns whether the disk gives what is written: the file "owner", which is otherwise empty.
static bool gives_what_is_written(struct sl_disk_folder *folder) {
    const int fd = folder->place.owner_fd;
    return pwrite(fd, folder->hashes, BLOCK_BYTES, 0) == BLOCK_BYTES && drop_cached(fd) &&
           pread(fd, folder->hashes, BLOCK_BYTES, 0) == BLOCK_BYTES;
}

// Returns whether a file that was read can be read again, from the disk and not from the page cache. If none was, the disk is tried.
static bool disk_works(struct sl_disk_folder *folder, const struct sl_disk_file *files, size_t n_files) {
    int fd = -1;
    for (size_t i = n_files; fd < 0 && i-- > 0;) {
        fd = files[i].is_unread ? -1 : sl_disk_file_open(folder->place.dir_fd, files[i].id); // or it was removed
    }
    if (fd < 0) {
        return gives_what_is_written(folder);
    }
    struct sl_disk_head head;
    bool works = drop_cached(fd) && sl_disk_file_read_head(fd, &head, folder->hashes, NULL) == SL_OK;
    close(fd);
    return works;
}

/*
 * Reads the files that could not be read once more, and removes those that cannot be read again, as damaged ones; if no other
 * was read, they stay. Fails if they are several and more than half of all, or if the disk gives nothing else, either: then the disk
 * fails, not the files, and it may give them later. why_inout: of the last of them.
 */
static enum sl_status read_again(struct sl_disk_folder *folder, struct sl_disk_file *files, size_t n_files,
                                 int64_t *n_removed, struct sl_error *why_inout, struct sl_error *err) {
    enum sl_status status = SL_OK;
    size_t n_unread = 0;
    for (size_t i = 0; i < n_files && status == SL_OK; i++) {
        status = files[i].is_unread ? restore(folder, &files[i], n_removed, why_inout) : SL_OK;
        n_unread += files[i].is_unread;
    }
    SL_FAIL_IF(status != SL_OK, err, status, "%s", why_inout->text);
    const bool most = n_unread > 1 && n_unread > n_files / 2;
    SL_FAIL_IF(most || (n_unread > 0 && !disk_works(folder, files, n_files)), err, SL_ERR_IO,
               "files=%zu of %zu cannot be read, and stay (remove them if the disk works): %.300s", n_unread, n_files,
               why_inout->text);
    const bool stay = atomic_load(&folder->n_capsules) == 0;
    if (n_unread > 0) {
        sl_log_warn("disk", "files=%zu of %zu cannot be read and %s: %s", n_unread, n_files,
                    stay ? "stay, unused" : "are removed", why_inout->text);
    }
    for (size_t i = 0; i < n_files && status == SL_OK && !stay; i++) {
        status = files[i].is_unread ? sl_disk_folder_remove(folder, files[i].id, err) : SL_OK;
    }
    return status;
}

static enum sl_status restore_all(struct sl_disk_folder *folder, struct sl_error *err) {
    struct sl_disk_file *files;
    size_t n_files;
    int64_t n_removed = 0, begin_ns = sl_now_ns();
    struct sl_error why = {0};
    enum sl_status status = sl_disk_scan(folder->place.dir_fd, &files, &n_files, err);
    SL_TRY_OR(status, sl_error_prefix(err, folder->place.path));
    struct sl_disk_read_ahead *ahead = sl_disk_read_ahead_start(folder->place.dir_fd, files, n_files);
    for (size_t i = 0; i < n_files && status == SL_OK; i++) {
        status = restore(folder, &files[i], &n_removed, &why);
        folder->next_id = files[i].id >= folder->next_id ? files[i].id + 1 : folder->next_id;
        folder->last_use_ns = files[i].used_ns;
    }
    sl_disk_read_ahead_stop(&ahead);
    status = status == SL_OK ? read_again(folder, files, n_files, &n_removed, &why, err)
                             : sl_fail(err, status, "%s", why.text);
    free(files);
    if (n_removed > 0) {
        sl_log_warn(
            "disk",
            "%s: files=%lld of %zu were unfinished, damaged, of another version or there twice, and are removed",
            folder->place.path, (long long)n_removed, n_files);
    }
    sl_log_debug("disk", "%s: files=%zu looked at in %.1f ms", folder->place.path, n_files,
                 (double)(sl_now_ns() - begin_ns) / SL_NS_PER_MS);
    return status;
}

int64_t sl_disk_folder_index_bytes(int64_t max_bytes) {
    int64_t bytes = max_bytes / INDEX_SHARE;
    bytes = bytes < MIN_INDEX_BYTES ? MIN_INDEX_BYTES : bytes;
    return bytes > MAX_INDEX_BYTES ? MAX_INDEX_BYTES : bytes;
}

enum sl_status sl_disk_folder_open(const char *path, dev_t disk, int64_t max_bytes, struct sl_protected *set,
                                   struct sl_disk_folder **folder_out, struct sl_error *err) {
    SL_FAIL_IF(max_bytes < SL_DISK_MIN_BYTES, err, SL_ERR_INVALID, "--disk %s: give --disk-bytes, at least %lld", path,
               (long long)SL_DISK_MIN_BYTES);
    SL_NEW_OR_FAIL(struct sl_disk_folder, folder, err, "disk: out of memory");
    size_t index_bytes = (size_t)sl_disk_folder_index_bytes(max_bytes);
    folder->max_bytes = max_bytes;
    folder->protected = set;
    enum sl_status status = sl_owned_folder_open("--disk", path, disk, &folder->place, err);
    SL_THEN(status, sl_owned_folder_lock(&folder->place, "store", err));
    struct stat about;
    SL_THEN_IF(status, fstat(folder->place.dir_fd, &about) != 0, sl_owned_folder_fail(&folder->place, err));
    folder->disk = status == SL_OK ? about.st_dev : 0;
    SL_THEN(status, sl_disk_index_create(index_bytes, &folder->index, err));
    if (status == SL_OK) {
        // Before it is known which are documents, nothing may be evicted, so all files are entered.
        bool is_known = sl_protected_is_known(set);
        sl_disk_index_limit(folder->index, is_known ? index_bytes : SIZE_MAX);
        status = restore_all(folder, err);
        sl_disk_index_limit(folder->index, index_bytes);
    }
    SL_THEN(status, shrink_to(folder, folder->max_bytes, err));
    SL_TRY_OR(status, sl_disk_folder_close(&folder));
    *folder_out = folder;
    return SL_OK;
}

dev_t sl_disk_folder_disk(const struct sl_disk_folder *folder) {
    return folder->disk;
}

void sl_disk_folder_evict_by(struct sl_disk_folder *folder, const struct sl_eviction_config *eviction) {
    sl_disk_index_evict_by(folder->index, eviction, folder->max_bytes);
}

void sl_disk_folder_close(struct sl_disk_folder **folder_inout) {
    SL_TAKE_OR_RETURN(folder, folder_inout);
    sl_disk_index_destroy(&folder->index);
    sl_owned_folder_close(&folder->place);
    free(folder);
}

// ---- writing --------------------------------------------------------------------------------------------------------

// Makes a new file under an unused id, *id_out. -1: errno.
static int make_file(struct sl_disk_folder *folder, uint64_t *id_out) {
    int fd;
    do {
        *id_out = folder->next_id++;
        fd = openat(folder->place.dir_fd, sl_disk_file_name(*id_out).text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                    0600);
    } while (fd < 0 && errno == EEXIST); // the id is in use, or the ids have wrapped around
    return fd;
}

// Maps errno to the meaning for the caller: no room; not now; never.
static enum sl_status group_of(int error) {
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return SL_ERR_EXHAUSTED;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
        return SL_ERR_CANCELLED;
    default:
        return SL_ERR_IO;
    }
}

// Writes a file with the capsule, or leaves none.
static enum sl_status write_file(struct sl_disk_folder *folder, const struct sl_stored *stored,
                                 bool (*go_on)(void *arg), void *arg, struct sl_disk_entry *entry_out,
                                 struct sl_error *err) {
    struct sl_disk_entry entry;
    int fd = make_file(folder, &entry.id);
    if (fd < 0) {
        return failed(folder, entry.id, "cannot be made", group_of(errno), err);
    }
    struct sl_error why = {0};
    enum sl_status status = sl_disk_file_write(fd, stored, go_on, arg, &entry.head, &why);
    struct timespec used[2] = {count_use(folder)};
    used[1] = used[0];
    entry.used_ns = folder->last_use_ns;
    if (status != SL_OK) {
        sl_fail(err, status, "%.200s/%s: %s", folder->place.path, sl_disk_file_name(entry.id).text, why.text);
    } else if (futimens(fd, used) != 0) {
        status = failed(folder, entry.id, "cannot be dated", SL_ERR_IO, err);
    }
    if (close(fd) != 0 && status == SL_OK) {
        status = failed(folder, entry.id, "cannot be written", group_of(errno), err);
    }
    if (status != SL_OK) {
        enum sl_status removed = sl_disk_folder_remove(folder, entry.id, err);
        return removed != SL_OK ? removed : status;
    }
    *entry_out = entry;
    return SL_OK;
}

// Notes whether the other users of the disk leave room; logs when that changes.
static void note_room(struct sl_disk_folder *folder, bool is_short, const struct sl_error *why) {
    if (is_short && !folder->is_short) {
        sl_log_warn("disk", "%s: others have filled the disk: capsules are dropped until there is room: %s",
                    folder->place.path, why->text);
    } else if (!is_short && folder->is_short) {
        sl_log_info("disk", "%s: there is room again", folder->place.path);
    }
    folder->is_short = is_short;
}

// Writes the capsule. If the disk is full, evicts our own capsules until at most `left` bytes of them remain. If other
// programs take that room too, stops evicting for a while: otherwise they would get all of it, capsule by capsule.
static enum sl_status write_or_make_way(struct sl_disk_folder *folder, const struct sl_stored *stored, int64_t left,
                                        bool (*go_on)(void *arg), void *arg, struct sl_disk_entry *entry_out,
                                        struct sl_error *err) {
    enum sl_status status = write_file(folder, stored, go_on, arg, entry_out, err);
    if (status == SL_ERR_EXHAUSTED && sl_now_ns() >= folder->make_way_at_ns) {
        status = shrink_to(folder, left, err);
        SL_THEN(status, write_file(folder, stored, go_on, arg, entry_out, err));
        folder->make_way_at_ns = status == SL_ERR_EXHAUSTED ? sl_deadline_in_ms(MAKE_WAY_MS) : 0;
    }
    if (status == SL_OK || status == SL_ERR_EXHAUSTED) {
        note_room(folder, status != SL_OK, err);
    }
    return status;
}

enum sl_status sl_disk_folder_write(struct sl_disk_folder *folder, const struct sl_stored *stored,
                                    bool (*go_on)(void *arg), void *arg, struct sl_error *err) {
    struct sl_disk_entry entry;
    SL_FAIL_IF(sl_disk_index_get(folder->index, &stored->keys.id, &entry), err, SL_ERR_EXISTS,
               "this capsule is on disk already");
    int64_t bytes = in_blocks(sl_disk_stored_file_bytes(stored));
    SL_FAIL_IF(bytes > folder->max_bytes, err, SL_ERR_EXHAUSTED,
               "a capsule of %lld bytes is larger than all that --disk-bytes allows", (long long)bytes);
    struct sl_error why = {0};
    int64_t used = atomic_load(&folder->bytes), left = used - bytes;
    // Check before evicting: a capsule for which documents leave no room is offered again and again.
    SL_FAIL_IF(!sl_disk_index_can_free(folder->index, folder->protected, bytes_of, used + bytes - folder->max_bytes),
               err, SL_ERR_EXHAUSTED, "documents leave no room for %lld bytes on disk", (long long)bytes);
    enum sl_status status = shrink_to(folder, folder->max_bytes - bytes, &why);
    if (status == SL_OK && atomic_load(&folder->bytes) > folder->max_bytes - bytes) { // they are not known yet
        status = sl_fail(&why, SL_ERR_EXHAUSTED, "documents leave no room for %lld bytes on disk", (long long)bytes);
    }
    SL_THEN(status, write_or_make_way(folder, stored, left > 0 ? left : 0, go_on, arg, &entry, &why));
    SL_FAIL_IF(status != SL_OK, err, status, "%s", why.text);
    status = enter(folder, &entry, stored->keys.hashes, err);
    if (status != SL_OK) { // the index does not have it, so the file must not stay
        SL_TRY(sl_disk_folder_remove(folder, entry.id, err));
    }
    return status;
}

// ---- reading --------------------------------------------------------------------------------------------------------

enum sl_status sl_disk_folder_discard(struct sl_disk_folder *folder, const struct sl_disk_entry *entry, const char *why,
                                      struct sl_error *err) {
    enum sl_status status = remove_capsule(folder, entry, err);
    if (status == SL_OK) {
        sl_log_warn("disk", "%s: capsule=%016" PRIx64 " removed: %s", folder->place.path, entry->id, why);
    }
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

enum sl_status sl_disk_folder_forget(struct sl_disk_folder *folder, const struct sl_capsule_id *key,
                                     struct sl_error *err) {
    struct sl_disk_entry entry;
    return sl_disk_index_get(folder->index, key, &entry) ? remove_capsule(folder, &entry, err)
                                                         : sl_fail(err, SL_ERR_NOT_FOUND, "not on disk");
}

struct sl_disk_index *sl_disk_folder_index(const struct sl_disk_folder *folder) {
    return folder->index;
}

// Reads a capsule, from_disk_inout: not from the page cache; then false, if some of it may be. SL_ERR_INVALID: it is damaged, or removed.
// SL_ERR_EXHAUSTED, SL_ERR_IO: it cannot be read now.
static enum sl_status read_file(struct sl_disk_folder *folder, const struct sl_disk_entry *entry, bool *from_disk_inout,
                                struct sl_hash128 *hashes_out, const struct sl_capsule_bytes *into,
                                struct sl_error *err) {
    struct sl_disk_head head;
    int fd = -1;
    SL_TRY(open_file(folder, entry->id, &fd, err));
    *from_disk_inout = *from_disk_inout && drop_cached(fd);
    enum sl_status status = sl_disk_file_read_head(fd, &head, hashes_out, err);
    SL_THEN_IF(status, memcmp(&head, &entry->head, sizeof head) != 0,
               sl_fail(err, SL_ERR_INVALID, "it is another one than it was"));
    SL_THEN(status, sl_disk_file_read_content(fd, &head, into->header, into->body, err));
    close(fd);
    return status;
}

// Returns whether reading this file from the disk would tell more of others that could not be read.
static bool is_telling(const struct sl_disk_unread *unread, uint64_t id) {
    for (size_t i = 0; i < unread->n; i++) {
        if (unread->files[i].id != id && !unread->files[i].others_were_read) {
            return true;
        }
    }
    return false;
}

// Notes that a file was read: it is whole. from_disk: and the disk works, so another file that fails again is damaged.
static void note_read(struct sl_disk_unread *unread, uint64_t id, bool from_disk) {
    size_t n = 0;
    for (size_t i = 0; i < unread->n; i++) {
        unread->files[i].others_were_read |= from_disk;
        if (unread->files[i].id != id) {
            unread->files[n++] = unread->files[i];
        }
    }
    unread->n = n;
}

// Notes that a file could not be read. Returns whether it is damaged; then the list does not have it any more.
static bool note_unread(struct sl_disk_unread *unread, uint64_t id) {
    const size_t most = sizeof unread->files / sizeof unread->files[0];
    size_t i = 0;
    while (i < unread->n && unread->files[i].id != id) {
        i++;
    }
    if (i == most) { // another file's place
        i = 0;
        unread->files[i] = (struct sl_disk_unread_file){.id = id};
    } else if (i == unread->n) {
        unread->files[unread->n++] = (struct sl_disk_unread_file){.id = id};
    }
    struct sl_disk_unread_file *file = &unread->files[i];
    file->n_failures++;
    bool is_damaged = file->n_failures >= (file->others_were_read ? 2 : MOST_FAILURES);
    if (is_damaged) {
        *file = unread->files[--unread->n];
    }
    return is_damaged;
}

enum sl_status sl_disk_folder_read(struct sl_disk_folder *folder, const struct sl_disk_entry *entry,
                                   struct sl_disk_unread *unread, void *body, struct sl_capsule_bytes *capsule_out,
                                   struct sl_capsule_keys *keys_out, struct sl_error *err) {
    const struct sl_disk_head *head = &entry->head;
    struct sl_capsule_bytes capsule = {body, head->body_bytes, malloc(head->header_bytes), head->header_bytes};
    struct sl_capsule_keys keys = {.id = head->key,
                                   .hashes = malloc(sizeof *keys.hashes * SL_CAPSULE_CACHE_MAX_PREFIXES),
                                   .n_hashes = head->n_hashes,
                                   .stride = head->stride,
                                   .tenant = head->tenant,
                                   .read_ms = head->read_ms,
                                   .read_tokens = head->read_tokens};
    struct sl_error why = {0};
    enum sl_status status = SL_ERR_EXHAUSTED;
    bool from_disk = is_telling(unread, entry->id);
    if (!capsule.header || !keys.hashes) {
        sl_fail(err, status, "disk: out of memory");
    } else {
        status = read_file(folder, entry, &from_disk, keys.hashes, &capsule, &why);
    }
    if (status == SL_OK) {
        note_read(unread, entry->id, from_disk);
    } else if (status == SL_ERR_IO && note_unread(unread, entry->id)) {
        status = SL_ERR_INVALID;
    }
    if (status == SL_ERR_INVALID) { // or it was removed meanwhile; then do not log
        status = sl_disk_folder_discard(folder, entry, why.text, err);
        SL_THEN(status, sl_fail(err, SL_ERR_NOT_FOUND, "not on disk any more"));
    } else if (why.text[0]) {
        sl_fail(err, status, "%.200s/%s: %s", folder->place.path, sl_disk_file_name(entry->id).text, why.text);
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

enum sl_status sl_disk_folder_touch(struct sl_disk_folder *folder, const struct sl_capsule_id *key,
                                    struct sl_error *err) {
    struct sl_disk_entry entry;
    SL_FAIL_IF(!sl_disk_index_touch(folder->index, key, &entry), err, SL_ERR_NOT_FOUND, "not on disk");
    struct timespec used[2] = {count_use(folder)};
    used[1] = used[0];
    if (utimensat(folder->place.dir_fd, sl_disk_file_name(entry.id).text, used, AT_SYMLINK_NOFOLLOW) == 0) {
        return SL_OK;
    }
    if (errno != ENOENT) {
        return failed(folder, entry.id, "cannot be dated", SL_ERR_IO, err);
    }
    SL_TRY(sl_disk_folder_discard(folder, &entry, "its file is gone", err));
    return sl_fail(err, SL_ERR_NOT_FOUND, "not on disk any more");
}

void sl_disk_folder_get_size(struct sl_disk_folder *folder, int64_t *n_capsules_out, int64_t *bytes_out) {
    *n_capsules_out = atomic_load(&folder->n_capsules);
    *bytes_out = atomic_load(&folder->bytes);
}
