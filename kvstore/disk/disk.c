// SPDX-License-Identifier: Apache-2.0
#include "kvstore/disk/disk.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/kvcache/capsule.h"
#include "engine/offload/remote_kv/segment_head.h"
#include "kvstore/disk/folder.h"
#include "kvstore/disk/queue.h"

#define MAX_CLOSING 65536 // capsules that closing checks at most

// A request to the writer.
struct offer {
    struct offer *next; // the next of those that closing has found
    struct sl_capsule_id key;
    bool forget;
    uint64_t file; // the file that is already hidden, and in which opening of the folder; opening 0: none
    int64_t opening;
};

struct sl_disk {
    struct sl_disk_config config;
    struct sl_disk_folder *folder; // NULL while it is being opened again, and after that has failed
    struct sl_queue *offers;       // of struct offer, malloc'd; NULL: check if it is time to try again
    pthread_t writer;
    bool has_writer;
    dev_t on;                    // the file system of the folder when it was last opened; 0: it was not
    _Atomic int64_t deadline_ns; // for writing
    _Atomic int64_t n_hits, n_dropped;
    _Atomic bool failed;
    struct sl_disk_unread unread; // of the thread that has the turn to read
    pthread_mutex_t mutex;
    pthread_cond_t recalled;
    // Under the mutex:
    bool recalling; // a thread reads, or opens the folder again
    int64_t recall_begin_ns;
    bool is_silent; // the log has reported this recall as silent
    char failure[384];
    int64_t n_failures, pause_ms;
    int64_t opened_ns, retry_ns, n_openings;
};

// ---- failing --------------------------------------------------------------------------------------------------------

// Call with the lock held.
static void pause_longer(struct sl_disk *disk, const char *why) {
    const struct sl_disk_config *config = &disk->config;
    int64_t now_ns = sl_now_ns(),
            longer_ms = disk->pause_ms < config->max_pause_ms / 2 ? 2 * disk->pause_ms : config->max_pause_ms;
    bool lasted = now_ns - disk->opened_ns >= config->max_pause_ms * SL_NS_PER_MS && !disk->failure[0];
    disk->pause_ms = disk->pause_ms == 0 || lasted ? config->pause_ms : longer_ms;
    disk->retry_ns = now_ns + disk->pause_ms * SL_NS_PER_MS;
    disk->n_failures++;
    snprintf(disk->failure, sizeof disk->failure, "%s", why);
}

// Stops using the disk until the writer has opened it again; logs once.
static void give_up(struct sl_disk *disk, const struct sl_error *err) {
    pthread_mutex_lock(&disk->mutex);
    bool first = !disk->failure[0];
    if (first) {
        pause_longer(disk, err->text);
        atomic_store(&disk->failed, true);
        sl_log_error("disk", "the store goes on without its disk for %lld ms, and tries it again then: %s",
                     (long long)disk->pause_ms, err->text);
    }
    pthread_mutex_unlock(&disk->mutex);
    if (first) {
        (void)sl_queue_try_push(disk->offers, NULL); // if the queue is full, the writer is awake already
    }
}

static bool is_used(struct sl_disk *disk) {
    return disk && !atomic_load(&disk->failed);
}

bool sl_disk_answers(struct sl_disk *disk) {
    return is_used(disk) && !atomic_load(&disk->config.progress_counter->is_still);
}

// ---- writing --------------------------------------------------------------------------------------------------------

static bool in_time(void *arg) {
    struct sl_disk *disk = arg;
    sl_progress_counter_tick(disk->config.progress_counter); // called between pieces, so one of them was done
    return sl_now_ns() < atomic_load(&disk->deadline_ns);
}

// Holds what was offered. NULL: it is in memory no more.
static struct sl_stored *hold(struct sl_disk *disk, const struct sl_capsule_id *key) {
    struct sl_stored *stored = sl_capsule_cache_hold(disk->config.capsule_cache, key);
    return stored || !disk->config.hold_fn ? stored : disk->config.hold_fn(disk->config.arg, key);
}

static bool is_in_memory(struct sl_disk *disk, const struct sl_capsule_id *key) {
    struct sl_stored *stored = hold(disk, key);
    if (stored) {
        sl_capsule_cache_release(disk->config.capsule_cache, stored);
    }
    return stored != NULL;
}

// Copies a capsule from the capsule cache to the disk, but no checkpoint: the next one replaces it, and no file says
// that it is one. SL_ERR_NOT_FOUND: it was evicted before its turn.
static enum sl_status copy_down(struct sl_disk *disk, const struct sl_capsule_id *key, struct sl_error *err) {
    struct sl_stored *stored = hold(disk, key);
    SL_FAIL_IF(!stored, err, SL_ERR_NOT_FOUND, "evicted before it was written");
    enum sl_status status =
        stored->keys.is_checkpoint ? SL_OK : sl_disk_folder_write(disk->folder, stored, in_time, disk, err);
    atomic_store(&stored->disk_has_no_room, status == SL_ERR_EXHAUSTED);
    if (status == SL_OK && !is_in_memory(disk, key)) { // it was forgotten meanwhile
        status = sl_disk_folder_forget(disk->folder, key, err);
    }
    sl_capsule_cache_release(disk->config.capsule_cache, stored);
    return status;
}

static void write_one(struct sl_disk *disk, const struct sl_capsule_id *key) {
    struct sl_error err = {0};
    enum sl_status status = copy_down(disk, key, &err);
    if (status == SL_ERR_NOT_FOUND || status == SL_ERR_EXHAUSTED || status == SL_ERR_CANCELLED) {
        atomic_fetch_add(&disk->n_dropped, 1);
        sl_log_debug("disk", "a capsule was not written: %s", err.text);
    } else if (status != SL_OK && status != SL_ERR_EXISTS) {
        give_up(disk, &err);
    }
}

// Removes the hidden file, which no key leads to. With under_key also what was written under the key since, or found
// when the folder was opened again.
static enum sl_status forget(struct sl_disk *disk, const struct offer *offer, bool under_key, struct sl_error *err) {
    enum sl_status status = SL_OK;
    if (offer->opening == disk->n_openings) {
        status = sl_disk_folder_remove(disk->folder, offer->file, err);
    }
    SL_THEN_IF(status, under_key, sl_disk_folder_forget(disk->folder, &offer->key, err));
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

static void take_offer(struct sl_disk *disk, const struct offer *offer) {
    struct sl_error err = {0};
    enum sl_status status =
        offer->forget ? forget(disk, offer, true, &err) : sl_disk_folder_touch(disk->folder, &offer->key, &err);
    if (status == SL_ERR_NOT_FOUND) {
        write_one(disk, &offer->key);
    } else if (status != SL_OK) {
        give_up(disk, &err);
    }
}

// Takes the folder for exclusive use: the writer is the caller, and readers are locked out. False: a thread is reading.
static bool take_folder(struct sl_disk *disk, struct sl_disk_folder **folder_out) {
    SL_LOCKED(&disk->mutex);
    bool taken = !disk->recalling;
    if (taken) {
        disk->recalling = true;
        disk->recall_begin_ns = sl_now_ns();
        *folder_out = disk->folder;
        disk->folder = NULL;
    } else { // that thread hangs, or is about to fail as well
        disk->retry_ns = sl_deadline_in_ms(disk->pause_ms);
    }
    return taken;
}

// Opens the folder, which evicts by the policy of the capsule cache.
static enum sl_status open_folder(struct sl_disk *disk, struct sl_disk_folder **folder_out, struct sl_error *err) {
    SL_TRY(sl_disk_folder_open(disk->config.folder, disk->on, disk->config.bytes, disk->config.protected, folder_out,
                               err));
    sl_disk_folder_evict_by(*folder_out, sl_capsule_cache_eviction(disk->config.capsule_cache));
    disk->on = sl_disk_folder_disk(*folder_out);
    return SL_OK;
}

static void open_anew(struct sl_disk *disk) {
    struct sl_disk_folder *folder = NULL;
    struct sl_error err = {0};
    if (!take_folder(disk, &folder)) {
        return;
    }
    sl_disk_folder_close(&folder);
    enum sl_status status = open_folder(disk, &folder, &err);
    pthread_mutex_lock(&disk->mutex);
    if (status == SL_OK) {
        disk->folder = folder;
        disk->n_openings++;
        disk->failure[0] = '\0';
        disk->opened_ns = sl_now_ns();
        atomic_store(&disk->failed, false);
    } else {
        pause_longer(disk, err.text);
    }
    int64_t pause_ms = disk->pause_ms;
    disk->recalling = disk->is_silent = false;
    pthread_cond_signal(&disk->recalled);
    pthread_mutex_unlock(&disk->mutex);
    if (status == SL_OK) {
        sl_log_warn("disk", "%s is used again", disk->config.folder);
    } else {
        sl_log_warn("disk", "the store tries its disk again in %lld ms: %s", (long long)pause_ms, err.text);
    }
}

// Returns when to try the disk again.
static int64_t retry_ns(struct sl_disk *disk) {
    SL_LOCKED(&disk->mutex);
    return disk->failure[0] ? disk->retry_ns : SL_NO_DEADLINE;
}

static void *writer_main(void *arg) {
    struct sl_disk *disk = arg;
    void *offer;
    enum sl_status status;
    while ((status = sl_queue_pop(disk->offers, retry_ns(disk), &offer)) == SL_OK || status == SL_ERR_DEADLINE) {
        if (status == SL_ERR_DEADLINE) {
            atomic_fetch_add(&disk->config.progress_counter->n_waiting, 1);
            open_anew(disk);
            atomic_fetch_sub(&disk->config.progress_counter->n_waiting, 1);
        } else if (offer) {
            if (is_used(disk) && in_time(disk)) {
                take_offer(disk, offer);
            }
            atomic_fetch_sub(&disk->config.progress_counter->n_waiting, 1);
            free(offer);
        }
        sl_progress_counter_tick(disk->config.progress_counter);
    }
    return NULL;
}

// Returns false if the queue has no room.
static bool push(struct sl_disk *disk, const struct offer *what) {
    struct offer *offer = malloc(sizeof *offer);
    if (!offer) {
        return false;
    }
    *offer = *what;
    atomic_fetch_add(&disk->config.progress_counter->n_waiting, 1);
    bool is_pushed = sl_queue_try_push(disk->offers, offer) == SL_OK;
    if (!is_pushed) {
        atomic_fetch_sub(&disk->config.progress_counter->n_waiting, 1);
        free(offer);
    }
    return is_pushed;
}

void sl_disk_offer(struct sl_disk *disk, const struct sl_capsule_id *key) {
    if (is_used(disk) && !push(disk, &(struct offer){.key = *key})) {
        atomic_fetch_add(&disk->n_dropped, 1);
    }
}

bool sl_disk_forget(struct sl_disk *disk, const struct sl_capsule_id *key) {
    if (!is_used(disk)) {
        return false;
    }
    struct offer offer = {.key = *key, .forget = true};
    struct sl_disk_entry entry;
    pthread_mutex_lock(&disk->mutex); // keeps the folder open meanwhile
    bool is_there = disk->folder && sl_disk_index_get(sl_disk_folder_index(disk->folder), key, &entry);
    if (is_there) {
        offer.file = entry.id;
        offer.opening = disk->n_openings;
    }
    // Asks even if it is not there: the writer may be writing it. If the queue is full, the capsule stays and is
    // evicted as least recently used.
    bool is_pushed = push(disk, &offer);
    if (is_there && is_pushed) {
        (void)sl_disk_folder_hide(disk->folder, &entry);
    }
    pthread_mutex_unlock(&disk->mutex);
    if (!is_pushed) {
        sl_log_info("disk", "a capsule that nobody wants stays for now: the disk's thread has too much to do");
    }
    return is_there;
}

bool sl_disk_get(struct sl_disk *disk, const struct sl_capsule_id *key, struct sl_disk_entry *entry_out) {
    if (!is_used(disk)) {
        return false;
    }
    SL_LOCKED(&disk->mutex); // keeps the folder open meanwhile
    return disk->folder && sl_disk_index_get(sl_disk_folder_index(disk->folder), key, entry_out);
}

bool sl_disk_begins_with(struct sl_disk *disk, const struct sl_capsule_id *key, const struct sl_hash128 *prefix_hash) {
    if (!is_used(disk)) {
        return false;
    }
    SL_LOCKED(&disk->mutex);
    return disk->folder && sl_disk_index_begins_with(sl_disk_folder_index(disk->folder), key, prefix_hash);
}

enum sl_disk_copy sl_disk_keep(struct sl_disk *disk, struct sl_stored *stored) {
    if (!disk) {
        return SL_DISK_NONE;
    }
    bool is_answering = sl_disk_answers(disk), is_written = is_answering && sl_disk_holds(disk, &stored->keys.id) > 0;
    atomic_store(&stored->is_on_disk, is_written);
    if (!is_answering || is_written) {
        return is_written ? SL_DISK_WRITTEN : SL_DISK_FAILED;
    }
    if (sl_now_ns() >= atomic_load(&stored->disk_again_ns)) {
        atomic_store(&stored->disk_again_ns, sl_deadline_in_ms(SL_DISK_AGAIN_MS));
        sl_disk_offer(disk, &stored->keys.id);
    }
    return atomic_load(&stored->disk_has_no_room) ? SL_DISK_NO_ROOM : SL_DISK_WAITING;
}

// ---- reading back ---------------------------------------------------------------------------------------------------

// Compares the token counts of head and header; the capsule cache checks the rest. SL_ERR_INVALID: they differ.
// SL_ERR_UNSUPPORTED: it is a segment, which its own key has found (kvstore/remote_kv/document_layers.h restores it).
static enum sl_status check_tokens(const struct sl_disk_entry *found, const struct sl_capsule_bytes *capsule,
                                   struct sl_error *err) {
    struct sl_capsule_info info;
    SL_FAIL_IF(sl_kv_segment_head_is(capsule->header, capsule->header_bytes), err, SL_ERR_UNSUPPORTED,
               "it is a segment of a document");
    SL_TRY(sl_capsule_read_header(capsule->header, capsule->header_bytes, &info, err));
    SL_FAIL_IF(info.n_tokens != found->head.n_tokens, err, SL_ERR_INVALID, "its file says %lld tokens, its header %lld",
               (long long)found->head.n_tokens, (long long)info.n_tokens);
    return SL_OK;
}

// Reads a capsule into the arena. SL_ERR_NOT_FOUND, SL_ERR_EXHAUSTED, SL_ERR_IO.
static enum sl_status read_in(struct sl_disk *disk, const struct sl_disk_entry *found,
                              struct sl_capsule_bytes *capsule_out, struct sl_capsule_keys *keys_out,
                              struct sl_error *err) {
    struct sl_capsule_bytes capsule = {0};
    SL_TRY(sl_room_take_block(disk->config.room, "disk", (size_t)found->head.body_bytes, &capsule.body, err));
    SL_TRY_OR(sl_disk_folder_read(disk->folder, found, &disk->unread, capsule.body, &capsule, keys_out, err),
              sl_capsule_bytes_free(&capsule, disk->config.room->arena));
    *capsule_out = capsule;
    return SL_OK;
}

// Reads a capsule into the arena and caches it. SL_ERR_NOT_FOUND, SL_ERR_EXHAUSTED, SL_ERR_IO.
static enum sl_status bring_back(struct sl_disk *disk, const struct sl_disk_entry *found, struct sl_error *err) {
    struct sl_capsule_bytes capsule;
    struct sl_capsule_keys keys;
    struct sl_error why = {0};
    SL_TRY(read_in(disk, found, &capsule, &keys, err));
    enum sl_status status = check_tokens(found, &capsule, &why);
    SL_THEN(status, sl_capsule_cache_put(disk->config.capsule_cache, &keys, &capsule, &why));
    free(keys.hashes);
    if (status != SL_OK) {
        sl_capsule_bytes_free(&capsule, disk->config.room->arena);
        sl_fail(err, status, "%s", why.text);
    }
    if (status == SL_ERR_INVALID) { // perhaps of another version
        status = sl_disk_folder_discard(disk->folder, found, why.text, err);
        SL_THEN(status, SL_ERR_NOT_FOUND);
    }
    return status == SL_ERR_EXISTS ? SL_OK : status; // it was shipped to this store meanwhile
}

// Pins the capsule that was found, by its own key, if it is in the capsule cache: a younger capsule may have taken its
// prefix over and been evicted since. The capsule cache's list of its prefixes was verified; the index's entry of this
// prefix was not.
static struct sl_stored *pin_found(struct sl_disk *disk, const struct sl_disk_entry *found,
                                   const struct sl_prefix *prefix) {
    int64_t covered;
    struct sl_stored *stored = sl_capsule_cache_pin(disk->config.capsule_cache, &found->head.key, &covered);
    for (size_t i = 0; stored && i <= stored->keys.n_hashes; i++) {
        struct sl_prefix own = sl_capsule_prefix(&stored->keys, stored->n_tokens, i);
        if (memcmp(&own, prefix, sizeof own) == 0) {
            return stored;
        }
    }
    if (stored) {
        sl_capsule_cache_unpin(disk->config.capsule_cache, stored);
    }
    return NULL;
}

static struct sl_stored *recall(struct sl_disk *disk, const struct sl_prefix *prefixes, size_t n_prefixes,
                                size_t *at_out) {
    struct sl_disk_entry found;
    size_t at = 0;
    struct sl_error err = {0};
    struct sl_stored *stored = sl_capsule_cache_pin_longest(disk->config.capsule_cache, prefixes, n_prefixes, at_out);
    if (stored) { // another thread read it back while we waited
        return stored;
    }
    int64_t begin_ns = sl_now_ns();
    enum sl_status status;
    do { // a damaged capsule has been removed: search again
        bool is_there = sl_disk_index_find(sl_disk_folder_index(disk->folder), prefixes, n_prefixes, &at, &found);
        status = is_there ? SL_OK : SL_ERR_NOT_FOUND;
        stored = is_there ? pin_found(disk, &found, &prefixes[at]) : NULL;
    } while (status == SL_OK && !stored && (status = bring_back(disk, &found, &err)) == SL_ERR_NOT_FOUND);
    if (status == SL_OK) {
        if (!stored) {
            stored = pin_found(disk, &found, &prefixes[at]);
            atomic_fetch_add(&disk->n_hits, 1);
            sl_log_debug("disk", "capsule tokens=%lld bytes=%llu is back after %.1f ms", (long long)found.head.n_tokens,
                         (unsigned long long)found.head.body_bytes, (double)(sl_now_ns() - begin_ns) / SL_NS_PER_MS);
        }
        *at_out = at;
        sl_disk_offer(disk, &found.head.key); // counts the use
    } else if (status == SL_ERR_IO) {
        give_up(disk, &err);
    } else if (status != SL_ERR_NOT_FOUND) {
        sl_log_info("disk", "a capsule was not read back: %s", err.text);
    }
    return stored;
}

// Call with the lock held, while another thread reads.
static void note_silence(struct sl_disk *disk) {
    int64_t ms = (sl_now_ns() - disk->recall_begin_ns) / SL_NS_PER_MS;
    if (ms >= disk->config.silent_ms && !disk->is_silent) {
        disk->is_silent = true;
        sl_log_warn("disk", "%s has not answered for %lld ms: nobody waits for it until it does", disk->config.folder,
                    (long long)ms);
    }
}

// Takes the one turn to read the disk. False: another thread still reads at the deadline, or for silent_ms.
static bool take_turn(struct sl_disk *disk, int64_t deadline_ns) {
    enum sl_status status = SL_OK;
    SL_LOCKED(&disk->mutex);
    while (disk->recalling && status == SL_OK) {
        int64_t silent_ns = disk->recall_begin_ns + disk->config.silent_ms * SL_NS_PER_MS;
        status = sl_cond_wait_until(&disk->recalled, &disk->mutex, deadline_ns < silent_ns ? deadline_ns : silent_ns);
    }
    bool our_turn = !disk->recalling;
    if (our_turn) {
        disk->recalling = true;
        disk->recall_begin_ns = sl_now_ns();
    } else {
        note_silence(disk);
    }
    return our_turn;
}

static void end_turn(struct sl_disk *disk) {
    SL_LOCKED(&disk->mutex);
    disk->recalling = disk->is_silent = false;
    pthread_cond_signal(&disk->recalled);
}

struct sl_stored *sl_disk_recall(struct sl_disk *disk, const struct sl_prefix *prefixes, size_t n_prefixes,
                                 int64_t deadline_ns, size_t *at_out) {
    if (!disk || !sl_disk_answers(disk) || n_prefixes == 0 || !take_turn(disk, deadline_ns)) {
        return NULL;
    }
    struct sl_stored *stored = is_used(disk) ? recall(disk, prefixes, n_prefixes, at_out) : NULL; // it may have failed
    end_turn(disk);
    return stored;
}

enum sl_status sl_disk_read(struct sl_disk *disk, const struct sl_capsule_id *key, int64_t deadline_ns,
                            struct sl_capsule_bytes *capsule_out, struct sl_error *err) {
    SL_FAIL_IF(!disk || !sl_disk_answers(disk), err, SL_ERR_NOT_FOUND, "there is no disk that works");
    SL_FAIL_IF(!take_turn(disk, deadline_ns), err, SL_ERR_DEADLINE, "the disk is still read for others");
    struct sl_disk_entry found;
    struct sl_capsule_keys keys = {.hashes = NULL};
    bool is_there = is_used(disk) && sl_disk_index_get(sl_disk_folder_index(disk->folder), key, &found);
    enum sl_status status =
        is_there ? read_in(disk, &found, capsule_out, &keys, err) : sl_fail(err, SL_ERR_NOT_FOUND, "not on disk");
    free(keys.hashes);
    end_turn(disk);
    if (status == SL_ERR_IO) {
        give_up(disk, err);
    }
    return status;
}

// ---- life -----------------------------------------------------------------------------------------------------------

enum sl_status sl_disk_open(const struct sl_disk_config *config, struct sl_disk **disk_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_disk, disk, err, "disk: out of memory");
    disk->config = *config;
    *config->progress_counter = (struct sl_progress_counter){.name = "disk", .is_spared = true};
    disk->opened_ns = sl_now_ns();
    atomic_init(&disk->deadline_ns, SL_NO_DEADLINE);
    pthread_mutex_init(&disk->mutex, NULL);
    sl_cond_init(&disk->recalled);
    disk->n_openings = 1;
    enum sl_status status = open_folder(disk, &disk->folder, err);
    SL_THEN(status, sl_queue_create(config->max_offers, &disk->offers, err));
    if (status == SL_OK) {
        status = sl_thread_start("disk", writer_main, disk, &disk->writer, err);
        disk->has_writer = status == SL_OK;
    }
    SL_TRY_OR(status, sl_disk_close(&disk, 0));
    int64_t n_capsules, bytes;
    sl_disk_folder_get_size(disk->folder, &n_capsules, &bytes);
    sl_log_info("disk", "%s capsules=%lld bytes=%lld", config->folder, (long long)n_capsules, (long long)bytes);
    *disk_out = disk;
    return SL_OK;
}

static void write_the_capsule_cache(struct sl_disk *disk) {
    if (!disk->folder) {
        return; // it had failed, as the log says
    }
    struct sl_capsule_id *keys = malloc(sizeof *keys * MAX_CLOSING);
    if (!keys) {
        sl_log_warn("disk", "no memory to write what is in memory alone");
        return;
    }
    size_t n = sl_capsule_cache_list(disk->config.capsule_cache, keys, MAX_CLOSING), n_done = 0;
    for (; n_done < n && is_used(disk) && in_time(disk); n_done++) {
        write_one(disk, &keys[n_done]);
    }
    size_t n_left = 0;
    for (struct sl_disk_entry entry; n_done < n; n_done++) {
        n_left += !sl_disk_index_get(sl_disk_folder_index(disk->folder), &keys[n_done], &entry);
    }
    if (n_left > 0) {
        sl_log_warn("disk", "capsules=%zu were not written within the time for stopping", n_left);
    }
    free(keys);
}

// Writes what is in memory of the offers, and frees them.
static void write_all(struct sl_disk *disk, struct offer *offers) {
    while (offers) {
        struct offer *next = offers->next;
        if (disk->folder && is_used(disk) && in_time(disk) && is_in_memory(disk, &offers->key)) {
            write_one(disk, &offers->key);
        }
        free(offers);
        offers = next;
    }
}

// Frees the offers. A capsule that was offered and written again since is kept.
static void forget_all(struct sl_disk *disk, struct offer *offers) {
    while (offers) {
        struct offer *next = offers->next;
        struct sl_error err = {0};
        if (disk->folder && is_used(disk) && in_time(disk) &&
            forget(disk, offers, !sl_capsule_cache_has(disk->config.capsule_cache, &offers->key), &err) != SL_OK) {
            give_up(disk, &err);
        }
        free(offers);
        offers = next;
    }
}

void sl_disk_close(struct sl_disk **disk_inout, int64_t deadline_ns) {
    SL_TAKE_OR_RETURN(disk, disk_inout);
    atomic_store(&disk->deadline_ns, deadline_ns);
    void *item;
    struct offer *unwanted = NULL, *others = NULL; // others: evicted, or segments of documents
    while (disk->offers && sl_queue_pop(disk->offers, 0, &item) == SL_OK) {
        struct offer *offer = item; // NULL: no request
        if (offer && offer->forget) {
            offer->next = unwanted;
            unwanted = offer;
        } else if (offer && disk->has_writer && !sl_capsule_cache_has(disk->config.capsule_cache, &offer->key)) {
            offer->next = others;
            others = offer;
        } else {
            free(offer); // it is in the capsule cache
        }
    }
    if (disk->has_writer) {
        sl_queue_close(disk->offers);
        pthread_join(disk->writer, NULL);
        write_the_capsule_cache(disk);
    }
    write_all(disk, others);
    forget_all(disk, unwanted);
    atomic_store(&disk->config.progress_counter->n_waiting, 0);
    sl_queue_destroy(&disk->offers);
    sl_disk_folder_close(&disk->folder);
    pthread_cond_destroy(&disk->recalled);
    pthread_mutex_destroy(&disk->mutex);
    free(disk);
}

void sl_disk_get_stats(struct sl_disk *disk, struct sl_disk_stats *stats_out) {
    *stats_out = (struct sl_disk_stats){0};
    if (!disk) {
        return;
    }
    stats_out->n_hits = atomic_load(&disk->n_hits);
    stats_out->n_dropped = atomic_load(&disk->n_dropped);
    SL_LOCKED(&disk->mutex);
    if (disk->folder) {
        sl_disk_folder_get_size(disk->folder, &stats_out->n_capsules, &stats_out->bytes);
    }
    stats_out->n_failures = disk->n_failures;
    stats_out->pause_ms = disk->pause_ms;
    stats_out->is_silent = disk->is_silent || atomic_load(&disk->config.progress_counter->is_still);
    memcpy(stats_out->failure, disk->failure, sizeof stats_out->failure);
}
