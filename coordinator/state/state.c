// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see state.h.
 * Invariants: the writer alone makes, writes and takes out files; others add, and mark what is to go. Lock order: a job's log, then ours.
 */
#include "coordinator/state/state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "coordinator/state/buffer.h"
#include "coordinator/state/folder.h"

#define LOOK_MS     200  // for files whose jobs have been forgotten
#define PAUSE_MS    3    // between two rounds: what comes meanwhile is written together
#define SYNC_MS     1000 // between two times that files are put on the disk
#define SILENT_MS   2000 // a disk that takes longer to write is waited for by nobody
#define MAKE_WAY_MS 1000 // where others fill the disk, at most one ended job goes for them in this time
#define MAX_SYNCED  8    // files one by one

struct kept_file {
    struct kept_file *next;
    struct sl_job *job; // a reference
    atomic_bool dropped, dirty, ended, gone;
    int fd; // -1: none. Changed under the lock
    // Of the writer.
    struct sl_record_chain chain;
    uint8_t *begin; // what the file begins with, until it is written
    size_t n_begin;
    size_t n_events, bytes; // written
    bool made;
};

struct sl_state {
    struct sl_state_folder folder;
    int64_t max_bytes;
    uint64_t model;
    pthread_mutex_t mutex;
    pthread_cond_t wake;     // the writer
    pthread_cond_t ends;     // the other thread
    struct kept_file *files; // newest first
    bool stopping, suspended, running;
    atomic_bool news, folder_changed, silent;
    _Atomic int64_t bytes, n_jobs, n_lost, busy_since_ns; // 0: the writer does not wait for the disk
    pthread_t writer, syncer;
    // Of the writer.
    struct sl_record_buffer buffer;
    bool is_short;
    int64_t make_way_at_ns;
};

// Of a log, under its lock.
static void take_news(void *arg) {
    struct sl_state *state = arg;
    if (!atomic_exchange(&state->news, true)) {
        pthread_mutex_lock(&state->mutex);
        pthread_cond_signal(&state->wake);
        pthread_mutex_unlock(&state->mutex);
    }
}

// ---- files that go ------------------------------------------------------------------------------------------------------

static void close_file(struct sl_state *state, struct kept_file *file) {
    pthread_mutex_lock(&state->mutex);
    int fd = file->fd;
    file->fd = -1;
    pthread_mutex_unlock(&state->mutex);
    if (fd >= 0) {
        close(fd);
    }
}

static void discard(struct sl_state *state, struct kept_file *file) {
    close_file(state, file);
    if (file->made) {
        sl_state_folder_remove(&state->folder, file->job->id);
        atomic_fetch_sub(&state->bytes, sl_state_blocks(file->bytes));
        atomic_fetch_sub(&state->n_jobs, 1);
        atomic_store(&state->folder_changed, true);
    }
    file->gone = true;
}

// Of jobs that have ended, the one that did so first. False: there is none.
static bool discard_oldest(struct sl_state *state) {
    struct kept_file *oldest = NULL;
    pthread_mutex_lock(&state->mutex);
    struct kept_file *file = state->files;
    pthread_mutex_unlock(&state->mutex);
    for (; file; file = file->next) {
        if (file->ended && !file->gone && (!oldest || sl_job_ended_ns(file->job) <= sl_job_ended_ns(oldest->job))) {
            oldest = file;
        }
    }
    if (oldest) {
        discard(state, oldest);
    }
    return oldest != NULL;
}

static void free_file(struct kept_file *file) {
    sl_job_unref(&file->job);
    free(file->begin);
    free(file);
}

static void take_out_gone(struct sl_state *state) {
    struct kept_file *gone = NULL;
    pthread_mutex_lock(&state->mutex);
    for (struct kept_file **at = &state->files; *at;) {
        struct kept_file *file = *at;
        if (file->gone) {
            *at = file->next;
            file->next = gone;
            gone = file;
        } else {
            at = &file->next;
        }
    }
    pthread_mutex_unlock(&state->mutex);
    while (gone) {
        struct kept_file *file = gone;
        gone = file->next;
        free_file(file);
    }
}

// Whether jobs can be written: said when that changes.
static void note_room(struct sl_state *state, bool is_short, const char *why) {
    if (is_short && !state->is_short) {
        sl_log_warn("state", "%s: jobs go on that a restart will not find: %s", state->folder.path, why);
    } else if (!is_short && state->is_short) {
        sl_log_info("state", "%s: jobs are written again", state->folder.path);
    }
    state->is_short = is_short;
}

// It goes on without a file.
static void lose(struct sl_state *state, struct kept_file *file, const char *why) {
    atomic_fetch_add(&state->n_lost, 1);
    note_room(state, true, why);
    discard(state, file);
    sl_event_log_release(&file->job->log);
}

// ---- writing ------------------------------------------------------------------------------------------------------------

static bool add_end(struct sl_record_buffer *buffer, struct sl_record_chain *chain, struct sl_job *job) {
    struct sl_job_report report;
    sl_job_describe(job, &report);
    uint8_t *payload = malloc(sluice__v1__job__get_packed_size(&report.message) + 1);
    bool added = payload && sl_record_buffer_add(buffer, chain, SL_RECORD_END, payload,
                                                 sluice__v1__job__pack(&report.message, payload));
    free(payload);
    return added;
}

// What is new of a job. False: there is no memory.
static bool gather(struct sl_record_buffer *buffer, const struct kept_file *file, size_t n_events, size_t end_at,
                   struct sl_record_chain *chain) {
    buffer->n = 0;
    if (file->begin && !sl_record_buffer_add_bytes(buffer, file->begin, file->n_begin)) {
        return false;
    }
    for (size_t i = file->n_events; i < n_events; i++) {
        size_t n;
        const uint8_t *packed = sl_event_log_packed(&file->job->log, i, &n);
        if ((i == end_at && !add_end(buffer, chain, file->job)) ||
            !sl_record_buffer_add(buffer, chain, SL_RECORD_EVENT, packed, n)) {
            return false;
        }
    }
    return true;
}

static enum sl_status make_file(struct sl_state *state, struct kept_file *file, struct sl_error *err) {
    int fd = sl_state_folder_make(&state->folder, file->job->id);
    if (fd < 0) {
        bool is_full = errno == ENOSPC || errno == EDQUOT;
        return sl_fail(err, is_full ? SL_ERR_EXHAUSTED : SL_ERR_IO, "%s cannot be made: %s", file->job->id,
                       strerror(errno));
    }
    pthread_mutex_lock(&state->mutex);
    file->fd = fd;
    pthread_mutex_unlock(&state->mutex);
    file->made = true;
    atomic_fetch_add(&state->n_jobs, 1);
    atomic_store(&state->folder_changed, true);
    return SL_OK;
}

static enum sl_status write_buffer(struct sl_state *state, struct kept_file *file, struct sl_error *err) {
    enum sl_status status = file->made ? SL_OK : make_file(state, file, err);
    return status == SL_OK ? sl_state_write(file->fd, file->bytes, state->buffer.bytes, state->buffer.n, err) : status;
}

// The buffer goes behind what the file has; jobs that have ended make room.
static enum sl_status append(struct sl_state *state, struct kept_file *file, struct sl_error *err) {
    int64_t grows = sl_state_blocks(file->bytes + state->buffer.n) - sl_state_blocks(file->bytes);
    while (atomic_load(&state->bytes) + grows > state->max_bytes) {
        if (!discard_oldest(state)) {
            return sl_fail(err, SL_ERR_EXHAUSTED, "they need more than --state-bytes, %" PRId64, state->max_bytes);
        }
    }
    enum sl_status status = write_buffer(state, file, err);
    if (status == SL_ERR_EXHAUSTED && sl_now_ns() >= state->make_way_at_ns && discard_oldest(state)) {
        status = write_buffer(state, file, err);
        state->make_way_at_ns = sl_deadline_in_ms(MAKE_WAY_MS);
    }
    if (status == SL_OK) {
        atomic_fetch_add(&state->bytes, grows);
        file->bytes += state->buffer.n;
        atomic_store(&file->dirty, true);
    }
    return status;
}

static void write_news(struct sl_state *state, struct kept_file *file) {
    size_t end_at, n = sl_event_log_ready(&file->job->log, &end_at);
    if (n == file->n_events && !file->begin && end_at == SIZE_MAX) {
        return;
    }
    struct sl_record_chain chain = file->chain;
    struct sl_error err = {0};
    enum sl_status status = gather(&state->buffer, file, n, end_at, &chain)
                                ? SL_OK
                                : sl_fail(&err, SL_ERR_EXHAUSTED, "no memory for what is written of a job");
    if (status == SL_OK) {
        atomic_store(&state->busy_since_ns, sl_now_ns());
        status = append(state, file, &err);
        atomic_store(&state->busy_since_ns, 0);
    }
    if (status != SL_OK) {
        lose(state, file, err.text);
        return;
    }
    note_room(state, false, "");
    free(file->begin);
    file->begin = NULL;
    file->chain = chain;
    file->n_events = n;
    file->ended = end_at != SIZE_MAX;
    sl_event_log_tell(&file->job->log, n);
}

static void look_at(struct sl_state *state, struct kept_file *file) {
    if (file->gone) {
        return;
    }
    if (atomic_load(&file->dropped) || atomic_load(&file->job->forgotten)) {
        discard(state, file);
    } else if (file->ended) {
        if (file->fd >= 0 && !atomic_load(&file->dirty)) {
            close_file(state, file);
        }
    } else if (!sl_event_log_is_held(
                   &file->job->log)) { // nobody has waited for it: it tells less than watchers have seen
        discard(state, file);
    } else {
        write_news(state, file);
    }
}

static void look_at_all(struct sl_state *state) {
    pthread_mutex_lock(&state->mutex);
    struct kept_file *file = state->files;
    pthread_mutex_unlock(&state->mutex);
    for (; file; file = file->next) {
        look_at(state, file);
    }
    take_out_gone(state);
    if (atomic_exchange(&state->silent, false)) {
        sl_log_info("state", "%s: the disk answers again", state->folder.path);
    }
}

static void *write_always(void *arg) {
    struct sl_state *state = arg;
    for (;;) {
        int64_t next_ns = sl_deadline_in_ms(LOOK_MS);
        pthread_mutex_lock(&state->mutex);
        while (!state->stopping && !atomic_load(&state->news) &&
               sl_cond_wait_until(&state->wake, &state->mutex, next_ns) == SL_OK) {
        }
        bool stopping = state->stopping, suspended = state->suspended;
        atomic_store(&state->news, false);
        pthread_mutex_unlock(&state->mutex);
        if (!suspended) {
            look_at_all(state);
        }
        if (stopping) {
            return NULL;
        }
        sl_sleep_ms(PAUSE_MS);
    }
}

// ---- putting files on the disk --------------------------------------------------------------------------------------------

// Of files that have changed, descriptors of our own, and how many there are. Whoever has more than `most` has the file system synced:
// every fdatasync() makes it write down its journal, and whoever wants to make a file waits for that.
static size_t take_dirty(struct sl_state *state, int *fds, size_t most) {
    size_t n = 0;
    pthread_mutex_lock(&state->mutex);
    for (struct kept_file *file = state->files; file; file = file->next) {
        if (file->fd < 0 || !atomic_exchange(&file->dirty, false)) {
            continue;
        }
        int fd = n < most ? fcntl(file->fd, F_DUPFD_CLOEXEC, 0) : -1;
        if (n < most && fd >= 0) {
            fds[n] = fd;
        } else if (n < most) {
            atomic_store(&file->dirty, true); // another time
            continue;
        }
        n++;
    }
    pthread_mutex_unlock(&state->mutex);
    return n;
}

static void sync_files(struct sl_state *state) {
    int fds[MAX_SYNCED];
    size_t n = take_dirty(state, fds, MAX_SYNCED);
    bool failed = n > MAX_SYNCED && syncfs(state->folder.dir_fd) != 0;
    for (size_t i = 0; i < n && i < MAX_SYNCED; i++) {
        failed |= n <= MAX_SYNCED && fdatasync(fds[i]) != 0;
        close(fds[i]);
    }
    if (atomic_exchange(&state->folder_changed, false) && n <= MAX_SYNCED) {
        failed |= fsync(state->folder.dir_fd) != 0;
    }
    if (failed) {
        sl_log_warn("state", "%s: cannot be put on the disk: %s", state->folder.path, strerror(errno));
    }
}

static void *sync_always(void *arg) {
    struct sl_state *state = arg;
    for (bool stopping = false; !stopping;) {
        int64_t next_ns = sl_deadline_in_ms(SYNC_MS);
        pthread_mutex_lock(&state->mutex);
        while (!state->stopping && sl_cond_wait_until(&state->ends, &state->mutex, next_ns) == SL_OK) {
        }
        stopping = state->stopping;
        pthread_mutex_unlock(&state->mutex);
        sync_files(state);
    }
    return NULL;
}

// ---- life ---------------------------------------------------------------------------------------------------------------

enum sl_status sl_state_open(const struct sl_state_config *config, struct sl_state **state_out, struct sl_error *err) {
    if (config->max_bytes < SL_STATE_MIN_BYTES) {
        return sl_fail(err, SL_ERR_INVALID, "--state-bytes: must be at least %" PRId64, SL_STATE_MIN_BYTES);
    }
    struct sl_state *state = calloc(1, sizeof *state);
    if (!state) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a folder of jobs");
    }
    enum sl_status status = sl_state_folder_open(config->folder, &state->folder, err);
    if (status != SL_OK) {
        free(state);
        return status;
    }
    state->max_bytes = config->max_bytes;
    state->model = config->model;
    pthread_mutex_init(&state->mutex, NULL);
    sl_cond_init(&state->wake);
    sl_cond_init(&state->ends);
    *state_out = state;
    return SL_OK;
}

static void push(struct sl_state *state, struct kept_file *file) {
    pthread_mutex_lock(&state->mutex);
    file->next = state->files;
    state->files = file;
    pthread_mutex_unlock(&state->mutex);
}

// A job that was restored: its file is written on.
static enum sl_status enter(struct sl_state *state, const struct sl_past_jobs *past, struct sl_job *job,
                            struct sl_error *err) {
    struct kept_file *file = calloc(1, sizeof *file);
    if (!file) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a job's file");
    }
    *file = (struct kept_file){.job = sl_job_ref(job),
                               .fd = -1,
                               .chain = past->chain,
                               .n_events = past->n_events,
                               .bytes = past->bytes,
                               .made = true,
                               .ended = past->end != NULL};
    atomic_fetch_add(&state->bytes, sl_state_blocks(file->bytes));
    atomic_fetch_add(&state->n_jobs, 1);
    if (!file->ended) {
        file->fd = sl_state_folder_reopen(&state->folder, job->id, past->bytes);
        if (file->fd < 0) {
            sl_log_warn("state", "%s/%s: cannot be written on: %s", state->folder.path, job->id, strerror(errno));
            atomic_store(&file->dropped, true);
        } else {
            sl_event_log_hold(&job->log, take_news, state);
            sl_event_log_tell(&job->log, past->n_events);
        }
    }
    push(state, file);
    return SL_OK;
}

static enum sl_status load_job(struct sl_state *state, const char *id, sl_state_restore_fn restore, void *arg,
                               struct sl_error *err) {
    uint8_t *bytes = NULL;
    size_t n = 0;
    struct sl_past_jobs past = {0};
    struct sl_job *job = NULL;
    struct sl_error why = {0};
    enum sl_status status = sl_state_folder_read(&state->folder, id, &bytes, &n, &why);
    if (status == SL_OK) {
        status = sl_past_read(id, bytes, n, &past, &why);
    }
    if (status == SL_OK) {
        status = restore(arg, &past, &job, &why);
    }
    if (status == SL_OK) {
        status = enter(state, &past, job, &why);
    } else if (status == SL_ERR_INVALID) {
        sl_state_folder_set_aside(&state->folder, id, why.text);
        status = SL_OK;
    } else if (status == SL_ERR_EXISTS) {
        sl_state_folder_remove(&state->folder, id);
        status = SL_OK;
    }
    sl_job_unref(&job);
    sl_past_cleanup(&past);
    free(bytes);
    return status == SL_OK ? SL_OK : sl_fail(err, status, "--state %.200s/%s: %s", state->folder.path, id, why.text);
}

static enum sl_status start_threads(struct sl_state *state, struct sl_error *err) {
    enum sl_status status = sl_thread_start("state", write_always, state, &state->writer, err);
    if (status != SL_OK) {
        return status;
    }
    status = sl_thread_start("state-sync", sync_always, state, &state->syncer, err);
    if (status != SL_OK) {
        pthread_mutex_lock(&state->mutex);
        state->stopping = true;
        pthread_cond_broadcast(&state->wake);
        pthread_cond_broadcast(&state->ends);
        pthread_mutex_unlock(&state->mutex);
        pthread_join(state->writer, NULL);
        return status;
    }
    state->running = true;
    return SL_OK;
}

enum sl_status sl_state_load(struct sl_state *state, sl_state_restore_fn restore, void *arg, struct sl_error *err) {
    sl_job_id *ids;
    size_t n;
    enum sl_status status = sl_state_folder_list(&state->folder, &ids, &n, err);
    if (status != SL_OK) {
        return status;
    }
    for (size_t i = 0; i < n && status == SL_OK; i++) {
        status = load_job(state, ids[i], restore, arg, err);
    }
    free(ids);
    return status == SL_OK ? start_threads(state, err) : status;
}

static void stop_threads(struct sl_state *state, bool suspended) {
    pthread_mutex_lock(&state->mutex);
    bool running = state->running;
    state->running = false;
    state->stopping = true;
    state->suspended |= suspended;
    pthread_cond_broadcast(&state->wake);
    pthread_cond_broadcast(&state->ends);
    pthread_mutex_unlock(&state->mutex);
    if (running) {
        pthread_join(state->writer, NULL);
        pthread_join(state->syncer, NULL);
        sync_files(state);
    }
}

void sl_state_suspend(struct sl_state *state) {
    stop_threads(state, true);
}

void sl_state_close(struct sl_state **state_inout) {
    struct sl_state *state = *state_inout;
    if (!state) {
        return;
    }
    stop_threads(state, false);
    while (state->files) {
        struct kept_file *file = state->files;
        state->files = file->next;
        sl_event_log_release(&file->job->log);
        if (file->fd >= 0) {
            close(file->fd);
        }
        free_file(file);
    }
    sl_state_folder_close(&state->folder);
    pthread_cond_destroy(&state->wake);
    pthread_cond_destroy(&state->ends);
    pthread_mutex_destroy(&state->mutex);
    free(state->buffer.bytes);
    free(state);
    *state_inout = NULL;
}

// ---- jobs that come -----------------------------------------------------------------------------------------------------

void sl_state_keep(struct sl_state *state, struct sl_job *job, bool attached) {
    struct sl_error err;
    struct kept_file *file = atomic_load(&state->silent) ? NULL : calloc(1, sizeof *file);
    if (!file ||
        sl_past_begin(job, state->model, attached, &file->chain, &file->begin, &file->n_begin, &err) != SL_OK) {
        free(file);
        atomic_fetch_add(&state->n_lost, 1);
        return;
    }
    file->job = sl_job_ref(job);
    file->fd = -1;
    sl_event_log_hold(&job->log, take_news, state);
    push(state, file);
    take_news(state);
}

void sl_state_drop(struct sl_state *state, struct sl_job *job) {
    pthread_mutex_lock(&state->mutex);
    for (struct kept_file *file = state->files; file; file = file->next) {
        if (file->job == job) {
            atomic_store(&file->dropped, true);
        }
    }
    pthread_mutex_unlock(&state->mutex);
    take_news(state);
}

// References to the jobs whose watchers wait for the disk; malloc'd.
static struct sl_job **waiting_jobs(struct sl_state *state, size_t *n_out) {
    size_t n = 0, n_all = 0;
    pthread_mutex_lock(&state->mutex);
    for (struct kept_file *file = state->files; file; file = file->next) {
        n_all++;
    }
    struct sl_job **jobs = malloc((n_all + 1) * sizeof(struct sl_job *));
    for (struct kept_file *file = state->files; jobs && file; file = file->next) {
        if (!file->ended && !file->gone) {
            jobs[n++] = sl_job_ref(file->job);
        }
    }
    pthread_mutex_unlock(&state->mutex);
    *n_out = n;
    return jobs;
}

void sl_state_watch(struct sl_state *state, int64_t now_ns) {
    int64_t since_ns = atomic_load(&state->busy_since_ns);
    if (since_ns == 0 || now_ns - since_ns < SILENT_MS * SL_NS_PER_MS || atomic_load(&state->silent)) {
        return;
    }
    size_t n;
    struct sl_job **jobs = waiting_jobs(state, &n);
    if (!jobs) {
        return; // another time
    }
    atomic_store(&state->silent, true);
    sl_log_warn("state", "%s: the disk does not answer: jobs go on that a restart will not find, or will run again",
                state->folder.path);
    for (size_t i = 0; i < n; i++) {
        sl_event_log_release(&jobs[i]->log);
        sl_job_unref(&jobs[i]);
    }
    atomic_fetch_add(&state->n_lost, (int64_t)n);
    free(jobs);
}

void sl_state_get_stats(struct sl_state *state, struct sl_state_stats *stats_out) {
    *stats_out = (struct sl_state_stats){.n_jobs = atomic_load(&state->n_jobs),
                                         .bytes = atomic_load(&state->bytes),
                                         .n_lost = atomic_load(&state->n_lost)};
}
