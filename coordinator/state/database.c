// SPDX-License-Identifier: Apache-2.0
#include "coordinator/state/database.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/log.h"

#define APPLICATION 0x736c4a42 // "slJB"
#define VERSION     1
#define PAGE_BYTES  4096

enum statement { BEGIN, COMMIT, ADD_JOB, ADD_EVENTS, END_JOB, REMOVE_JOB, REMOVE_EVENTS, N_STATEMENTS };

static const char *const statements[] = {
    [BEGIN] = "BEGIN IMMEDIATE",
    [COMMIT] = "COMMIT",
    [ADD_JOB] = "INSERT INTO jobs (number, id, accepted, digest) VALUES (?1, ?2, ?3, ?4)",
    [ADD_EVENTS] = "INSERT INTO batches (job, first, events, digest) VALUES (?1, ?2, ?3, ?4)",
    [END_JOB] = "UPDATE jobs SET end = ?2, digest = digest + ?3 WHERE number = ?1",
    [REMOVE_JOB] = "DELETE FROM jobs WHERE number = ?1",
    [REMOVE_EVENTS] = "DELETE FROM batches WHERE job = ?1",
};

struct sl_database {
    char path[PATH_MAX];
    char other[PATH_MAX + 16]; // the path of a file beside it, for a moment
    int64_t max_bytes;
    sqlite3 *writer, *checkpointer;
    sqlite3_stmt *prepared[N_STATEMENTS];
};

static enum sl_status failed(const struct sl_database *database, sqlite3 *connection, struct sl_error *err) {
    int code = connection != NULL ? sqlite3_errcode(connection) : SQLITE_NOMEM,
        error = sqlite3_system_errno(connection);
    bool is_full = code == SQLITE_FULL || error == ENOSPC || error == EDQUOT;
    return sl_fail(err, is_full ? SL_ERR_EXHAUSTED : SL_ERR_IO, "%.300s: %s%s%s", database->path,
                   connection != NULL ? sqlite3_errmsg(connection) : "out of memory", error != 0 ? ": " : "",
                   error != 0 ? strerror(error) : "");
}

// --- opening ---------------------------------------------------------------------------------------------------------

static void close_connections(struct sl_database *database) {
    for (int i = 0; i < N_STATEMENTS; i++) {
        sqlite3_finalize(database->prepared[i]);
        database->prepared[i] = NULL;
    }
    sqlite3_close(database->checkpointer);
    sqlite3_close(database->writer); // the last one to close moves the log into the database
    database->writer = database->checkpointer = NULL;
}

static int number_of(sqlite3 *connection, const char *pragma, int64_t *number_out) {
    sqlite3_stmt *statement;
    int code = sqlite3_prepare_v2(connection, pragma, -1, &statement, NULL);
    if (code == SQLITE_OK) {
        code = sqlite3_step(statement) == SQLITE_ROW ? SQLITE_OK : sqlite3_errcode(connection);
        *number_out = code == SQLITE_OK ? sqlite3_column_int64(statement, 0) : 0;
    }
    sqlite3_finalize(statement);
    return code;
}

static int check_integrity(sqlite3 *connection) {
    int64_t n_good;
    int code = number_of(connection, "SELECT count(*) FROM pragma_quick_check(1) WHERE quick_check = 'ok'", &n_good);
    return code == SQLITE_OK && n_good == 0 ? SQLITE_CORRUPT : code;
}

// Makes the tables of a new database, or checks those of an old one. Returns SQLITE_NOTADB for another program's.
static int set_up(struct sl_database *database) {
    static const char tables[] =
        "BEGIN IMMEDIATE;"
        "CREATE TABLE jobs (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, accepted BLOB NOT NULL,"
        " end BLOB, digest INTEGER NOT NULL);"
        "CREATE TABLE batches (job INTEGER NOT NULL, first INTEGER NOT NULL, events BLOB NOT NULL,"
        " digest INTEGER NOT NULL, PRIMARY KEY (job, first)) WITHOUT ROWID;"
        "PRAGMA application_id = 1936476738; PRAGMA user_version = 1; COMMIT";
    int64_t application, version, n_tables;
    int code = sqlite3_exec(database->writer,
                            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0;"
                            "PRAGMA temp_store = MEMORY; PRAGMA trusted_schema = OFF; PRAGMA secure_delete = ON; "
                            "PRAGMA cell_size_check = ON",
                            NULL, NULL, NULL);
    code = code == SQLITE_OK ? number_of(database->writer, "SELECT count(*) FROM sqlite_schema", &n_tables) : code;
    if (code == SQLITE_OK && n_tables == 0) {
        code = sqlite3_exec(database->writer, tables, NULL, NULL, NULL);
    }
    code = code == SQLITE_OK ? number_of(database->writer, "PRAGMA application_id", &application) : code;
    code = code == SQLITE_OK ? number_of(database->writer, "PRAGMA user_version", &version) : code;
    if (code == SQLITE_OK && (application != APPLICATION || version != VERSION)) {
        return application == APPLICATION ? SQLITE_MISMATCH : SQLITE_NOTADB;
    }
    return code == SQLITE_OK ? check_integrity(database->writer) : code;
}

static int connect(struct sl_database *database) {
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW;
    char limit[64];
    int fd =
        open(database->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600); // SQLite makes files for others to read
    if (fd >= 0) {
        close(fd);
    }
    int code = sqlite3_open_v2(database->path, &database->writer, flags, NULL);
    if (code == SQLITE_OK) {
        sqlite3_extended_result_codes(database->writer, 0);
        snprintf(limit, sizeof limit, "PRAGMA max_page_count = %lld",
                 (long long)(2 * database->max_bytes / PAGE_BYTES));
        code = sqlite3_exec(database->writer, limit, NULL, NULL, NULL);
    }
    code = code == SQLITE_OK ? set_up(database) : code;
    for (int i = 0; i < N_STATEMENTS && code == SQLITE_OK; i++) {
        code = sqlite3_prepare_v3(database->writer, statements[i], -1, SQLITE_PREPARE_PERSISTENT,
                                  &database->prepared[i], NULL);
    }
    return code == SQLITE_OK ? sqlite3_open_v2(database->path, &database->checkpointer, flags, NULL) : code;
}

static void remove_files(struct sl_database *database) {
    static const char *const endings[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        snprintf(database->other, sizeof database->other, "%s%s", database->path, endings[i]);
        if (unlink(database->other) != 0 && errno != ENOENT) {
            sl_log_warn("state", "%s: cannot be removed: %s", database->other, strerror(errno));
        }
    }
}

// Keeps a damaged database for the operator, in the place of an older one.
static void set_aside(struct sl_database *database, const char *why) {
    size_t folder = strlen(database->path) - strlen(SL_DATABASE_NAME);
    snprintf(database->other, sizeof database->other, "%.*sdamaged-" SL_DATABASE_NAME, (int)folder, database->path);
    bool stays = rename(database->path, database->other) == 0;
    sl_log_warn("state", "%s: %s: %s; jobs that it held are lost", database->path, why,
                stays ? "set aside as damaged-" SL_DATABASE_NAME : "removed");
    remove_files(database);
}

// Returns true where an error of opening comes from the file's bytes, not from the system.
static bool is_damage(const struct sl_database *database, int code) {
    return code == SQLITE_NOTADB || code == SQLITE_CORRUPT || code == SQLITE_ERROR ||
           (code == SQLITE_READONLY && access(database->path, W_OK) == 0);
}

enum sl_status sl_database_open(const char *folder, int64_t max_bytes, struct sl_database **database_out,
                                struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_database, database, err, "no memory for a database of jobs");
    snprintf(database->path, sizeof database->path, "%s/" SL_DATABASE_NAME, folder);
    database->max_bytes = max_bytes;
    int code = connect(database);
    if (is_damage(database, code)) {
        const char *why = sqlite3_errstr(code);
        close_connections(database);
        set_aside(database, why);
        code = connect(database);
    }
    if (code != SQLITE_OK) {
        enum sl_status status =
            code == SQLITE_MISMATCH
                ? sl_fail(err, SL_ERR_PRECONDITION, "--state %.300s: of another version; give another folder", folder)
                : failed(database, database->writer, err);
        sl_database_close(&database);
        return status;
    }
    *database_out = database;
    return SL_OK;
}

void sl_database_close(struct sl_database **database_inout) {
    SL_TAKE_OR_RETURN(database, database_inout);
    close_connections(database);
    free(database);
}

enum sl_status sl_database_start_anew(struct sl_database *database, struct sl_error *err) {
    close_connections(database);
    remove_files(database);
    return connect(database) == SQLITE_OK ? SL_OK : failed(database, database->writer, err);
}

// --- changes ---------------------------------------------------------------------------------------------------------

// Runs a statement whose parameters are bound.
static enum sl_status run(struct sl_database *database, enum statement which, struct sl_error *err) {
    sqlite3_stmt *statement = database->prepared[which];
    SL_FAIL_IF(statement == NULL, err, SL_ERR_IO, "%.300s: it could not be made", database->path);
    int code = sqlite3_step(statement);
    enum sl_status status = code == SQLITE_DONE ? SL_OK : failed(database, database->writer, err);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return status;
}

enum sl_status sl_database_begin(struct sl_database *database, struct sl_error *err) {
    return run(database, BEGIN, err);
}

enum sl_status sl_database_commit(struct sl_database *database, struct sl_error *err) {
    return run(database, COMMIT, err);
}

void sl_database_rollback(struct sl_database *database) {
    if (database->writer != NULL && sqlite3_get_autocommit(database->writer) == 0) {
        (void)sqlite3_exec(database->writer, "ROLLBACK", NULL, NULL, NULL); // the database is as before either way
    }
}

// Digests are added up in SQL, where an overflow would make a real number of the sum: keep them small.
static int64_t digest_of(const void *bytes, size_t n, uint64_t seed) {
    return (int64_t)(sl_hash(bytes, n, seed) >> 2);
}

static uint64_t seed_of_id(const char *id) {
    return sl_hash(id, strlen(id), VERSION);
}

enum sl_status sl_database_add_job(struct sl_database *database, int64_t number, const char *id, const void *accepted,
                                   size_t n, struct sl_error *err) {
    sqlite3_stmt *statement = database->prepared[ADD_JOB];
    sqlite3_bind_int64(statement, 1, number);
    sqlite3_bind_text(statement, 2, id, -1, SQLITE_STATIC);
    sqlite3_bind_blob64(statement, 3, accepted, n, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 4, digest_of(accepted, n, seed_of_id(id)));
    return run(database, ADD_JOB, err);
}

enum sl_status sl_database_add_events(struct sl_database *database, int64_t job, size_t first, const void *events,
                                      size_t n, struct sl_error *err) {
    sqlite3_stmt *statement = database->prepared[ADD_EVENTS];
    sqlite3_bind_int64(statement, 1, job);
    sqlite3_bind_int64(statement, 2, (int64_t)first);
    sqlite3_bind_blob64(statement, 3, events, n, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 4, digest_of(events, n, (uint64_t)job << 32 | first));
    return run(database, ADD_EVENTS, err);
}

enum sl_status sl_database_end_job(struct sl_database *database, int64_t job, const void *end, size_t n,
                                   struct sl_error *err) {
    sqlite3_stmt *statement = database->prepared[END_JOB];
    sqlite3_bind_int64(statement, 1, job);
    sqlite3_bind_blob64(statement, 2, end, n, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 3, digest_of(end, n, (uint64_t)job));
    return run(database, END_JOB, err);
}

enum sl_status sl_database_remove_job(struct sl_database *database, int64_t job, struct sl_error *err) {
    for (enum statement which = REMOVE_JOB; which <= REMOVE_EVENTS; which++) {
        sqlite3_bind_int64(database->prepared[which], 1, job);
        SL_TRY(run(database, which, err));
    }
    return SL_OK;
}

enum sl_status sl_database_checkpoint(struct sl_database *database, struct sl_error *err) {
    if (database->checkpointer == NULL) {
        return SL_OK;
    }
    int code = sqlite3_wal_checkpoint_v2(database->checkpointer, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    return code == SQLITE_OK || code == SQLITE_BUSY ? SL_OK : failed(database, database->checkpointer, err);
}

// --- reading ---------------------------------------------------------------------------------------------------------

struct events {
    uint8_t *bytes;
    size_t n, cap;
};

// Returns how many events a batch has, or SIZE_MAX if its lengths do not fit.
static size_t count_events(const uint8_t *bytes, size_t n) {
    size_t count = 0;
    while (n > 0) {
        uint32_t length;
        if (n < sizeof length) {
            return SIZE_MAX;
        }
        memcpy(&length, bytes, sizeof length);
        if (length > n - sizeof length) {
            return SIZE_MAX;
        }
        bytes += sizeof length + length;
        n -= sizeof length + length;
        count++;
    }
    return count;
}

// Gathers the batches of a job in *all, and checks that nothing is missing between them.
static int read_events(sqlite3_stmt *batches, struct sl_database_job *job, struct events *all) {
    size_t next = 0;
    int code;
    all->n = 0;
    sqlite3_bind_int64(batches, 1, job->number);
    while ((code = sqlite3_step(batches)) == SQLITE_ROW) {
        const void *bytes = sqlite3_column_blob(batches, 1);
        size_t n = (size_t)sqlite3_column_bytes(batches, 1), first = (size_t)sqlite3_column_int64(batches, 0);
        size_t count = count_events(bytes, n);
        job->damaged |= first != next || count == SIZE_MAX ||
                        sqlite3_column_int64(batches, 2) != digest_of(bytes, n, (uint64_t)job->number << 32 | first);
        next += count != SIZE_MAX ? count : 0;
        if (!sl_array_reserve(&all->bytes, &all->cap, all->n + n, 1)) {
            code = SQLITE_NOMEM;
            break;
        }
        if (n > 0) {
            memcpy(all->bytes + all->n, bytes, n);
        }
        all->n += n;
    }
    sqlite3_reset(batches);
    job->events = all->bytes;
    job->n_events = all->n;
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

static struct sl_database_job job_of_row(sqlite3_stmt *jobs) {
    struct sl_database_job job = {.number = sqlite3_column_int64(jobs, 0),
                                  .id = (const char *)sqlite3_column_text(jobs, 1),
                                  .accepted = sqlite3_column_blob(jobs, 2),
                                  .n_accepted = (size_t)sqlite3_column_bytes(jobs, 2),
                                  .end = sqlite3_column_blob(jobs, 3),
                                  .n_end = (size_t)sqlite3_column_bytes(jobs, 3)};
    int64_t digest = digest_of(job.accepted, job.n_accepted, seed_of_id(job.id));
    digest += job.end != NULL ? digest_of(job.end, job.n_end, (uint64_t)job.number) : 0;
    job.damaged = digest != sqlite3_column_int64(jobs, 4);
    return job;
}

enum sl_status sl_database_each(struct sl_database *database, sl_database_visit_fn visit, void *arg,
                                struct sl_error *err) {
    sqlite3_stmt *jobs = NULL, *batches = NULL;
    struct events all = {0};
    enum sl_status status = SL_OK;
    int code = sqlite3_prepare_v2(
        database->writer, "SELECT number, id, accepted, end, digest FROM jobs ORDER BY number", -1, &jobs, NULL);
    if (code == SQLITE_OK) {
        code = sqlite3_prepare_v2(database->writer,
                                  "SELECT first, events, digest FROM batches WHERE job = ?1 ORDER BY first", -1,
                                  &batches, NULL);
    }
    while (code == SQLITE_OK && status == SL_OK && (code = sqlite3_step(jobs)) == SQLITE_ROW) {
        struct sl_database_job job = job_of_row(jobs);
        code = read_events(batches, &job, &all);
        if (code == SQLITE_OK) {
            status = visit(arg, &job, err);
        }
    }
    SL_THEN_IF(status, code != SQLITE_DONE,
               code == SQLITE_NOMEM ? sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the events of a job")
                                    : failed(database, database->writer, err));
    sqlite3_finalize(jobs);
    sqlite3_finalize(batches);
    free(all.bytes);
    return status;
}
