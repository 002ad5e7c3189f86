// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/shared_weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/close.h"
#include "base/hash.h"
#include "base/team.h"
#include "base/version.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/shared_users.h"

#ifndef MFD_NOEXEC_SEAL // of newer headers than Debian 12 has
#define MFD_NOEXEC_SEAL 8U
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_BYTES   ((size_t)2 << 20)
#define ALIGN_BYTES  64
#define MAX_MATRICES 65536
#define SEALS        (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK)
#define STEPS        128 // in which memory is made, if it takes all of the room
#define MOST_STEP    ((size_t)128 << 20)
#define SEAL_TRIES   20 // the kernel refuses while it holds a page for a moment
#define POLL_MS      10

static const char magic[8] = "sl-wght";

// A packed matrix, in the order in which they were packed.
struct record {
    uint64_t shape; // hash of its description
    uint64_t bytes;
};

// At the start of the memfd; records and weights follow.
struct header {
    char magic[sizeof magic];
    char version[16];
    uint64_t layout, key, n_records, bytes, digest; // bytes of all; digest of the records
    _Atomic uint64_t done_bytes;                    // of the model's file, while it is packed
    uint64_t max_records;
};

struct sl_shared_weights {
    struct sl_shared_list list;
    int fd;     // the memfd for reading, which other processes open
    int writer; // for writing; -1: ready, or finished
    struct sl_team *team;
    bool ready;
    bool small;  // the kernel joins no pages here
    bool failed; // taken weights stay here, others get none
    struct header *header;
    struct record *records; // in the memfd
    size_t room, made;      // bytes of address space, and of the memfd
    size_t at;              // where the next matrix goes
    uint64_t n_taken;
};

static size_t round_up(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

static size_t weights_at(uint64_t max_records) {
    return round_up(sizeof(struct header) + (size_t)max_records * sizeof(struct record), 4096);
}

static uint64_t shape_of(const struct sl_matrix *w) {
    uint64_t words[4 + 2 * SL_MAX_PARTS] = {(uint64_t)w->n, (uint64_t)w->k, (uint64_t)w->dtype << 32 | w->format,
                                            (uint64_t)w->gated};
    for (int i = 0; i < SL_MAX_PARTS; i++) {
        words[4 + 2 * i] = (uint64_t)w->parts[i].n;
        words[5 + 2 * i] = w->format == SL_WEIGHT_CODES ? (uint64_t)w->parts[i].dtype : 0;
    }
    return sl_hash(words, sizeof words, 0);
}

// --- address space ---------------------------------------------------------------------------------------------------

// Reserves `bytes` of address space at a multiple of HUGE_BYTES. Returns NULL where there is none.
static char *reserve(size_t bytes) {
    if (bytes > SIZE_MAX / 2) {
        return NULL;
    }
    char *room = mmap(NULL, bytes + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        return NULL;
    }
    char *base = (char *)round_up((uintptr_t)room, HUGE_BYTES);
    if (base > room) {
        munmap(room, (size_t)(base - room));
    }
    if (base < room + HUGE_BYTES) {
        munmap(base + bytes, (size_t)(room + HUGE_BYTES - base));
    }
    return base;
}

// Maps all of the memfd for reading, in place of what is there.
static bool map_to_read(struct sl_shared_weights *s) {
    void *at = mmap(s->header, s->made, PROT_READ, MAP_SHARED | MAP_FIXED, s->fd, 0);
    if (at == MAP_FAILED) {
        return false;
    }
    (void)madvise(at, s->made, MADV_POPULATE_READ); // now, and not in the first request
    return true;
}

// --- weights that another process has packed -------------------------------------------------------------------------

// A memfd that is looked for.
struct wanted {
    uint64_t key;
    struct header header; // of the one that was found
};

static bool read_header(const struct wanted *wanted, int fd, struct header *out) {
    return pread(fd, out, sizeof *out, 0) == sizeof *out && memcmp(out->magic, magic, sizeof magic) == 0 &&
           strncmp(out->version, SL_VERSION, sizeof out->version) == 0 && out->layout == SL_PACKED_LAYOUT &&
           out->key == wanted->key;
}

// Returns true if the records are whole, and the weights fit the memfd.
static bool check_records(const struct header *header, int fd, size_t size) {
    size_t bytes = (size_t)header->n_records * sizeof(struct record), at = weights_at(header->max_records);
    struct record *records = malloc(bytes + 1);
    bool good = records != NULL && pread(fd, records, bytes, sizeof *header) == (ssize_t)bytes &&
                sl_hash(records, bytes, 0) == header->digest;
    for (uint64_t i = 0; good && i < header->n_records; i++) {
        good = records[i].bytes <= size;
        at = good ? round_up(at, ALIGN_BYTES) + records[i].bytes : at;
        good = good && at <= size;
    }
    free(records);
    return good;
}

// Takes a memfd of ours that is complete and can no longer change.
static bool is_complete(void *arg, int fd) {
    struct wanted *wanted = arg;
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) != 0 || st.st_uid != geteuid() || st.st_size <= 0) {
        return false;
    }
    struct header header;
    if (!read_header(wanted, fd, &header) || header.bytes != (uint64_t)st.st_size ||
        header.max_records > MAX_MATRICES || header.n_records > header.max_records ||
        !check_records(&header, fd, (size_t)st.st_size)) {
        return false;
    }
    wanted->header = header;
    return true;
}

// Takes a memfd that a process is packing.
static bool is_begun(void *arg, int fd) {
    struct wanted *wanted = arg;
    struct header header;
    if (!read_header(wanted, fd, &header)) {
        return false;
    }
    wanted->header = header;
    return true;
}

static enum sl_status attach(struct sl_shared_weights *s, const struct header *header, struct sl_error *err) {
    s->room = s->made = header->bytes;
    s->header = (struct header *)reserve(s->room);
    SL_FAIL_IF(s->header == NULL || !map_to_read(s), err, SL_ERR_EXHAUSTED, "no address space for %zu bytes of weights",
               s->room);
    s->ready = true;
    s->at = weights_at(header->max_records);
    s->records = (struct record *)(s->header + 1);
    (void)sl_shared_list_write(&s->list, s->fd, NULL); // without room for the line, others find the other users
    sl_shared_list_unlock(&s->list);
    return SL_OK;
}

// --- new weights -----------------------------------------------------------------------------------------------------

static int make_memfd(uint64_t key) {
    char name[SL_SHARED_NAME_BYTES];
    sl_shared_name(key, name);
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    return fd < 0 && errno == EINVAL ? memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

struct joining {
    char *base;
    size_t bytes, part_bytes; // whole huge pages
    _Atomic bool small;       // the kernel joins no pages
};

// Makes part of the memory, in huge pages if the kernel has them. A failure other than EINVAL is of this moment: some
// pages stay small.
static void join_parts(void *arg, int64_t begin, int64_t end, int member) {
    struct joining *j = arg;
    (void)member;
    for (int64_t part = begin; part < end; part++) {
        size_t first = (size_t)part * j->part_bytes, left = j->bytes - first;
        size_t bytes = left < j->part_bytes ? left : j->part_bytes;
        for (size_t at = first; at < first + bytes;
             at += HUGE_BYTES) { // the kernel joins pages only where it finds one
            (void)madvise(j->base + at, 4096, MADV_POPULATE_WRITE);
        }
        if (madvise(j->base + first, bytes, MADV_COLLAPSE) != 0 && errno == EINVAL) {
            atomic_store(&j->small, true);
        }
    }
}

/*
 * Adds memory to the memfd up to `end`. Memory is made here and not when it is first used, where a lack of it would be a
 * signal. The kernel clears it meanwhile, which takes longer than packing, so the team divides it.
 */
static bool add_memory(struct sl_shared_weights *s, size_t end) {
    struct rlimit limit;
    char *base = (char *)s->header;
    size_t n_pages = (end - s->made) / HUGE_BYTES, threads = (size_t)sl_team_size(s->team);
    if (end > s->room || getrlimit(RLIMIT_FSIZE, &limit) != 0 || end > limit.rlim_cur ||
        ftruncate(s->writer, (off_t)end) != 0 ||
        mmap(base + s->made, end - s->made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, s->writer,
             (off_t)s->made) == MAP_FAILED) {
        return false;
    }
    struct joining joining = {.base = base + s->made, .bytes = end - s->made};
    joining.part_bytes = (n_pages + threads - 1) / threads * HUGE_BYTES;
    sl_team_run(s->team, (int64_t)((joining.bytes + joining.part_bytes - 1) / joining.part_bytes), 1, join_parts,
                &joining);
    s->small = joining.small;
    if (fallocate(s->writer, 0, (off_t)s->made, (off_t)(end - s->made)) == 0) {
        s->made = end;
        return true;
    }
    int why = errno;
    if (ftruncate(s->writer, (off_t)s->made) == 0) { // gives back what there was
        errno = why;
    }
    return false;
}

// Makes memory up to `end`, and more if there is: on a busy machine the kernel joins pages in tens of milliseconds,
// however many.
static bool make_memory(struct sl_shared_weights *s, size_t end) {
    size_t step = s->room / STEPS < MOST_STEP ? s->room / STEPS : MOST_STEP;
    end = round_up(end, HUGE_BYTES);
    return end <= s->made || (step > end - s->made && add_memory(s, round_up(s->made + step, HUGE_BYTES))) ||
           add_memory(s, end);
}

static enum sl_status create(struct sl_shared_weights *s, const struct sl_shared_weights_config *config,
                             struct sl_error *err) {
    char path[64];
    uint32_t max = config->max_matrices < MAX_MATRICES ? config->max_matrices : MAX_MATRICES;
    s->team = config->team;
    s->room = round_up(weights_at(max) + config->room_bytes, HUGE_BYTES);
    s->header = (struct header *)reserve(s->room);
    s->writer = make_memfd(config->key);
    SL_FAIL_IF(s->header == NULL || s->writer < 0, err, SL_ERR_EXHAUSTED, "no shared memory: %s", strerror(errno));
    // Other processes open this descriptor: one that cannot write is no way to change the weights before the seal.
    snprintf(path, sizeof path, "/proc/self/fd/%d", s->writer);
    s->fd = open(path, O_RDONLY | O_CLOEXEC);
    s->at = weights_at(max);
    SL_FAIL_IF(s->fd < 0 || fchmod(s->writer, 0400) != 0 || !make_memory(s, s->at), err, SL_ERR_EXHAUSTED,
               "no shared memory: %s", strerror(errno));
    SL_FAIL_IF(s->small && !config->small_pages, err, SL_ERR_UNSUPPORTED,
               "the kernel has no huge pages for shared memory (before Linux 6.1, or with shmem_enabled=deny)");
    s->records = (struct record *)(s->header + 1);
    memcpy(s->header->magic, magic, sizeof magic);
    snprintf(s->header->version, sizeof s->header->version, "%s", SL_VERSION);
    s->header->layout = SL_PACKED_LAYOUT;
    s->header->key = config->key;
    s->header->max_records = max;
    return sl_shared_list_write(&s->list, s->fd, err); // for the progress; the list stays locked
}

// --- opening ---------------------------------------------------------------------------------------------------------

// Locks the list. Waits while another process packs and makes progress.
static enum sl_status await_lock(struct sl_shared_weights *s, const struct sl_shared_weights_config *config,
                                 struct sl_error *err) {
    int64_t still_ms = config->still_ms > 0 ? config->still_ms : SL_SHARED_STILL_MS;
    int64_t deadline_ns = sl_deadline_in_ms(still_ms);
    enum sl_status status;
    struct wanted packing = {.key = config->key};
    uint64_t seen = 0, most = 0; // another process begins again if this one dies
    while ((status = sl_shared_list_lock(&s->list, err)) == SL_AGAIN && sl_now_ns() < deadline_ns) {
        SL_FAIL_IF(config->stops != NULL && atomic_load(config->stops), err, SL_ERR_CANCELLED,
                   "stopped while another process packed the weights");
        int fd = sl_shared_list_find(&s->list, is_begun, &packing);
        uint64_t done = fd >= 0 ? atomic_load(&packing.header.done_bytes) : seen;
        sl_close(fd);
        deadline_ns = done != seen ? sl_deadline_in_ms(still_ms) : deadline_ns;
        if (done > most && config->done_out != NULL) {
            atomic_store(config->done_out, done);
        }
        most = done > most ? done : most;
        seen = done;
        sl_sleep_ms(POLL_MS);
    }
    return status != SL_AGAIN
               ? status
               : sl_fail(err, SL_ERR_DEADLINE, "another process packs the same weights, without progress for %lld ms",
                         (long long)still_ms);
}

enum sl_status sl_shared_weights_open(const struct sl_shared_weights_config *config,
                                      struct sl_shared_weights **shared_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_shared_weights, s, err, "out of memory");
    s->fd = s->writer = s->list.file = -1;
    enum sl_status status = sl_shared_list_open(&s->list, config->folder, config->key, err);
    SL_THEN(status, await_lock(s, config, err));
    if (status == SL_OK) {
        struct wanted wanted = {.key = config->key};
        s->fd = sl_shared_list_find(&s->list, is_complete, &wanted);
        status = s->fd >= 0 ? attach(s, &wanted.header, err) : create(s, config, err);
    }
    SL_TRY_OR(status, sl_shared_weights_close(&s));
    *shared_out = s;
    return SL_OK;
}

// --- taking ----------------------------------------------------------------------------------------------------------

bool sl_shared_weights_are_ready(const struct sl_shared_weights *s) {
    return s != NULL && s->ready;
}

bool sl_shared_weights_hold(const struct sl_shared_weights *s, const struct sl_matrix *w) {
    return s != NULL && s->ready && s->n_taken < s->header->n_records && s->records[s->n_taken].shape == shape_of(w);
}

void *sl_shared_weights_take(struct sl_shared_weights *s, const struct sl_matrix *w, size_t bytes) {
    size_t at = round_up(s->at, ALIGN_BYTES);
    const struct record record = {shape_of(w), bytes};
    if (s->ready) {
        if (s->n_taken >= s->header->n_records || memcmp(&s->records[s->n_taken], &record, sizeof record) != 0) {
            return NULL;
        }
    } else {
        s->failed = s->failed || s->n_taken >= s->header->max_records || bytes > s->room || !make_memory(s, at + bytes);
        if (s->failed) {
            return NULL;
        }
        s->records[s->n_taken] = record;
    }
    s->n_taken++;
    s->at = at + bytes;
    return (char *)s->header + at;
}

void sl_shared_weights_progress(struct sl_shared_weights *s, size_t done_bytes) {
    if (s != NULL && s->writer >= 0) {
        atomic_store(&s->header->done_bytes, done_bytes);
    }
}

void sl_shared_weights_progress_within(struct sl_shared_weights *s) {
    if (s != NULL && s->writer >= 0) {
        atomic_fetch_add(&s->header->done_bytes, 1);
    }
}

// --- finishing -------------------------------------------------------------------------------------------------------

// Releases address space, and the memory mapped there, that is not used.
static void trim(struct sl_shared_weights *s, size_t kept) {
    if (s->room > kept) {
        munmap((char *)s->header + kept, s->room - kept);
        s->room = kept;
    }
}

static enum sl_status seal(struct sl_shared_weights *s, struct sl_error *err) {
    s->made = round_up(s->at, HUGE_BYTES);
    s->header->n_records = s->n_taken;
    s->header->bytes = s->made;
    s->header->digest = sl_hash(s->records, (size_t)s->n_taken * sizeof *s->records, 0);
    trim(s, s->made); // the kernel seals only what is mapped nowhere to be written
    SL_FAIL_IF(ftruncate(s->writer, (off_t)s->made) != 0 || !map_to_read(s), err, SL_ERR_INTERNAL,
               "packed weights cannot be mapped: %s", strerror(errno));
    int sealed = -1;
    for (int i = 0; i < SEAL_TRIES && sealed != 0; i++) {
        sealed = fcntl(s->writer, F_ADD_SEALS, SEALS | F_SEAL_SEAL);
        if (sealed != 0) {
            sl_sleep_ms(POLL_MS);
        }
    }
    return sealed == 0 ? SL_OK : sl_fail(err, SL_ERR_IO, "packed weights cannot be sealed: %s", strerror(errno));
}

enum sl_status sl_shared_weights_finish(struct sl_shared_weights *s, struct sl_error *err) {
    enum sl_status status;
    if (s->ready) {
        status = s->n_taken == s->header->n_records
                     ? SL_OK
                     : sl_fail(err, SL_ERR_PEER_STALE, "shared weights are of other matrices");
    } else {
        status = s->failed
                     ? sl_fail(err, SL_ERR_EXHAUSTED, "no shared memory for more than %zu bytes of weights", s->at)
                     : seal(s, err);
        trim(s, s->made);
        close(s->writer);
        s->writer = -1;
        sl_shared_list_unlock(&s->list);
    }
    return status;
}

size_t sl_shared_weights_bytes(const struct sl_shared_weights *s) {
    return s->made;
}

int sl_shared_weights_users(const struct sl_shared_weights *s) {
    return sl_shared_list_count(&s->list);
}

void sl_shared_weights_close(struct sl_shared_weights **shared) {
    struct sl_shared_weights *s = *shared;
    if (s == NULL) {
        return;
    }
    if (s->header != NULL) {
        munmap(s->header, s->room);
    }
    sl_close(s->writer);
    sl_close(s->fd);
    sl_shared_list_leave(&s->list);
    free(s);
    *shared = NULL;
}
